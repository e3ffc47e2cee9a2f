"""S3. A stop is over in time, however many there are and whatever they do."""

import asyncio
import os
import signal
import time

import pytest
from leftovers import eventually, stat
from mortal import Mortal

from roost import Actor, Config, endpoint, run, this_host
from roost.errors import StoppedError

pytestmark = pytest.mark.usefixtures("nothing_left")


class Busy(Actor):
    """One of many; it tells when it was cleaned up."""

    @endpoint
    async def work(self):
        await asyncio.sleep(600)

    async def __cleanup__(self, exc):
        await asyncio.sleep(0)


def test_s3_a_thousand_actors_stop_at_once(rounds, promised):
    async def main():
        procs = await this_host().spawn_procs({"procs": 4})
        actors = await procs.options(per_proc={"actors": 250}).spawn("actors", Busy)
        works = [actors.work.call() for _ in range(2)]
        await asyncio.sleep(0.1)
        begin = time.perf_counter()
        await actors.stop("enough")
        of_actors = time.perf_counter() - begin
        for work in works:
            outcomes = await work.outcomes()
            assert [type(one) for one in outcomes] == [StoppedError] * 1000
        again = await procs.options(per_proc={"actors": 250}).spawn("actors", Busy)
        begin = time.perf_counter()
        await procs.stop("enough")
        assert all(state.state == "stopped" for state in await again.states())
        return of_actors, time.perf_counter() - begin

    times = [run(main()) for _ in range(rounds(1, 10))]
    promised("1,000 actors", [of_actors for of_actors, _ in times], 100, 2.0)
    promised("4 procs with 1,000 actors", [of_procs for _, of_procs in times], 100, 2.0)


def test_s3_procs_that_do_nothing_for_it_are_ended(rounds, promised):
    """Each is stuck in C and deaf to SIGTERM: it takes all of the grace, and SIGKILL."""
    count, config = rounds((6, Config(grace_s=0.4, sigterm_s=0.3)), (64, Config()))

    async def main():
        async with this_host().spawn_procs({"ranks": count}) as procs:
            mortals = procs.spawn("mortals", Mortal)
            pids = list(await mortals.pid.call())
            deaf = mortals.deaf.call(600)
            while not all(state.running for state in await mortals.states()):
                pass
            begin = time.perf_counter()
            await procs.stop("enough")
            seconds = time.perf_counter() - begin
            # Their parent takes their status in a moment.
            eventually(lambda: all(stat(pid) is None for pid in pids))
            assert all(stat(pid) is None for pid in pids)
            assert [state.failure.signal for state in await procs.states()] == [signal.SIGKILL] * count
            assert [type(one) for one in await deaf.outcomes()] == [StoppedError] * count
        return seconds

    seconds = run(main(), config=config)
    assert seconds >= config.grace_s + config.sigterm_s - 0.1
    promised(f"{count} procs", [seconds], 100, 12.0)


def test_s3_actors_stop_in_reverse_order_and_owners_after_what_they_own(tmp_path):
    path = tmp_path / "order"

    async def main():
        async with this_host().spawn_procs() as procs:
            for name in ("first", "second"):
                tree = procs.spawn(name, Tree, str(path), name)
                await tree.grow.call_one(2)

    run(main())
    ends = path.read_text().split()
    assert ends == [f"{name}{below}" for name in ("second", "first") for below in ("/down/down", "/down", "")]


class Tree(Actor):
    """Owns another in a proc of its own, so many levels deep; notes its end."""

    def __init__(self, path, name):
        self.path, self.name = path, name

    @endpoint
    async def grow(self, depth):
        if depth:
            procs = this_host().spawn_procs()
            await procs.spawn("tree", Tree, self.path, f"{self.name}/down").grow.call_one(depth - 1)

    async def __cleanup__(self, exc):
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{self.name}\n".encode())
        os.close(file)
