"""The hosts of a cluster's job: a replica has one each, and one stands by. While training goes on, some are lost, and come back."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from roost import ActorDied
from roost.job import KubernetesJob, MeshSpec, SlurmJob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from typing import Self

    from roost import HostMesh
    from roost.ft import FaultTolerantJob
    from roost.job import HostStatus, Job

_NAME = "roost-demo"
_MINI_SLURM = Path(__file__).parents[2] / "scripts" / "mini_slurm.py"
_AT_ONCE_S = 2.0


class Nodes(ABC):
    """`async with SlurmNodes(16) as nodes`: a job with so many hosts and one more.

    Args:
        replicas: how many hosts train.
    """

    loss: ClassVar[str]
    """What the loss of one is called."""
    small_cluster: ClassVar[str]
    """Names the folder of the project's own small cluster, which goes with it; elsewhere the job lives in its usual place."""
    # The rank of the first one that may be lost.
    _first: ClassVar[int] = 0

    def __init__(self, replicas: int) -> None:
        self._small_cluster = os.environ.get(self.small_cluster)
        folder = None if self._small_cluster is None else Path(self._small_cluster, _NAME)
        # One that is lost is no reason to end: another comes in its place.
        self._job = self._job_of({"trainers": MeshSpec(replicas + 1, at_least=2)}, folder)
        self.folder = Path(self._job.folder)

    @abstractmethod
    def _job_of(self, meshes: dict[str, MeshSpec], folder: Path | None) -> Job:
        """The job that has them."""

    @abstractmethod
    async def _lose(self, host: HostStatus) -> None:
        """Lose one, and see to it that one comes in its place."""

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
    async def losing_some(self, job: FaultTolerantJob[None], every_s: float, seed: int) -> AsyncIterator[list[float]]:
        """Have a host on which a replica trains be lost every so often; it starts again, and is one of the job's again.

        Gives the times of that, in seconds since the epoch. None are lost elsewhere than in a small cluster.
        """
        times: list[float] = []
        stopped = asyncio.Event()
        task = asyncio.create_task(self._go_on(job, every_s, random.Random(seed), times, stopped))
        try:
            yield times
        finally:
            stopped.set()
            # One that is off is switched on again.
            await task

    async def _go_on(
        self,
        job: FaultTolerantJob[None],
        every_s: float,
        rng: random.Random,
        times: list[float],
        stopped: asyncio.Event,
    ) -> None:
        while self._small_cluster is not None and not await _is_set_within(stopped, every_s * (0.5 + rng.random())):
            host = await self._of_a_replica(job, rng)
            # Somebody has to have the trained state.
            if host is not None and host.rank >= self._first and len(job.trained) > 1:
                times.append(time.time())
                await self._lose(host)
                await self._state.more()

    async def _of_a_replica(self, job: FaultTolerantJob[None], rng: random.Random) -> HostStatus | None:
        """The host of a replica that trains; None when it does not answer just now."""
        if not job.trained:
            return None
        trainer = job.trainers.slice(replicas=rng.choice(sorted(job.trained)), procs=0)
        try:
            name = await asyncio.wait_for(trainer.node.call_one(), _AT_ONCE_S)
        except (TimeoutError, ActorDied):
            return None
        return next((host for host in (await self._job.status()).up() if host.host == name), None)

    async def _heard_of(self, host: HostStatus, lose: Awaitable[object]) -> None:
        """Done when the job knows of a loss."""
        events = self._job.events()
        # How it was before.
        await anext(events)
        await lose
        async for event in events:
            if event.kind == "host_lost" and event.rank == host.rank:
                return


class SlurmNodes(Nodes):
    """Nodes of a Slurm cluster; those of the small one lose their power."""

    loss = "power loss of a node"
    small_cluster = "MINI_SLURM"
    # The first one runs the job's script: Slurm ends a job whose script is gone when its node is back.
    _first = 1

    def _job_of(self, meshes: dict[str, MeshSpec], folder: Path | None) -> Job:
        return SlurmJob(meshes, name=_NAME, folder=folder, exclusive=True)

    async def _lose(self, host: HostStatus) -> None:
        await self._heard_of(host, self._switch("kill", host.host))
        await self._switch("boot", host.host)
        await self._job.resize("trainers", self._job.meshes["trainers"].hosts + 1)

    async def _switch(self, what: str, node: str) -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, _MINI_SLURM, what, self._small_cluster, node)
        if await process.wait():
            raise RuntimeError(f"{_MINI_SLURM.name} {what} {node} failed (see above)")


class Pods(Nodes):
    """Pods of the small Kubernetes cluster, whose files are this machine's; they are deleted, and Kubernetes makes them anew."""

    loss = "deletion of a pod"
    small_cluster = "MINI_KUBERNETES"

    def _job_of(self, meshes: dict[str, MeshSpec], folder: Path | None) -> Job:
        threads = {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}
        return KubernetesJob(meshes, name=_NAME, folder=folder, image="roost", env=threads, cwd=os.getcwd())

    async def _lose(self, host: HostStatus) -> None:
        namespace = (await self._job.status()).ids[0].partition("/")[0]
        await self._heard_of(host, asyncio.to_thread(_delete, host.host, namespace))


def _delete(pod: str, namespace: str) -> None:
    from kubernetes import client, config

    config.load_kube_config()
    client.CoreV1Api().delete_namespaced_pod(pod, namespace)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
