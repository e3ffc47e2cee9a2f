"""Lanes between hosts: connections that are cut while their session goes on, and parts too large for a frame."""

import asyncio
import contextlib
import socket
import time

import numpy as np
import pytest
import uvloop
from apart import apart, lanes
from apart_proxy import Proxy, connect
from leftovers import leaving_nothing

from roost import Actor, CallTimeoutError, endpoint, process, this_host
from roost._roost import FarLane

MIB = 1 << 20


class Recorder(Actor):
    """What came, in order."""

    def __init__(self):
        self.seen = []

    @endpoint
    async def add(self, number, *parts):
        self.seen.append((number, [int(part.sum()) for part in parts]))
        return number

    @endpoint
    async def echo(self, value):
        return value

    @endpoint
    async def take(self):
        seen, self.seen = self.seen, []
        return seen

    @endpoint
    async def write(self, array):
        array += 1
        return int(array[0]), int(array[-1])

    @endpoint
    async def tell(self, other, count):
        """Numbers to an actor of another proc."""
        for number in range(count):
            other.add.broadcast(number)
        return await other.echo.call_one("all of them")

    @endpoint
    async def cut(self):
        """The lanes that this proc has dialled are cut."""
        for lane in lanes.values():
            if hasattr(lane, "cut"):
                lane.cut()


@contextlib.contextmanager
def hosts(factory=asyncio.new_event_loop):
    with leaving_nothing(), apart(), asyncio.Runner(loop_factory=factory) as runner:
        yield runner


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def job(request):
    with hosts(uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop) as runner:
        yield runner


@pytest.fixture(scope="module")
def procs(job):
    async def spawned():
        return await this_host().spawn_procs({"p": 2}, preload=["apart_procs"])

    return job.run(spawned())


@pytest.fixture
def recorders(job, procs):
    mesh = procs.spawn("recorders", Recorder)
    yield mesh

    async def stopped():
        await mesh.stop()

    job.run(stopped())


def lane_to(mesh):
    return lanes[mesh._on._procs[0]]


def numbers(size, dtype=np.uint8):
    return np.resize(np.arange(251, dtype=dtype), size)


def test_nothing_is_lost_doubled_or_swapped_when_the_connection_is_cut(job, recorders):
    async def main():
        one = recorders.slice(p=0)
        replies = []
        for number in range(2_000):
            if number % 7:
                replies.append(one.add.call_one(number))
            else:
                one.add.broadcast(number)
            if number % 211 == 0:
                lane_to(one).cut()
            if number % 50 == 0:
                await asyncio.sleep(0.001)
        assert await asyncio.gather(*replies) == [number for number in range(2_000) if number % 7]
        assert [number for number, _ in await one.take.call_one()] == list(range(2_000))

    job.run(main())


def test_a_cut_between_two_procs_is_mended_too(job, procs, recorders):
    async def main():
        cutters = procs.spawn("cutters", Recorder)
        ways = (recorders.slice(p=0), recorders.slice(p=1))
        for sender, receiver in (ways, ways[::-1], ways):
            told = sender.tell.call_one(receiver, 300)
            await cutters.cut.call()
            assert await told == "all of them"
            assert [number for number, _ in await receiver.take.call_one()] == list(range(300))
        await cutters.stop()

    job.run(main())


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_cut_at_any_byte_of_an_exchange(job, recorders, way):
    async def main():
        one = recorders.slice(p=0)
        lane = lane_to(one)
        # A greeting has 88 bytes; then come a call and a broadcast, or an answer.
        budgets = range(400) if way == "there" else range(200)
        async with Proxy(lane.port) as proxy:
            usual, lane.port = lane.port, proxy.port
            for number in range(0, 2 * len(budgets), 2):
                budget = budgets[number // 2]
                proxy.allow(way, budget)
                lane.cut()
                reply = one.add.call_one(number, np.full(7, number % 7, np.uint8))
                one.add.broadcast(number + 1)
                assert await reply == number
            lane.port = usual
            lane.cut()
        seen = await one.take.call_one()
        assert [number for number, _ in seen] == list(range(2 * len(budgets)))
        assert proxy.cuts > len(budgets) * 0.8

    job.run(main())


def test_a_message_larger_than_any_frame(job, recorders):
    async def main():
        one = recorders.slice(p=0)
        array = numbers(70 * MIB)
        first, last = await one.write.call_one(array)
        assert (first, last) == (array[0] + 1, array[-1] + 1)
        assert array[0] == 0  # the receiver's part is its own
        got = await one.echo.call_one(array)
        assert np.array_equal(got, array)
        got += 1
        await one.add.call_one(1, *(np.ones(MIB - 64, np.uint8) for _ in range(70)))
        assert await one.take.call_one() == [(1, [MIB - 64] * 70)]
        parts = [b"x" * 300_000, "y" * (30 * MIB), [numbers(size) for size in (1, 40_000, 270_000, 3 * MIB)]]
        got = await one.echo.call_one(parts)
        assert got[:2] == parts[:2]
        assert all(np.array_equal(a, b) for a, b in zip(got[2], parts[2], strict=True))

    job.run(main())


def test_each_actor_of_a_proc_gets_a_part_of_its_own(job, procs):
    async def main():
        mesh = procs.slice(p=0).options(per_proc={"x": 2}).spawn("both", Recorder)
        for size in (100, 100_000, 3 * MIB):
            array = numbers(size)
            assert list(await mesh.write.call(array)) == [(1, int(array[-1]) + 1)] * 2
        await mesh.stop()

    job.run(main())


def test_a_cut_in_the_middle_of_a_large_part(job, recorders):
    async def main():
        one = recorders.slice(p=0)
        lane = lane_to(one)
        array = numbers(40 * MIB)
        async with Proxy(lane.port) as proxy:
            usual, lane.port = lane.port, proxy.port
            for way in ("there", "back"):
                for budget in (300, 200_000, 5 * MIB + 17, 39 * MIB):
                    proxy.allow(way, budget)
                    lane.cut()
                    got = await one.echo.call_one(array)
                    assert np.array_equal(got, array)
            lane.port = usual
            lane.cut()
            assert proxy.cuts == 8

    job.run(main())


def test_what_is_for_others_goes_between_the_pieces(job, procs, recorders):
    async def main():
        one = recorders.slice(p=0)
        other = procs.slice(p=0).spawn("other", Recorder)
        await other.take.call_one()
        large = numbers(256 * MIB)
        slow = one.add.call_one(0, large)
        behind = [one.add.call_one(number) for number in range(1, 20)]
        began = time.monotonic()
        assert await other.echo.call_one("quick") == "quick"
        quick = time.monotonic() - began
        assert not slow.done()
        assert await asyncio.gather(slow, *behind) == list(range(20))
        assert quick < (time.monotonic() - began) / 2
        assert [number for number, _ in await one.take.call_one()] == list(range(20))
        await other.stop()

    job.run(main())


def test_a_large_call_that_is_cancelled_stops_travelling(job, recorders):
    async def main():
        one = recorders.slice(p=0)
        slow = one.add.call_one(0, numbers(200 * MIB))
        behind = one.add.call_one(1)
        await asyncio.sleep(0.01)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await behind == 1
        assert [number for number, _ in await one.take.call_one()] in ([1], [0, 1])
        assert await one.add.call_one(2, numbers(3 * MIB)) == 2

    job.run(main())


def test_deadlines_travel_in_the_clock_of_the_job(job, recorders):
    async def main():
        one = recorders.slice(p=0)
        node = process.running().node
        hour = 3_600 * 10**9
        assert await one.options(timeout=10).echo.call_one(1) == 1
        # As if this host's clock were an hour behind: what we write is in the job's, and theirs is ours.
        node.set_clock(-hour)
        with pytest.raises(CallTimeoutError):
            await one.options(timeout=0.2).echo.call_one(1)
        assert await one.echo.call_one(1) == 1
        node.set_clock(0)
        assert await one.options(timeout=10).echo.call_one(1) == 1

    job.run(main())


def test_an_old_connection_that_arrives_late_is_closed(job, recorders):
    async def main():
        one = recorders.slice(p=0)
        lane = lane_to(one)
        assert await one.echo.call_one(1) == 1
        late, end = socket.socketpair()
        with end:
            lane.runtime.node.adopt_far(lane.proc, 0, FarLane(late.detach(), 77, lane.connections, True), None)
            assert end.recv(1) == b""
        async with Proxy(lane.port) as proxy:
            usual, lane.port = lane.port, proxy.port
            lane.cut()
            assert await one.echo.call_one(1) == 1
            greeting = proxy.greeting
            lane.port = usual
            lane.cut()
            assert await one.echo.call_one(1) == 1
            # The receiver sees by its number that it is old; the session goes on over the next.
            reader, writer = await connect(lane.port)
            writer.write(greeting)
            assert len(await reader.read()) == 64
            writer.close()
        assert await one.echo.call_one(2) == 2

    job.run(main())


def test_what_waits_for_a_dead_peer_ends(job):
    async def main():
        procs = await this_host().spawn_procs({"p": 1}, preload=["apart_procs"])
        mesh = procs.spawn("mortal", Recorder)
        await mesh.take.call_one()
        waiting = mesh.add.call_one(0, numbers(100 * MIB)), mesh.add.call_one(1)
        await asyncio.sleep(0.005)
        await procs.stop()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, (Exception, int)) for one in done)

    job.run(main())
