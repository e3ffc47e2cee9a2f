"""Forked DataLoader workers beside Roost's descriptors and shared memory."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from leftovers import eventually, started_here, stat
from loading import Loading
from loops import handled, on_a_loop

from roost import ActorDied, this_host

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(120)]


def array_of(seed):
    return np.random.default_rng(seed).integers(0, 255, 4 << 20, np.uint8)


@on_a_loop
async def test_workers_read_what_their_proc_was_sent_while_more_arrives():
    async with this_host().spawn_procs({"ranks": 2}, preload=["torch"]) as procs:
        loading = procs.spawn("loading", Loading)
        await loading.start.call(array_of(1))
        expected = int(array_of(1)[:64_000].sum())
        for seed in range(2, 8):
            other = array_of(seed)
            # A worker that saw the next message's bytes in place of its own would add up to something else.
            totals = loading.total.call()
            echoes = [loading.echo.call(other) for _ in range(3)]
            assert list(await totals) == [expected] * 2
            for echo in echoes:
                assert all((one == other + np.uint8(1)).all() for one in await echo)


@on_a_loop
async def test_a_killed_proc_is_heard_at_once_and_takes_its_workers_with_it():
    async with this_host().spawn_procs(preload=["torch"], supervise=handled) as procs:
        loading = procs.spawn("loading", Loading)
        workers = await loading.start.call_one(array_of(1))
        assert all(stat(pid) for pid in workers)
        os.kill(await loading.pid.call_one(), signal.SIGKILL)
        with pytest.raises(ActorDied):
            await loading.total.call_one()
        assert eventually(lambda: not any(stat(pid) for pid in workers), 2.0)


DRIVER = """
import sys
sys.path[:] = {path!r}
import asyncio, numpy as np
from loading import Loading
from roost import this_host

async def main():
    loading = this_host().spawn_procs({{"ranks": 2}}, preload=["torch"]).spawn("loading", Loading)
    workers = await loading.start.call(np.ones(4 << 20, np.uint8))
    print(*(pid for pids in workers for pid in pids), flush=True)
    while True:
        await loading.total.call()

asyncio.run(main())
"""


def test_workers_are_gone_after_their_driver_was_killed():
    program = [sys.executable, "-c", DRIVER.format(path=sys.path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as driver:
        workers = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(workers) == 4
        assert all(stat(pid) for pid in workers)
        driver.kill()
    assert eventually(lambda: not started_here(), 2.0)
    assert not any(stat(pid) for pid in workers)
