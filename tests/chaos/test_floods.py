"""B1, B2, B3. A sender that is ten times faster than its receiver: memory stays flat, and nobody else waits."""

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

import pytest
from loops import handled, on_a_loop
from mortal import Mortal
from times import percentile, shown

from roost import Actor, ActorDied, Restart, endpoint, run, this_host
from roost.errors import MailboxFullError

pytestmark = pytest.mark.usefixtures("nothing_left")

GROWTH_BYTES_MAX = 256 << 20
POLICY = Restart(limit=1_000_000, within_s=60, backoff_s=(0.001, 0.001))


def resident_bytes(pid="self"):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Slow(Actor):
    """Takes a message in ten times the time in which one can be sent."""

    def __init__(self):
        self.taken = 0

    @endpoint
    async def take(self, payload, pause_s):
        self.taken += 1
        await asyncio.sleep(pause_s)

    @endpoint(concurrent=True)
    async def look(self):
        return os.getpid(), self.taken

    @endpoint
    async def echo(self, value):
        return value


class Flooding(Actor):
    """Sends for so long; gives how many were sent, how many were refused, and the most memory that it held meanwhile."""

    @endpoint
    async def flood(self, slow, seconds, payload, pause_s, awaited):
        before, most, sent, refused = resident_bytes(), 0, 0, 0
        end = time.monotonic() + seconds
        # Each message that goes back at the end would be a warning.
        logging.getLogger("roost.dead_letters").setLevel(logging.ERROR)
        while time.monotonic() < end or not (awaited or refused):
            try:
                sending = slow.take.broadcast(payload, pause_s)
                sent += 1
                if awaited:
                    await sending
            except MailboxFullError:
                refused += 1
                await asyncio.sleep(0.01)
            if sent % 1000 == 0 or refused:
                most = max(most, resident_bytes() - before)
                await asyncio.sleep(0)
        return sent, refused, most


@pytest.mark.parametrize("size", [100, 100_000], ids=["many", "large"])
@pytest.mark.parametrize("awaited", [True, False], ids=["awaited", "ignored"])
@on_a_loop
async def test_b1_memory_stays_flat_under_a_flood(awaited, size, rounds, figures):
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        flooding = procs.slice(ranks=0).spawn("flooding", Flooding)
        slow = procs.slice(ranks=1).spawn("slow", Slow)
        pid, _ = await slow.look.call_one()
        before = resident_bytes(pid)
        flood = flooding.flood.call_one(slow, rounds(0.5, 60), b"x" * size, 0.001, awaited)
        most_there = 0
        while not flood.done():
            await asyncio.wait([flood], timeout=0.1)
            most_there = max(most_there, resident_bytes(pid) - before)
        sent, refused, most_here = await flood
        _, taken = await slow.look.call_one()
        figures(
            f"{sent} sent, {taken} taken, {refused} refused; memory grew by {most_here >> 20} MiB at the sender and "
            f"{most_there >> 20} MiB at the receiver"
        )
        assert most_here < GROWTH_BYTES_MAX
        assert most_there < GROWTH_BYTES_MAX
        # Who waits for room is never refused; who does not is told, and nothing is lost in silence.
        assert (refused == 0) is awaited
        await flooding.stop()
        await slow.stop("the rest goes back")


@on_a_loop
async def test_b2_a_flood_delays_no_kill_and_no_stop(rounds, promised):
    """Of a third party, whether its host and owner, or what it hears from, are the flooded ones."""
    kills, stops = [], []
    async with this_host().spawn_procs({"ranks": 3}, restart=POLICY, supervise=handled) as procs:
        slow = procs.slice(ranks=0).spawn("slow", Slow)
        flooding = procs.slice(ranks=1).spawn("flooding", Flooding)
        third = procs.slice(ranks=2)
        mortal = third.spawn("mortal", Mortal)
        await slow.ready()
        await flooding.ready()
        flood = flooding.flood.call_one(slow, 3600, b"x" * 1000, 0.001, True)
        here = asyncio.ensure_future(keep_full(slow))
        for _ in range(rounds(10, 500)):
            await mortal.ready()
            pid = await mortal.pid.call_one()
            other = await third.spawn("other", Mortal)
            begin = time.perf_counter()
            await other.stop("not needed")
            stops.append(time.perf_counter() - begin)
            pending = mortal.sleep.call_one(600)
            await asyncio.sleep(0.005)
            begin = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(ActorDied):
                await pending
            kills.append(time.perf_counter() - begin)
        assert not here.done()
        assert not flood.done()
        here.cancel()
        # The flooded one itself does not first work off what waits.
        begin = time.perf_counter()
        await slow.stop("enough")
        of_itself = time.perf_counter() - begin
        flood.cancel()
        await flooding.stop()
    promised("kill", kills, 99, 0.05)
    promised("stop", stops, 99, 0.05)
    promised("stop of the flooded one itself, which gives back what waits", [of_itself], 100, 1.0)


async def keep_full(slow):
    """Send so that something always waits for room."""
    while True:
        await slow.take.broadcast(b"x" * 1000, 0.001)
        await asyncio.sleep(0)


def test_b3_a_slow_actor_does_not_delay_a_fast_one_on_the_same_connection(rounds, figures):
    count = rounds(500, 20_000)

    async def seconds_of(one):
        seconds = []
        for number in range(count):
            begin = time.perf_counter()
            assert await one.echo.call_one(number) == number
            seconds.append(time.perf_counter() - begin)
        return seconds

    async def main():
        async with this_host().spawn_procs() as procs:
            slow, fast = procs.spawn("slow", Slow), procs.spawn("fast", Slow)
            await fast.ready()
            await seconds_of(fast)
            idle = await seconds_of(fast)
            # Its mailbox is full, and much waits for room in it.
            for _ in range(3000):
                slow.take.broadcast(b"x", 0.01)
            beside = await seconds_of(fast)
            assert (await slow.states())[0].queued > 100, "it was full all the time"
            await slow.stop("the rest goes back")
        return idle, beside

    idle, beside = run(main())
    figures(f"alone {shown(idle)}; beside a full one {shown(beside)}; promised: p99 within 2 times")
    if rounds(short=False, long=True):
        assert percentile(beside, 99) <= 2 * percentile(idle, 99)
