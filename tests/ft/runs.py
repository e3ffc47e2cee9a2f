"""How tests run a job with a plan of what goes wrong beside it."""

import asyncio
import itertools
from contextlib import asynccontextmanager
from functools import partial

from toys import Toy

from roost.ft import DiLoCo, EveryStep, FaultTolerantJob, LocalSGD
from roost.testing import Failures

PACED = partial(Toy, pace_s=0.01)
SYNCS = {
    "every step": EveryStep(),
    "LocalSGD": LocalSGD(5),
    "DiLoCo": DiLoCo(10),
    "streaming DiLoCo": DiLoCo(10, fragments=("0", "1")),
}


class Until:
    """Data without an end, until a test has seen what it wanted."""

    def __init__(self):
        self.is_over = False

    def __iter__(self):
        return itertools.takewhile(lambda _: not self.is_over, itertools.count())


async def digests(job):
    return set((await job.trainers.digest.call()).values())


async def trained(job, count, replicas=None):
    """Wait until so many replicas, or just these, have the state."""
    while len(job.trained) < count or (replicas is not None and not replicas <= job.trained):
        await asyncio.sleep(0.005)


async def progressed(job, steps):
    """Wait until so many more steps count."""
    seen = job.progress
    while job.progress < seen + steps:
        await asyncio.sleep(0.005)


async def beside(running, plan):
    """Do something while a job runs: what it gives. A run that is over before is its own error."""
    planned = asyncio.ensure_future(plan)
    await asyncio.wait({running, planned}, return_when=asyncio.FIRST_COMPLETED)
    if not planned.done():
        planned.cancel()
        await running
        raise AssertionError("training was over before the plan was")
    return await planned


@asynccontextmanager
async def ran(plan, trainer=PACED, *, cut_s=1.0, **options):
    """A job that has trained until a plan was done, and its report; its actors are still there, with equal weights."""
    until = Until()
    async with FaultTolerantJob(trainer, data=until, **options) as job:
        running = asyncio.create_task(job.run())
        async with Failures(job, cut_s=cut_s) as failures:
            await beside(running, plan(job, failures))
            until.is_over = True
            report = await running
        assert len(await digests(job)) == 1
        assert set(report.ended) == {report.steps} == {len(report.losses)}
        yield job, report
