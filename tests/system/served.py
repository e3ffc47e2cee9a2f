"""Services, and actors that ask for them. Imported by procs: no pytest here."""

import asyncio
import fcntl
import os
import random
import signal

import roost
from roost import Actor, ActorDied, Restart, context, endpoint, handle, process, this_host


class Store(Actor):
    """Notes each construction as a line of a file."""

    def __init__(self, path=None, value=0):
        if path is not None:
            with open(path, "a") as file:
                file.write(f"{value}\n")
        self.value = value

    @endpoint
    async def add(self, value):
        self.value += value
        return self.value

    @endpoint
    async def pid(self):
        return os.getpid()

    @endpoint
    async def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    async def end(self, reason):
        context().stop(reason)

    @endpoint
    async def fail(self):
        raise LookupError("the store burnt")

    @endpoint
    async def remove_oneself(self, name):
        await roost.remove(name)


class OtherStore(Store):
    pass


class Broken(Actor):
    def __init__(self):
        raise ValueError("the constructor said no")

    @endpoint
    async def echo(self, value):
        return value


class Alone(Actor):
    """Fails where another one lives."""

    def __init__(self, path):
        self.file = open(path, "w")  # noqa: SIM115 - it is locked as long as this actor lives
        fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @endpoint
    async def pid(self):
        return os.getpid()

    @endpoint
    async def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Slow(Actor):
    """Is up once the gate lets it."""

    def __init__(self, gate, name="slow"):
        self.gate, self.name = gate, name

    async def __start__(self):
        self.gate.tell.broadcast(f"{self.name} starts")
        await self.gate.passing.call_one(self.name)

    @endpoint
    async def pid(self):
        return os.getpid()


class First(Actor):
    async def __start__(self):
        self.other = await roost.get_or_spawn("second", Second)

    @endpoint
    async def other_pid(self):
        return await self.other.pid.call_one()

    @endpoint
    async def pid(self):
        return os.getpid()


class Second(Actor):
    async def __start__(self):
        self.other = await roost.get_or_spawn("first", First)
        self.itself = await roost.lookup("second", Second)

    @endpoint
    async def other_pid(self):
        return await self.other.pid.call_one()

    @endpoint
    async def pid(self):
        return os.getpid()


class Asker(Actor):
    @endpoint
    async def pid(self):
        return os.getpid()

    @endpoint(concurrent=True)
    async def find(self, name, actor, *args):
        return await roost.get_or_spawn(name, actor, *args)

    @endpoint
    async def add(self, name, path, value):
        store = await roost.get_or_spawn(name, Store, path, value)
        return await store.add.call_one(1)

    @endpoint
    def add_on_a_thread(self, name, value):
        return roost.lookup(name, Store).result(10).add.call_one(value).result(10)

    @endpoint
    async def look(self, name):
        return await roost.lookup(name, Store)

    @endpoint
    async def remove(self, name):
        await roost.remove(name)

    @endpoint(concurrent=True)
    async def jostle(self, name, path, seed, turns):
        """Ask for it, use it, kill it and remove it, by chance; gives what went wrong, each kind once."""
        chance, seen = random.Random(seed), set()
        for _ in range(turns):
            what = chance.random()
            try:
                if what < 0.3:
                    await roost.remove(name)
                elif what < 0.4:
                    await roost.lookup(name, Alone)
                else:
                    alone = await roost.get_or_spawn(name, Alone, path)
                    await (alone.pid if what < 0.8 else alone.kill).call_one()
            except (ActorDied, LookupError) as error:
                seen.add("two at once" if "BlockingIOError" in str(error) else type(error).__name__)
        return seen

    @endpoint
    async def local_class(self, name):
        class Local(Actor):
            @endpoint
            async def echo(self, value):
                return value

        found = await roost.get_or_spawn(name, Local)
        again = await roost.lookup(name, Local)
        return found == again, await again.echo.call_one(1)

    @endpoint
    async def spawn_askers(self, count):
        """Askers in procs that this actor owns."""
        self.procs = this_host().spawn_procs({"askers": count}, name="inner")
        return await self.procs.spawn("inner", Asker)

    @endpoint
    async def place(self, name):
        self.procs = this_host().spawn_procs({"places": 2}, name="places")
        return await self.procs.get_or_spawn(name, Store)

    @endpoint
    async def stop_places(self):
        await self.procs.stop("enough")

    @endpoint
    async def spawn_stores(self, *, restart=False):
        policy = Restart(limit=3, within_s=60, backoff_s=(0.01, 0.02)) if restart else None
        self.procs = this_host().spawn_procs({"stores": 2}, name="stores", restart=policy)
        return await self.procs.spawn("stores", Store)

    @endpoint
    async def stop_stores(self):
        await self.procs.stop("sold")

    # Monitors.
    @endpoint(concurrent=True)
    async def monitor(self, ref):
        return await roost.monitor(ref)

    @endpoint
    def monitor_on_a_thread(self, ref):
        return roost.monitor(ref).result(20)

    @endpoint
    async def keep_monitors(self, ref, count):
        self.kept = [roost.monitor(ref) for _ in range(count)]

    @endpoint
    async def drop_monitors(self):
        del self.kept

    @endpoint
    async def kept_monitors(self):
        return list(await asyncio.gather(*self.kept))

    @endpoint
    async def myself(self):
        return handle(self), roost.this_proc()


class Leaver(Actor):
    """Asks for services while the job ends."""

    def __init__(self, path):
        self.path = path

    @endpoint
    async def pid(self):
        return os.getpid()

    async def __cleanup__(self, exc):
        try:
            await roost.get_or_spawn("late", Store)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        else:
            said = "there"
        with open(self.path, "w") as file:
            file.write(said)


def waiting_at_the_desk():
    """What this process's desk waits for, by the proc that asked."""
    desk = process.current().hosting._desk
    instance = None if desk is None else desk.cells[0].runner.instance
    return {} if instance is None else instance._waits
