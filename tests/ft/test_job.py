"""Whole jobs, with real processes that die."""

import asyncio
import os
import signal
from collections import Counter
from functools import partial

import pytest
from toys import Toy

from roost.ft import DiLoCo, EveryStep, FaultTolerantJob, LocalSGD

pytest.importorskip("torch")

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_left")]

SYNCS = {
    "every step": EveryStep(),
    "LocalSGD": LocalSGD(5),
    "DiLoCo": DiLoCo(10),
    "streaming DiLoCo": DiLoCo(10, fragments=("0", "1")),
}


async def digests(job):
    return set((await job.trainers.digest.call()).values())


async def reached(job, step, replica=0):
    """Wait until a replica is at a step."""
    one = job.trainers.slice(replicas=replica, procs=0)
    while not (seen := await one.items.call_one()) or seen[-1][0] < step:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", SYNCS)
async def test_without_failures_all_replicas_end_together_with_equal_weights(kind):
    async with FaultTolerantJob(Toy, replicas=2, steps=20, sync=SYNCS[kind]) as job:
        report = await job.run()
        assert len(await digests(job)) == 1
    assert report.steps == len(report.losses) == 20
    assert set(report.participants) == {2}
    assert report.ended == (20, 20)
    assert (report.incidents, report.skipped, report.lost_steps) == ((), (), 0)


async def test_data_that_does_not_divide_is_handed_out_once_and_all_end_together():
    async with FaultTolerantJob(Toy, replicas=4, data=range(97), sync=EveryStep()) as job:
        report = await job.run()
        seen = Counter(item for items in (await job.trainers.items.call()).values() for _, item in items)
        assert len(await digests(job)) == 1
    assert seen == Counter(range(97))
    assert report.skipped == ()
    assert len(set(report.ended)) == 1


async def test_data_that_does_not_divide_with_fragments():
    data, sync = range(47), DiLoCo(4, fragments=("0", "1"))
    async with FaultTolerantJob(Toy, replicas=2, data=data, sync=sync) as job:
        report = await job.run()
        seen = Counter(item for items in (await job.trainers.items.call()).values() for _, item in items)
        assert len(await digests(job)) == 1
    assert seen == Counter(data)
    assert report.skipped == ()
