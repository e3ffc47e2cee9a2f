"""What actors on other hosts do, for the tests of hosts. Imported by procs: no pytest here."""

import os
import signal
import sys

from roost import Actor, ActorDied, Channel, context, endpoint, this_host


class Resident(Actor):
    """Tells where it lives."""

    @endpoint
    async def surroundings(self):
        names = ("PATH", "TESTED", "TESTED_AGENT", "OMP_NUM_THREADS", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
        return {
            "environ": {name: os.environ.get(name) for name in names},
            "cwd": os.getcwd(),
            "path": list(sys.path),
            "prefix": sys.prefix,
            "pid": os.getpid(),
            "argv": sys.argv,
            "cpus": os.sched_getaffinity(0),
        }

    @endpoint
    async def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    async def exit(self, code):
        sys.exit(code)

    @endpoint(concurrent=True)
    async def hang(self):
        await Channel.open()[1].recv()

    @endpoint
    async def say(self, text):
        print(text)

    @endpoint
    async def life(self):
        return context().incarnation, os.getpid()

    @endpoint
    async def spawn_here(self):
        """Procs of its own, on its own host; where their parents are."""
        self.procs = this_host().spawn_procs({"own": 2})
        return list(await self.procs.spawn("residents", Resident).parent.call())

    @endpoint
    async def spawn_on(self, hosts):
        """Procs of its own, on hosts that it was given."""
        self.procs = hosts.spawn_procs(name="handed")
        self.residents = self.procs.spawn("residents", Resident)
        return list(hosts.names), list(await self.residents.parent.call())

    @endpoint
    async def parent(self):
        """The process that is this host's agent: the parent of the template, which is the parent of this process."""
        with open(f"/proc/{os.getppid()}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])

    @endpoint
    async def call_hung(self, other):
        """Call one that never answers; how that ended."""
        try:
            await other.hang.call_one()
        except ActorDied as error:
            return type(error).__name__, error.failure.kind, error.failure.host
        return "answered"


class Keeper(Actor):
    """Owns what is on other hosts, and hears of its end."""

    def __init__(self):
        self.heard = []

    async def __supervise__(self, failure):
        self.heard.append(failure)
        return True

    @endpoint
    async def keep(self, hosts, count):
        self.procs = hosts.spawn_procs({"of": count}, name="kept")
        self.residents = self.procs.spawn("residents", Resident)
        await self.residents.ready()

    @endpoint
    async def settle_on(self, procs):
        self.residents = await procs.spawn("tenants", Resident)

    @endpoint
    async def what_was_heard(self):
        return self.heard


def runs_before(path):
    """A `setup`."""
    with open(path, "a") as file:
        file.write(f"{context().proc}\n")


def raises():
    raise ValueError("not on this host")
