"""What a caller that is killed leaves at the actors that it called: nobody waits for it, and its next life is another."""

import os
import signal

import pytest
from loops import handled, on_a_loop

from roost import Actor, ActorDied, Channel, endpoint, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

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
    async def notes(self):
        return self.noted


class Calling(Actor):
    @endpoint
    async def read(self, called, count, began):
        """Take so many numbers, and no more."""
        async with called.numbers.stream() as numbers:
            async for _, number in numbers:
                if number == 0:
                    began.send(os.getpid())
                if number == count:
                    await Channel.open()[1].recv()


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
