"""A module that templates preload: it remembers what a template had imported before it forked anything."""

import sys

from roost import Actor, endpoint

AT_FORK = frozenset(sys.modules)


class Newcomer(Actor):
    """Tells what its proc imported by itself."""

    def __init__(self):
        self.hints = 0

    @endpoint
    async def imported(self):
        return sorted(set(sys.modules) - AT_FORK)

    @endpoint
    async def hint(self):
        self.hints += 1

    @endpoint
    async def fails(self):
        raise ValueError("on purpose")

    @endpoint
    def on_a_thread(self, values):
        return len(values)

    @endpoint
    async def count(self):
        yield 1

    @endpoint
    async def send(self, port):
        await port.send(["value"])
