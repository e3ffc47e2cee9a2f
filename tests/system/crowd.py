"""Actors of which many live in one proc."""

import asyncio
from contextvars import ContextVar

from roost import Actor, context, endpoint

mark: ContextVar[str] = ContextVar("mark", default="none")


class One(Actor):
    """One of many."""

    def __init__(self, number=0):
        self.number = number
        self.seen = 0
        # In a constructor the loop and a task are there, as in an endpoint.
        self.made_in_task = asyncio.current_task() is not None

    @endpoint
    async def which(self):
        return self.number, context().incarnation, self.made_in_task

    @endpoint
    async def leave_mark(self, text):
        mark.set(text)

    @endpoint
    async def find_mark(self):
        return mark.get()

    @endpoint
    async def linger(self, seconds):
        """Whether its own time-out, and nobody else's, ended it."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()
        except TimeoutError:
            return True
        return False

    @endpoint
    async def play(self, other):
        """Send the ball on without ever waiting."""
        self.seen += 1
        other.play.broadcast(context().mesh)

    @endpoint
    async def count(self):
        return self.seen


class Marking(Actor):
    """One that leaves a mark while it is constructed."""

    def __init__(self):
        mark.set("constructed")

    @endpoint
    async def find_mark(self):
        return mark.get()
