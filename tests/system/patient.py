"""Actors that say how they are. Imported by procs: no pytest here."""

import asyncio
import time

from roost import Actor, context, endpoint


class Patient(Actor):
    """Answers its probe with what was last set."""

    def __init__(self, answer=True):
        self.answer = answer
        self.asked = 0

    async def __healthy__(self) -> bool:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer == "silence":
            await asyncio.sleep(100)
        return self.answer

    @endpoint
    async def become(self, answer) -> int:
        self.answer = answer
        return context().incarnation

    @endpoint
    async def questions(self) -> int:
        return self.asked

    @endpoint
    async def wait_for_questions(self, count: int) -> int:
        """A serial endpoint: the questions come beside it."""
        while self.asked < count:
            await asyncio.sleep(0.01)
        return self.asked

    @endpoint
    async def block(self, seconds: float) -> None:
        time.sleep(seconds)
