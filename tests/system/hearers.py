"""Ways in which a caller comes by a death, at once or later. Imported by procs: no pytest here."""

import asyncio
import os
import signal

import roost
from roost import Actor, ActorDied, Channel, MeshError, endpoint, this_host


class Doomed(Actor):
    """Ends its process when it is told to."""

    @endpoint
    async def end(self):
        await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(60)

    @endpoint
    async def values(self):
        yield 1
        await self.end()

    @endpoint
    async def send(self, port):
        await port.send(1)
        await self.end()

    @endpoint
    async def live(self):
        await asyncio.sleep(0.2)


async def awaited_late(pair):
    reply = pair.slice(n=0).end.call_one()
    await pair.slice(n=1).live.call_one()
    try:
        await reply
    except ActorDied:
        return "got"


async def looked_at_late(pair):
    reply = pair.slice(n=0).end.call_one()
    await pair.slice(n=1).live.call_one()
    return "got" if isinstance(reply.exception(), ActorDied) else None


async def by_outcomes(pair):
    outcomes = await pair.slice(n=0).end.call().outcomes()
    return "got" if isinstance(next(iter(outcomes)), ActorDied) else None


async def by_wait(pair):
    replies = [pair.slice(n=0).end.call_one(), pair.slice(n=1).live.call_one()]
    done, pending = await asyncio.wait(replies)
    assert not pending
    return "got" if any(isinstance(one.exception(), ActorDied) for one in done) else None


async def by_as_completed(pair):
    async for reply in roost.as_completed([pair.slice(n=0).end.call_one(), pair.slice(n=1).live.call_one()]):
        try:
            await reply
        except ActorDied:
            return "got"
    return None


async def by_a_stream(pair):
    try:
        async for _ in pair.slice(n=0).values.stream():
            pass
    except ActorDied:
        return "got"


async def by_the_outcomes_of_a_stream(pair):
    async for _, outcome in pair.slice(n=0).values.stream().outcomes():
        if isinstance(outcome, ActorDied):
            return "got"
    return None


async def by_an_accumulator(pair):
    total = roost.Accumulator(pair.slice(n=0).values, 0, lambda sum_, one: sum_ + one)
    try:
        await total.accumulate()
    except (ActorDied, MeshError):
        return "got"


async def by_a_channel(pair):
    port, receiver = Channel[int].open()
    pair.slice(n=0).send.broadcast(port)
    try:
        async for _ in receiver:
            pass
    except ActorDied:
        return "got"


async def by_a_call_that_failed_before(pair):
    """Both ranks die: the call raises when the first has, and whoever it raised for has heard of the other too."""
    try:
        await pair.end.call()
    except MeshError:
        await pair.wait()
        return "got"


WAYS = [
    awaited_late,
    looked_at_late,
    by_outcomes,
    by_wait,
    by_as_completed,
    by_a_stream,
    by_the_outcomes_of_a_stream,
    by_an_accumulator,
    by_a_channel,
    by_a_call_that_failed_before,
]


class Boss(Actor):
    """Owns what dies, with no hook: it fails of what it does not hear of by itself."""

    def __init__(self):
        self.pair = self.kept = None

    def spawn(self):
        self.pair = this_host().spawn_procs({"n": 2}, name="pair").spawn("doomed", Doomed)

    @endpoint
    async def go(self, name):
        self.spawn()
        (way,) = [way for way in WAYS if way.__name__ == name]
        got = await way(self.pair)
        await asyncio.sleep(0.1)
        return got

    @endpoint
    async def keep(self):
        """Keep the reply of one that dies, without a look at it."""
        self.spawn()
        self.kept = self.pair.slice(n=0).end.call_one()
        await asyncio.wait([self.kept])
        await asyncio.sleep(0.1)

    @endpoint
    async def let_go(self):
        self.kept = None
        await asyncio.sleep(60)

    @endpoint
    async def drop(self):
        """Let a stream go of which the error was not read."""
        self.spawn()
        stream = self.pair.slice(n=0).values.stream()
        await anext(stream)
        await self.pair.slice(n=0).wait()
        await asyncio.sleep(0.1)
        del stream
        await asyncio.sleep(60)

    @endpoint
    async def lives(self):
        return True
