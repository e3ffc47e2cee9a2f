"""The nodes of a Slurm cluster: the replicas' hosts, of which one stands by. Those of the project's own small Slurm lose their power."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from roost import ActorDied
from roost.job import MeshSpec, SlurmJob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Self

    from roost import HostMesh
    from roost.ft import FaultTolerantJob
    from roost.job import HostStatus

_MINI_SLURM = Path(__file__).parents[2] / "scripts" / "mini_slurm.py"
_AT_ONCE_S = 2.0


class Nodes:
    """`async with Nodes(16) as nodes`: a Slurm job with so many nodes and one more.

    Args:
        replicas: how many nodes train.
    """

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        # The small Slurm's folder, which goes with it; elsewhere the job's own place.
        self._mini_slurm = os.environ.get("MINI_SLURM")
        folder = None if self._mini_slurm is None else Path(self._mini_slurm, "roost-demo")
        # A node that is lost is no reason to end: another comes in its place.
        trainers = MeshSpec(replicas + 1, at_least=2)
        self._job = SlurmJob({"trainers": trainers}, name="roost-demo", folder=folder, exclusive=True)
        self.folder = Path(self._job.folder)

    async def __aenter__(self) -> Self:
        await self._job.apply()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._job.kill()

    @asynccontextmanager
    async def attached(self) -> AsyncIterator[HostMesh]:
        """All that are up."""
        async with await self._job.state() as self._state:
            yield self._state.trainers

    @asynccontextmanager
    async def losing_power(self, job: FaultTolerantJob[None], every_s: float, seed: int) -> AsyncIterator[list[float]]:
        """Have a node on which a replica trains die every so often; it starts again, and is one of the job's again.

        Gives the times of that, in seconds since the epoch. Does nothing where nobody but people can cut a node's power.
        """
        times: list[float] = []
        folder = self._mini_slurm
        if folder is None:
            yield times
            return
        stopped = asyncio.Event()
        task = asyncio.create_task(self._go_on(job, folder, every_s, random.Random(seed), times, stopped))
        try:
            yield times
        finally:
            stopped.set()
            # One that is off is switched on again.
            await task

    async def _go_on(
        self, job: FaultTolerantJob[None], folder: str, every_s: float, rng: random.Random, times: list[float],
        stopped: asyncio.Event,
    ) -> None:  # fmt: skip
        while not await _is_set_within(stopped, every_s * (0.5 + rng.random())):
            host = await self._of_a_replica(job, rng)
            # The first node runs the job's script: Slurm ends a job whose script is gone when its node is back.
            if host is not None and host.rank:
                times.append(time.time())
                await self._die(host, folder)

    async def _of_a_replica(self, job: FaultTolerantJob[None], rng: random.Random) -> HostStatus | None:
        """The node of a replica that trains; None when it does not answer just now."""
        if not job.trained:
            return None
        trainer = job.trainers.slice(replicas=rng.choice(sorted(job.trained)), procs=0)
        try:
            name = await asyncio.wait_for(trainer.node.call_one(), _AT_ONCE_S)
        except (TimeoutError, ActorDied):
            return None
        return next(host for host in (await self._job.status()).up() if host.host == name)

    async def _die(self, host: HostStatus, folder: str) -> None:
        events = self._job.events()
        await _mini_slurm("kill", folder, host.host)
        async for event in events:
            if event.kind == "host_lost" and event.rank == host.rank:
                break
        await _mini_slurm("boot", folder, host.host)
        await self._job.resize("trainers", self._job.meshes["trainers"].hosts + 1)
        await self._state.more()


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def _mini_slurm(what: str, folder: str, node: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, _MINI_SLURM, what, folder, node)
    if await process.wait():
        raise RuntimeError(f"{_MINI_SLURM.name} {what} {node} failed (see above)")
