"""An actor for values of many megabytes, and processes that can map no shared memory. No pytest here."""

import os

import numpy as np

from roost import Actor, endpoint, process

MIB = 1 << 20


def unshared(count=280):
    """Arrays that are each too small for shared memory, and together too large for a frame."""
    return [np.zeros((256 << 10) - 64, np.uint8) for _ in range(count)]


def shared(count=70):
    """Arrays for shared memory, together too large for a frame, too."""
    return [np.zeros(MIB, np.uint8) for _ in range(count)]


class Unmappable:
    """The segments of a process that can map no more of them."""

    def __init__(self, segments):
        self.segments = segments

    def add(self, _sender, _segment, _size, fd):
        os.close(fd)
        raise OSError("no room for one more")

    def __getattr__(self, name):
        return getattr(self.segments, name)


def go_blind():
    """From now on this process can map no more segments."""
    sharing = process.running().sharing
    sharing.map = Unmappable(sharing.map)


def see_again():
    sharing = process.running().sharing
    sharing.map = sharing.map.segments


class Bulky(Actor):
    def __init__(self, *values):
        self.count = len(values)

    @endpoint
    async def go_blind(self):
        go_blind()

    @endpoint
    async def take(self, values):
        self.count = len(values)
        return self.count

    @endpoint
    async def taken(self):
        return self.count

    @endpoint
    async def give(self, make):
        return make()

    @endpoint
    async def give_each(self, *makes):
        for make in makes:
            yield make()

    @endpoint
    async def send(self, port, make):
        await port.send(make())
