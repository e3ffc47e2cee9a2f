"""An actor for the tests of `roost.testing`, which runs in procs of both kinds. Imported by procs: no pytest here."""

import asyncio

from roost import Actor, Channel, context, endpoint, this_host

LIVES = []
"""What became of actors in this very process."""


class Trainer(Actor):
    def __init__(self, fails=""):
        if fails == "raise":
            raise ValueError("the constructor said no")
        self.steps = 0
        self.beats = 0

    async def __cleanup__(self, exc):
        LIVES.append(("cleaned up", context().point.rank, context().incarnation))

    @endpoint
    async def step(self, batch=1):
        self.steps += 1
        return self.steps * batch

    @endpoint
    def work(self, batch=1):
        """The same on a thread."""
        self.steps += 1
        return self.steps * batch

    @endpoint
    async def numbers(self, count):
        for number in range(count):
            yield number

    @endpoint(concurrent=True)
    async def beside(self):
        return "beside"

    @endpoint
    async def count(self):
        return self.steps

    @endpoint
    async def life(self):
        return context().incarnation

    @endpoint
    async def fill(self, values):
        """What is changed here is a copy."""
        values.append(context().point.rank)
        return values

    @endpoint
    async def boom(self):
        raise LookupError("boom")

    @endpoint
    async def sleep(self, seconds=60.0):
        try:
            await asyncio.sleep(seconds)
        finally:
            LIVES.append(("woke", context().point.rank, context().incarnation))

    @endpoint
    async def leave(self, code):
        raise SystemExit(code)

    @endpoint
    async def beat(self):
        """A task of the actor's own that goes on beside its endpoints."""

        async def beating():
            while True:
                self.beats += 1
                await asyncio.sleep(0.001)

        self.task = asyncio.create_task(beating())
        return self

    @endpoint
    async def ask(self, other):
        """From one proc to another."""
        return await other.step.call_one(10)

    @endpoint
    async def send(self, port):
        for number in range(3):
            await port.send(number)
        await port.close()

    @endpoint
    async def below(self):
        """Procs of an actor's own."""
        self.procs = this_host().spawn_procs({"cpus": 2}, name="below")
        return await self.procs.spawn("helpers", Trainer).step.call(5)

    @endpoint
    async def open(self):
        self.port, self.receiver = Channel.open()
        return self.port
