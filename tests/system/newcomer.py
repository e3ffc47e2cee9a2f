"""A module that templates preload: it remembers what a template had imported before it forked anything."""

import os
import sys

from roost import Actor, endpoint

at_fork: set[str] = set()
os.register_at_fork(after_in_child=lambda: at_fork.update(sys.modules))


class Newcomer(Actor):
    """Tells what its proc imported by itself."""

    def __init__(self):
        self.hints = 0

    @endpoint
    async def imported(self):
        return sorted(set(sys.modules) - at_fork)

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
