"""Actors that call each other, and so themselves. Imported by procs: no pytest here."""

import asyncio

from roost import Actor, context, endpoint


class Ring(Actor):
    """`via` is a list of meshes of one: each calls the next one's `go` with the rest."""

    @endpoint
    async def go(self, via):
        return await via[0].call_one(Ring.go, via[1:]) if via else "round"

    @endpoint(concurrent=True)
    async def beside(self, via):
        return await via[0].call_one(Ring.beside, via[1:]) if via else "round"

    @endpoint(concurrent=True)
    async def then_alone(self, via):
        """Concurrent itself; what it calls at the end runs alone."""
        return await via[0].call_one(Ring.then_alone if len(via) > 1 else Ring.go, via[1:])

    @endpoint(concurrent=True, limit=1)
    async def one_at_a_time(self, via):
        return await via[0].call_one(Ring.one_at_a_time, via[1:]) if via else "round"

    @endpoint
    async def go_all(self, via):
        """By a call to a mesh."""
        return list(await via[0].call(Ring.go_all, via[1:])) if via else "round"

    @endpoint
    async def go_within(self, via, seconds):
        """With a deadline for each call."""
        step = via[0].go_within.options(timeout=seconds) if via else None
        return await step.call_one(via[1:], seconds) if step else "round"

    @endpoint
    async def gather(self, both, back):
        """Call a mesh of which one rank calls back, and the other fails a little later."""
        try:
            return list(await both.call(Ring.back_or_fail, back))
        except ExceptionGroup as group:
            return [str(error) for error in group.exceptions]

    @endpoint
    async def back_or_fail(self, back):
        if context().point["gpus"] % 2:
            await asyncio.sleep(0.3)
            raise LookupError("the other rank")
        return await back.go.call_one([])

    @endpoint
    async def without_waiting(self, via):
        """Sends and ends: what it called is handled later."""
        self.later = via[0].call_one(Ring.go, via[1:])
        return "sent"

    @endpoint
    async def is_done(self):
        return self.later.done()

    @endpoint
    async def outcome(self):
        return await self.later

    @endpoint
    async def wait_late(self, via, seconds):
        """Does something else before it awaits."""
        reply = via[0].call_one(Ring.go, via[1:])
        await asyncio.sleep(seconds)
        return await reply

    @endpoint
    async def within(self, via, seconds):
        """Catches what comes of it."""
        try:
            async with asyncio.timeout(seconds):
                return await via[0].call_one(Ring.go, via[1:])
        except (TimeoutError, RuntimeError) as error:
            return type(error).__name__

    @endpoint
    async def started_by_a_broadcast(self, via):
        try:
            self.found = await via[0].call_one(Ring.go, via[1:])
        except RuntimeError as error:
            self.found = error

    @endpoint(concurrent=True)
    async def what_was_found(self):
        while not hasattr(self, "found"):
            await asyncio.sleep(0.01)
        return self.found
