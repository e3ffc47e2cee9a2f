"""Spawn, call, stop, over and over: the last cycles are as quick as the first, and nothing grows."""

import asyncio
import gc
import os
import statistics
import time
from pathlib import Path

import pytest
from leftovers import descriptors, started_here
from loops import on_a_loop
from mortal import Mortal

from roost import this_host

SIDE_BY_SIDE = 8
# What the allocator keeps, and tables of ended meshes that are bounded, may cost this much.
GROWTH_BYTES_MAX = 16 << 20


def resident_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def settled():
    """How many threads, descriptors and processes there are, once that does not change any more."""
    before, now = None, (0, 0, 0)
    while now != before:
        await asyncio.sleep(0.3)
        before, now = now, (len(os.listdir("/proc/self/task")), len(descriptors()), len(started_here()))
    return now


async def cycle(_number):
    """One life of a mesh; gives its seconds."""
    begin = time.perf_counter()
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        mortals = procs.spawn("mortals", Mortal)
        assert list(await mortals.echo.call("hello")) == ["hello"] * 2
    return time.perf_counter() - begin


async def cycles(count):
    """So many, eight at a time; gives the seconds of each in the order of their starts."""
    seconds, left = [0.0] * count, iter(range(count))

    async def work():
        for number in left:
            seconds[number] = await cycle(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(SIDE_BY_SIDE):
            group.create_task(work())
    return seconds


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_the_last_cycles_are_as_quick_as_the_first_and_nothing_grows(rounds, figures):
    # Everything that is made once is there.
    await cycles(2 * SIDE_BY_SIDE)
    before, memory = await settled(), resident_bytes()
    seconds = await cycles(rounds(40, 300))
    after, grown = await settled(), resident_bytes() - memory
    sixth = len(seconds) // 6
    first, last = statistics.median(seconds[:sixth]), statistics.median(seconds[-sixth:])
    figures(
        f"the first {sixth} took {1000 * first:.0f} ms each, the last {1000 * last:.0f} ms; memory grew by "
        f"{grown / 1024:.0f} KiB over {len(seconds)}"
    )
    assert after == before, "threads, descriptors, processes"
    assert grown < GROWTH_BYTES_MAX
    if rounds(short=False, long=True):
        # Short ones say nothing: the machine is busy with something else for one half.
        assert last < 1.5 * first + 0.05
