"""One run of the demo: a job, failures beside it, and what was seen of both."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from trainer import TextTrainer

from roost.failure import Restart
from roost.ft import DiLoCo, EveryStep, FaultTolerantJob, Report
from roost.testing import Failures

if TYPE_CHECKING:
    from pathlib import Path

    from nodes import Nodes
    from settings import Settings

    from report import Progress
    from roost import HostMesh
    from roost.ft.failures import Injected

_LOOK_S = 0.1
# Failures come every few seconds and hit anybody.
_RESTART = Restart(limit=1000, within_s=60, backoff_s=(0.0, 0.2), on="any_host")


@dataclass
class Run:
    """What a run was."""

    settings: Settings
    report: Report
    held_out: float
    seconds: float
    failures: list[tuple[float, str]]
    """(when, in seconds since the epoch, of which kind)."""
    live: list[tuple[float, int]] = field(default_factory=list)
    """(seconds since the beginning, how many replicas trained)."""
    began_at: float = 0.0

    @property
    def final_loss(self) -> float:
        """The mean training loss of the last steps."""
        last = self.report.losses[-self.settings.last_steps :]
        return sum(last) / len(last)


async def train(
    settings: Settings, files: tuple[Path, Path], failing: bool, bar: Progress, nodes: Nodes | None = None
) -> Run:
    """Train once, with failures or without, on this machine or on a cluster's hosts."""
    live: list[tuple[float, int]] = []
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        job = await enter(_job(settings, files, None if nodes is None else await enter(nodes.attached())))
        began, began_at = time.monotonic(), time.time()
        injected: list[Injected] = []
        losses: list[float] = []
        if failing:
            injected = (await enter(Failures(job, every_s=settings.failure_every_s, seed=settings.seed))).injected
        if failing and nodes is not None:
            losses = await enter(nodes.losing_some(job, settings.host_loss_every_s, settings.seed))
        running = asyncio.create_task(job.run())
        told = 0
        while not running.done():
            await asyncio.wait({running}, timeout=_LOOK_S)
            live.append((time.monotonic() - began, len(job.trained)))
            for one in injected[told:]:
                bar.tell(f"on purpose: {one.kind}" + ("" if one.replica is None else f", to replica {one.replica}"))
            told = len(injected)
            bar.show(job.progress, len(job.trained), len(injected) + len(losses))
        report = await running
        seconds = time.monotonic() - began
        held_out = await job.trainers.slice(replicas=0, procs=0).test.call_one()
    lost = "" if nodes is None else nodes.loss
    failures = sorted([*((one.at, one.kind) for one in injected), *((at, lost) for at in losses)])
    return Run(settings, report, held_out, seconds, failures, live, began_at)


def _job(settings: Settings, files: tuple[Path, Path], hosts: HostMesh | None) -> FaultTolerantJob[None]:
    return FaultTolerantJob(
        partial(TextTrainer, settings, *files), replicas=settings.replicas, steps=settings.steps,
        sync=EveryStep() if settings.every == 1 else DiLoCo(settings.every), detect_within_s=settings.detect_within_s,
        restart=_RESTART, hosts=hosts, spare_hosts=0 if hosts is None else len(hosts) - settings.replicas,
    )  # fmt: skip
