"""An actor with an endpoint of every kind, for the tests of calls, and a gate that lives in the driver. No pytest here."""

import asyncio
import threading
import time

from travelling import OddError, OnlyThere

from roost import Actor, CallTimeoutError, Channel, context, each, endpoint, handle


class Worker(Actor):
    def __init__(self, *noted):
        self.noted = list(noted)
        self.runs = self.most = 0
        self.place = dict(context().point)

    async def __start__(self):
        self.noted.append("started")

    # Plain ones.
    @endpoint
    async def add(self, a, b=10, *, scale=1):
        return (a + b) * scale

    @endpoint
    async def echo(self, value):
        return value

    @endpoint
    async def swallow(self, *args, **kwargs):
        return None

    @endpoint
    async def make(self, function, *args):
        """A value that is made here."""
        return function(*args)

    @endpoint
    async def note(self, value):
        self.noted.append(value)

    @endpoint(concurrent=True)
    async def notes(self):
        return self.noted

    @endpoint
    async def boom(self, text="boom", rank=None):
        if rank is None or rank == context().point.rank:
            raise LookupError(text)
        return "fine"

    @endpoint
    async def raises(self, error):
        raise error

    @endpoint
    async def raises_odd(self):
        raise OddError("odd")

    @endpoint
    async def stream_of_odd(self):
        yield "before"
        yield OnlyThere()
        yield "after"

    @endpoint
    async def where(self):
        now = context()
        return now.actor_name, dict(now.point), dict(now.message_point), now.incarnation, self.place

    # On threads.
    @endpoint
    def on_a_thread(self, value):
        return value, threading.current_thread() is threading.main_thread(), threading.get_ident()

    @endpoint
    def awaitable_from_def(self):
        return asyncio.sleep(0)

    @endpoint
    def ask_from_a_thread(self, other, value):
        other.note.broadcast(value)
        return other.add.call_one(value).result(10)

    @endpoint(concurrent=True)
    def meet(self, parties):
        """Wait on a thread until so many wait."""
        self.__dict__.setdefault("barrier", threading.Barrier(parties)).wait(10)
        return threading.get_ident()

    # That wait at a gate until they are let go.
    async def wait_at(self, gate, name):
        self.runs += 1
        self.most = max(self.most, self.runs)
        gate.tell.broadcast(f"{name} began")
        try:
            return await gate.passing.call_one(name)
        except (asyncio.CancelledError, CallTimeoutError):  # of a deadline the call to the gate may hear first
            gate.tell.broadcast(f"{name} cancelled")
            raise
        finally:
            self.runs -= 1

    @endpoint
    async def hold(self, gate, name):
        return await self.wait_at(gate, name)

    @endpoint
    async def hold_and_block(self, gate, name, seconds):
        await self.wait_at(gate, name)
        time.sleep(seconds)

    @endpoint(concurrent=True)
    async def hold_and_block_beside(self, gate, name, seconds):
        await self.wait_at(gate, name)
        time.sleep(seconds)

    @endpoint
    async def hold_or_fail(self, gate, name, rank):
        if context().message_point.rank == rank:
            raise LookupError(name)
        return await self.wait_at(gate, name)

    @endpoint(concurrent=True)
    async def hold_beside(self, gate, name):
        return await self.wait_at(gate, name)

    @endpoint(concurrent=True, limit=2, group="two")
    async def hold_limited(self, gate, name):
        return await self.wait_at(gate, name)

    @endpoint(concurrent=True, group="two")
    async def hold_in_the_group(self, gate, name):
        return await self.wait_at(gate, name)

    @endpoint
    def hold_a_thread(self, gate, name):
        gate.tell.broadcast(f"{name} began")
        return gate.passing.call_one(name).result(20)

    @endpoint(concurrent=True)
    async def most_at_once(self):
        return self.most

    # Streams.
    @endpoint
    async def count(self, stop, gate=None, fails_at=None):
        try:
            for number in range(stop):
                if number == fails_at:
                    raise LookupError(f"at {number}")
                self.noted.append(number)
                yield number
        finally:
            if gate is not None:
                gate.tell.broadcast("count ended")

    @endpoint(concurrent=True)
    async def count_beside(self, stop):
        for number in range(stop):
            self.made = number + 1
            yield number

    @endpoint(concurrent=True)
    async def made_so_far(self):
        return self.made

    # With ports.
    @endpoint(reply="port")
    async def answer(self, port, value):
        port.send(value)

    @endpoint(reply="port")
    async def answer_often(self, port, count):
        for number in range(count):
            await port.send(number)
        port.close()

    @endpoint(reply="port", concurrent=True)
    async def answer_beside(self, port, stop):
        await self.send_counted(port, stop)

    @endpoint(concurrent=True)
    async def send_beside(self, port, stop):
        await self.send_counted(port, stop)

    async def send_counted(self, port, stop):
        for number in range(stop):
            self.made = number + 1
            await port.send(number)
        await port.close()

    @endpoint(reply="port")
    def answer_on_a_thread(self, port, value):
        port.send((value, threading.current_thread() is threading.main_thread()))

    @endpoint(reply="port")
    async def answer_later(self, port):
        self.port = port

    @endpoint
    async def send_now(self, value):
        await self.port.send(value)

    @endpoint
    async def answer_now(self, value):
        self.port.send(value)
        del self.port

    @endpoint(reply="port")
    async def answer_by_another(self, port, other, name, *args):
        await other.call_one(name, port, *args)

    @endpoint(reply="port")
    async def answer_with_an_error(self, port):
        port.error(LookupError("no answer"))

    @endpoint(reply="port")
    async def raise_instead(self, port):
        raise LookupError("raised")

    @endpoint(reply="port")
    async def forget_to_answer(self, port):
        pass

    @endpoint
    async def open_channel(self, limit=None, senders=1):
        port, self.receiver = Channel.open(limit=limit, senders=senders)
        return port

    @endpoint
    async def take_all(self):
        return [value async for value in self.receiver]

    @endpoint
    async def keep(self, port):
        self.port = port

    @endpoint
    async def send_to(self, port, *values):
        for value in values:
            await port.send(value)

    @endpoint
    async def pass_on(self, port, other, name, *args):
        await other.call_one(name, port, *args)

    @endpoint
    async def send_many(self, port, count):
        for number in range(count):
            await port.send(number)
        await port.close()

    @endpoint
    async def send_error(self, port, error):
        await port.error(error)

    @endpoint
    async def close_port(self, port):
        await port.close()

    @endpoint
    async def send_all(self, port, count):
        """Send without waiting for room; how many had room at once. `sent_all` waits for the rest."""
        self.sent = [port.send(number) for number in range(count)]
        return sum(one.done() for one in self.sent)

    @endpoint(concurrent=True)
    async def sent_all(self):
        results = await asyncio.gather(*self.sent, return_exceptions=True)
        return [type(result).__name__ for result in results]

    # About others.
    @endpoint
    async def ask(self, other, name, *args, timeout=None):
        return await other.options(timeout=timeout).call_one(name, *args)

    @endpoint
    async def ask_all(self, others, name, *args):
        return list(await others.call(name, *args))

    @endpoint
    async def ask_each(self, others):
        return list(await others.echo.call(each(range(len(others)))))

    @endpoint
    async def tell_many(self, other, numbers):
        for number in numbers:
            other.note.broadcast(number)

    @endpoint
    async def ask_broken_off(self, other, name, *args, within_s):
        """A call that is given up, and what became of it."""
        try:
            async with asyncio.timeout(within_s):
                return await other.call_one(name, *args)
        except TimeoutError:
            return "given up"

    @endpoint
    async def myself(self):
        return handle(self), context().mesh


class Gate(Actor):
    """Lives in the driver: the test hears what workers tell, and lets them go."""

    told: dict
    opened: dict

    @endpoint(concurrent=True)
    async def passing(self, name):
        await event(self.opened, name).wait()
        return name

    @endpoint(concurrent=True)
    async def tell(self, name):
        event(self.told, name).set()

    def __init__(self):
        self.told, self.opened = TOLD, OPENED


TOLD: dict = {}
OPENED: dict = {}


def event(events, name):
    return events.setdefault(name, asyncio.Event())


async def heard(name, within_s=10):
    """Wait until a worker has told this."""
    async with asyncio.timeout(within_s):
        await event(TOLD, name).wait()


def was_heard(name):
    return event(TOLD, name).is_set()


def let_go(*names):
    for name in names:
        event(OPENED, name).set()


def forget_gates():
    TOLD.clear()
    OPENED.clear()
