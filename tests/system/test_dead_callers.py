"""What a caller that is killed leaves at the actors that it called: nobody waits for it, and its next life is another."""

import asyncio
import os
import signal

import pytest
from loops import handled, on_a_loop

from roost import Actor, ActorDied, Channel, Restart, endpoint, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

POLICY = Restart(limit=3, backoff_s=(0, 0))
# More than any test takes in its time.
WITHOUT_END = 1 << 40


class Called(Actor):
    def __init__(self):
        self.noted = []

    @endpoint
    async def numbers(self):
        try:
            for number in range(WITHOUT_END):
                yield number
        finally:
            self.noted.append("closed")

    @endpoint
    async def hold(self, began):
        port, released = Channel.open()
        began.send(port)
        await released.recv()

    @endpoint
    async def note(self, text):
        self.noted.append(text)

    @endpoint
    async def notes(self):
        return self.noted


class Calling(Actor):
    @endpoint
    async def pid(self):
        return os.getpid()

    @endpoint
    async def read(self, called, count, began):
        """Take so many numbers, and no more."""
        async with called.numbers.stream() as numbers:
            async for _, number in numbers:
                if number == 0:
                    began.send(os.getpid())
                if number == count:
                    await Channel.open()[1].recv()

    @endpoint
    async def ask(self, called, text):
        self.reply = called.note.call_one(text)

    @endpoint
    async def give_up(self):
        self.reply.cancel()


async def both(procs):
    """An actor, and one in another proc that calls it."""
    called = procs.slice(ends=0).spawn("called", Called)
    calling = procs.slice(ends=1).spawn("calling", Calling)
    await called.ready()
    await calling.ready()
    return called, calling


@pytest.mark.parametrize("count", [0, WITHOUT_END], ids=["that takes no more", "that takes all"])
@on_a_loop
async def test_a_stream_ends_with_the_process_of_its_reader(count):
    async with this_host().spawn_procs({"ends": 2}, supervise=handled) as procs:
        called, calling = await both(procs)
        port, began = Channel.open()
        reading = calling.read.call_one(called, count, port)
        os.kill(await began.recv(), signal.SIGKILL)
        with pytest.raises(ActorDied):
            await reading
        # Its endpoints run one at a time.
        assert await called.options(timeout=30).notes.call_one() == ["closed"]


@on_a_loop
async def test_who_gives_up_a_call_gives_up_none_of_its_former_life():
    """What it had sent is delivered, and each life numbers its calls from the start."""

    async def queued():
        return (await called.states()).item().queued

    async with this_host().spawn_procs({"ends": 2}, restart=POLICY, supervise=handled) as procs:
        called, calling = await both(procs)
        port, began = Channel.open()
        holding = called.hold.call_one(port)
        release = await began.recv()
        await calling.ask.call_one(called, "of its first life")
        await until_equal(queued, 1)
        os.kill(await calling.pid.call_one(), signal.SIGKILL)
        await until_equal(lives_of(procs.slice(ends=1)), 1)
        await calling.ready()
        await calling.ask.call_one(called, "of its second")
        await until_equal(queued, 2)
        await calling.give_up.call_one()
        await until_equal(queued, 1)
        release.send(None)
        await holding
        assert await called.notes.call_one() == ["of its first life"]


def lives_of(procs):
    async def life():
        return (await procs.states()).item().incarnation

    return life


async def until_equal(ask, wanted):
    """Ask until this is the answer."""
    while await ask() != wanted:
        await asyncio.sleep(0)
