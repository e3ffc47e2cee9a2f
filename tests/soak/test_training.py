"""Training that lives long, under failures without end: it never begins anew, nothing of it grows, and it learns what it would have."""

import asyncio
import os
import statistics
import sys
from pathlib import Path

import pytest
from leftovers import descriptors
from loops import on_a_loop
from times import percentile

from roost import Restart
from roost.ft import DiLoCo, FaultTolerantJob
from roost.ft.failures import KINDS
from roost.ft.incidents import PHASES
from roost.testing import Failures

sys.path.append(os.path.join(os.path.dirname(__file__), "../ft"))

from runs import PACED, Until, beside, digests, trained

pytest.importorskip("torchft")

OPTIONS = {
    "replicas": 3,
    "sync": DiLoCo(10),
    "restart": Restart(limit=1_000_000, within_s=60, backoff_s=(0.0, 0.1)),
    "detect_within_s": 2,
}
# Losses of so many steps are compared, at most.
LAST = 100
# Caches and tables that are bounded fill in the first failures, which are not counted.
GROWTH = 1.1


def sizes():
    """What the job's process has, and what lies in shared memory."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    shared = os.statvfs("/dev/shm")
    return {
        "resident bytes": resident,
        "descriptors": len(descriptors()),
        "shared memory, blocks": shared.f_blocks - shared.f_bfree,
    }


async def lived(job, every_s, seconds):
    """Some seconds under failures; what there is once all is well again."""
    async with Failures(job, every_s=every_s, kinds=KINDS, seed=1, slow_s=0.2):
        await asyncio.sleep(seconds)
    await trained(job, OPTIONS["replicas"])
    return sizes()


async def undisturbed(steps):
    """The losses of a run without failures."""
    async with FaultTolerantJob(PACED, steps=steps, **OPTIONS) as job:
        return (await job.run()).losses


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_failures_without_end(request, figures, promised):
    if not request.config.getoption("--long"):
        # Failures as dense as a short form wants end all replicas at once, and with them the run.
        pytest.skip("an hour of training: make soak-training")
    seconds, every_s = 3600, 5.0
    until = Until()
    async with FaultTolerantJob(PACED, data=until, **OPTIONS) as job:
        running = asyncio.create_task(job.run())
        await beside(running, trained(job, OPTIONS["replicas"]))
        before = await beside(running, lived(job, every_s, seconds / 4))
        after = await beside(running, lived(job, every_s, seconds))
        until.is_over = True
        report = await running
        assert len(await digests(job)) == 1
    assert set(report.ended) == {report.steps} == {len(report.losses)}
    back = [one for one in report.incidents if "first_step" in one.phases]
    assert len(back) >= 500
    figures(
        f"{len(report.incidents)} incidents, {report.steps} steps, {report.lost_steps} lost; load {os.getloadavg()[0]:.1f}"
    )
    for phase in PHASES:
        times = sorted(one.phases[phase] for one in back if phase in one.phases)
        figures(f"{phase}: median {1000 * percentile(times, 50):.0f} ms, p95 {1000 * percentile(times, 95):.0f} ms")
    promised("survivors commit", [one.survivors_committed for one in back if one.survivors_committed], 95, 0.5)
    promised("back with equal weights", [one.phases["first_step"] for one in back], 95, 2.0)
    for what, small in before.items():
        figures(f"{what} of the job's process: {small}, then {after[what]}")
        assert after[what] < GROWTH * small + 16, what
    steps = min(report.steps, 5000)
    last = slice(max(steps // 2, steps - LAST), steps)
    floor = statistics.fmean((await undisturbed(steps))[last])
    found = statistics.fmean(report.losses[last])
    figures(f"loss before step {steps}: {found:.4f}, without failures {floor:.4f}")
    assert found < 1.5 * floor + 0.01
