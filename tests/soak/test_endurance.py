"""One job that lives long, under messages and kills without end: nothing of it grows."""

import asyncio
import contextlib
import os
import random
import signal
import time

import pytest
from loops import handled, on_a_loop
from test_cycles import resident_bytes, settled

from roost import Actor, ActorDied, Restart, endpoint, this_host

POLICY = Restart(limit=1_000_000, within_s=60, backoff_s=(0.001, 0.001))
WINDOW = 100
# Between two windows: some 10,000 messages a second and receiver, so that the machine has room for other things.
PAUSE_S = 0.01
KILL_EVERY_S = (0.8, 1.6)
# Kills without a pause at the start: then tables that are bounded are full, whose entries a death makes.
KILLS_BEFORE_SHORT, KILLS_BEFORE = 10, 600
# A minute of a short run says less than half an hour: pages that are touched late still count.
GROWTH_SHORT = 0.1


def size_of_this():
    """Resident bytes, threads and descriptors of this process."""
    return resident_bytes(), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


class Adder(Actor):
    @endpoint
    async def add(self, number):
        return number + 1

    @endpoint
    async def size(self):
        return size_of_this()


async def calls(adder, until):
    """Call in windows; gives how many were answered, and how many failed with a life."""
    answered = failed = number = 0
    while time.monotonic() < until:
        replies = [adder.add.call_one(number + at) for at in range(WINDOW)]
        for at, reply in enumerate(replies):
            try:
                assert await reply == number + at + 1
                answered += 1
            except ActorDied:
                failed += 1
        number += WINDOW
        await asyncio.sleep(PAUSE_S)
    return answered, failed


async def killed(victim):
    """Kill a proc, if it lives now; gives whether it did."""
    pid = (await victim.states())[0].pid
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


async def kills(victim, until):
    """Kill a proc again and again, each time once it is back; gives how often."""
    count = 0
    while time.monotonic() < until:
        await victim.ready()
        await asyncio.sleep(random.uniform(*KILL_EVERY_S))
        count += await killed(victim)
    await victim.ready()
    return count


async def lived(procs, adders, seconds):
    """Some seconds of it."""
    until = time.monotonic() + seconds
    return await asyncio.gather(
        calls(adders.slice(ends=0), until),
        calls(adders.slice(ends=1), until),
        kills(procs.slice(ends=1), until),
    )


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_b6_a_long_life_under_kills_and_nothing_grows(rounds, figures):
    seconds, growth, kills_before = rounds((3, GROWTH_SHORT, KILLS_BEFORE_SHORT), (1800, 0.01, KILLS_BEFORE))
    async with this_host().spawn_procs({"ends": 2}, restart=POLICY, supervise=handled) as procs:
        adders = procs.spawn("adders", Adder)
        # Everything that is made once is there, and tables that are bounded are full.
        victim = procs.slice(ends=1)
        for _ in range(kills_before):
            await victim.ready()
            # One that falls on it while it is down is among what the tables keep.
            await asyncio.gather(adders.slice(ends=1).add.call_one(0), killed(victim), return_exceptions=True)
        await lived(procs, adders, seconds / 10)
        living = adders.slice(ends=0)
        await settled()
        before = size_of_this(), await living.size.call_one()
        (kept, none), (answered, failed), count = await lived(procs, adders, seconds)
        await settled()
        after = size_of_this(), await living.size.call_one()
    sizes = [(now[0] - then[0], then[0]) for then, now in zip(before, after, strict=True)]
    shown = [f"{grown / 1024:+.0f} KiB of {size >> 10} KiB" for grown, size in sizes]
    figures(
        f"{seconds} s, {kept + answered + failed} messages, {count} kills, {failed} calls failed with them; resident: "
        f"{shown[0]} at the driver, {shown[1]} at its peer"
    )
    assert none == 0, "nobody killed this one"
    assert count
    for then, now in zip(before, after, strict=True):
        assert now[1] <= then[1], "threads"
        assert now[2] <= then[2], "descriptors"
        assert now[0] <= (1 + growth) * then[0], "resident bytes"
