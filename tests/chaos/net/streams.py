"""Numbered messages to actors on many hosts: what was lost, doubled or swapped, and how long who waited. No pytest here."""

import asyncio
import itertools
import os
import time

from roost import Actor, endpoint


class Sink(Actor):
    """Takes numbers, each sender's in order."""

    def __init__(self):
        self.last, self.wrong = {}, []

    @endpoint
    async def take(self, sender, number):
        if number != self.last.get(sender, 0) + 1:
            self.wrong.append((sender, number, self.last.get(sender, 0)))
        self.last[sender] = number
        return number

    @endpoint
    async def told(self):
        """Each sender's last number, and what was not the next."""
        return self.last, self.wrong

    @endpoint(concurrent=True)
    async def pid(self):
        return os.getpid()

    @endpoint(concurrent=True)
    async def sleep(self, seconds):
        await asyncio.sleep(seconds)

    @endpoint
    async def size(self, value):
        return len(value)


class Traffic:
    """Calls and broadcasts to each of some actors, to each as quick as it answers; ends when it is told to."""

    def __init__(self, name, sinks, pause_s=0.002):
        self.name, self.pause_s = name, pause_s
        self.sent, self.answered_at = {}, {}
        self.over = False
        self.tasks = [asyncio.ensure_future(self.stream(rank, sink)) for rank, sink in sinks.items()]

    async def stream(self, rank, sink):
        """To one of them."""
        times = self.answered_at[rank] = [time.monotonic()]
        self.sent[rank] = 0
        while not self.over:
            number = self.sent[rank] + 2
            self.sent[rank] = number
            sink.take.broadcast(self.name, number - 1)
            assert await sink.take.call_one(self.name, number) == number
            times.append(time.monotonic())
            await asyncio.sleep(self.pause_s)

    async def end(self):
        """The last number to each, and when each answered."""
        self.over = True
        await asyncio.gather(*self.tasks)
        return self.sent, self.answered_at


class Source(Actor):
    """Sends from where it lives, as the driver does."""

    @endpoint
    async def begin(self, name, sinks):
        self.traffic = Traffic(name, sinks)

    @endpoint
    async def ended(self):
        """Wait until it ends by itself, by an error."""
        await asyncio.gather(*self.traffic.tasks)

    @endpoint
    async def end(self):
        return await self.traffic.end()


def longest_gap(times, begin=0.0, end=float("inf")):
    """The longest time without an answer that began within these."""
    return max((after - before for before, after in itertools.pairwise(times) if begin <= before <= end), default=0.0)


def flows_after(times, moment):
    """How long after that moment the next answer came."""
    return next(at for at in times if at >= moment) - moment


async def checked(sinks, sent):
    """All that was sent was taken, once and in order: `sent` has the last number to each rank, by sender."""
    for (_, (last, wrong)), rank in zip((await sinks.told.call()).items(), range(10_000), strict=False):
        assert wrong == []
        for sender, numbers in sent.items():
            assert last.get(sender, 0) == numbers.get(rank, 0), (sender, rank)


def per_rank(sinks):
    """Each sink by its rank."""
    sizes = sinks.sizes
    return {
        host * sizes["procs"] + proc: sinks.slice(hosts=host, procs=proc)
        for host in range(sizes["hosts"])
        for proc in range(sizes["procs"])
    }
