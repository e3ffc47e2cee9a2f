"""An actor that takes every descriptor of its process. Imported by procs: no pytest here."""

import os

import numpy as np

from roost import Actor, endpoint


def take_all():
    """Every descriptor that this process may still open."""
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        return taken


class Greedy(Actor):
    def __init__(self):
        self.taken = []

    @endpoint
    async def take(self):
        self.taken += take_all()

    @endpoint
    async def give_back(self):
        while self.taken:
            os.close(self.taken.pop())

    @endpoint
    async def echo(self, value):
        return value

    @endpoint
    async def total(self, array):
        return int(np.sum(array))

    @endpoint
    async def ask(self, other, value):
        return await other.echo.call_one(value)
