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


async def kills(victim, until):
    """Kill a proc again and again, each time once it is back; gives how often."""
    count = 0
    while time.monotonic() < until:
        await victim.ready()
        await asyncio.sleep(random.uniform(*KILL_EVERY_S))
        pid = (await victim.states())[0].pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                count += 1
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
    seconds, growth = rounds((3, GROWTH_SHORT), (1800, 0.01))
    async with this_host().spawn_procs({"ends": 2}, restart=POLICY, supervise=handled) as procs:
        adders = procs.spawn("adders", Adder)
        # Everything that is made once is there, and tables that are bounded are full.
        await lived(procs, adders, seconds / 10)
        living = adders.slice(ends=0)
        await settled()
        before = size_of_this(), await living.size.call_one()
        (kept, none), (answered, failed), killed = await lived(procs, adders, seconds)
        await settled()
        after = size_of_this(), await living.size.call_one()
    sizes = [(now[0] - then[0], then[0]) for then, now in zip(before, after, strict=True)]
    shown = [f"{grown / 1024:+.0f} KiB of {size >> 10} KiB" for grown, size in sizes]
    figures(
        f"{seconds} s, {kept + answered + failed} messages, {killed} kills, {failed} calls failed with them; resident: "
        f"{shown[0]} at the driver, {shown[1]} at its peer"
    )
    assert none == 0, "nobody killed this one"
    assert killed
    for then, now in zip(before, after, strict=True):
        assert now[1] <= then[1], "threads"
        assert now[2] <= then[2], "descriptors"
        assert now[0] <= (1 + growth) * then[0], "resident bytes"
