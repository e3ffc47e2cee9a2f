"""`JobState`: a job's meshes of hosts, attached."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from roost import process
from roost.attaching import attach_named
from roost.errors import HostLostError, RoostError
from roost.forwarding import forwarded
from roost.host_mesh import HostMesh
from roost.job.sync import push
from roost.replying import reply_of

if TYPE_CHECKING:
    from typing import Self

    from roost.events import EventStream
    from roost.job.job import Job
    from roost.job.knowing import Agent
    from roost.job.status import HostStatus, JobStatus
    from roost.reply import Reply

__all__ = ["JobState", "attached", "open_state"]

# How long hosts that listen have to let this program in. One that was killed may be their driver still, for its lease.
_ATTACH_S = 60.0


class JobState(Mapping[str, HostMesh]):
    """A job's meshes of hosts, by name: `hosts.trainers`, or `hosts["trainers"]`. Leaving its `async with` lets go of them."""

    job: Job
    """The job."""
    restarts: int
    """How often the scheduler had started it again when these hosts were attached."""

    def __init__(self, job: Job, restarts: int, key_file: str) -> None:
        self.job, self.restarts = job, restarts
        self._key_file = key_file
        self._meshes: dict[str, HostMesh] = {}
        # All that were attached, with what was known of their hosts then; and where those listen.
        self._attached: list[tuple[HostMesh, list[HostStatus]]] = []
        self._is_looked_after = False
        self._known: set[Agent] = set()
        self._entered = AsyncExitStack()

    def __getitem__(self, name: str) -> HostMesh:
        return self._meshes[name]

    def __getattr__(self, name: str) -> HostMesh:
        try:
            return self.__dict__["_meshes"][name]  # type: ignore[no-any-return]  # what the constructor put there
        except KeyError:
            known = ", ".join(self.__dict__.get("_meshes", ()))
            raise AttributeError(f"the job has no mesh {name!r}: it has {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._meshes)

    def __len__(self) -> int:
        return len(self._meshes)

    def __repr__(self) -> str:
        return f"JobState({self._meshes})"

    async def __aenter__(self) -> Self:
        try:
            for mesh in self._meshes.values():
                await self._entered.enter_async_context(mesh)
        except BaseException:
            # Nobody leaves what was not entered: those that were go, and another program may drive the job.
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        try:
            await self._entered.__aexit__(kind, error, traceback)  # type: ignore[arg-type]  # it is one
        finally:
            self.job._driving.close()

    def __enter__(self) -> Self:
        runtime = process.current()
        runtime.refuse_on_loop("with", "async with")
        return runtime.run_elsewhere(self.__aenter__())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        process.current().run_elsewhere(self.__aexit__(kind, error, traceback))

    def more(self, *, timeout: float | None = None) -> Reply[dict[str, HostMesh]]:
        """Attach the hosts that have come since, after a `resize`, say: meshes of those alone, by name; none for a mesh without such.

        What may move when its host is lost (`Restart(on="any_host")`) finds room there, too.

        Args:
            timeout: as of `state`.

        Raises:
            JobError: by the reply: as of `ready`.
        """
        return reply_of(self._more(timeout))

    async def _more(self, timeout_s: float | None) -> dict[str, HostMesh]:
        found = await self._attach(await self.job._ready(None, timeout_s))
        for mesh in found.values():
            await self._entered.enter_async_context(mesh)
        return found

    def forward(self, mesh: str, rank: int, port: int, *, local_port: int = 0) -> AbstractAsyncContextManager[int]:
        """A port of a host, here: with `async with hosts.forward("trainers", 0, 6006) as port:`, 127.0.0.1:port is its 127.0.0.1:6006.

        Connections go through this program's own to that host, so no port of it has to be reachable.

        Args:
            mesh: the mesh's name.
            rank: which of its hosts.
            port: its port.
            local_port: the port here; 0 lets the system choose.
        """
        return forwarded(self[mesh].slice(hosts=rank), port, local_port)

    async def _attach(self, status: JobStatus) -> dict[str, HostMesh]:
        """Meshes of the hosts that are up and have not been attached.

        Raises:
            HostLostError: one does not let this program in.
        """
        meshes: dict[str, HostMesh] = {}
        attached: list[tuple[HostMesh, list[HostStatus]]] = []
        runtime = process.current()
        try:
            for name in self.job.meshes:
                hosts = [one for one in status.up(name) if (one.address, one.agent) not in self._known]
                if not hosts:
                    continue
                mesh = meshes[name] = self.job._attach(name, hosts, self._key_file)
                mesh._record().explain = partial(_explanation, self.job, hosts)
                attached.append((mesh, hosts))
                runtime.keep(_note_losses(self.job, mesh.events(), hosts))
            await asyncio.gather(*(mesh.ready() for mesh in meshes.values()))
            if self.job._sync is not None:
                await asyncio.gather(*(push(mesh, self.job._sync, self.job._sync) for mesh in meshes.values()))
        except BaseException as error:
            if isinstance(error, HostLostError) and (troubles := self.job._troubles()):
                error.args = (f"{error}; {'; '.join(troubles)}", *error.args[1:])
            await asyncio.gather(*(mesh.stop("not all hosts of the job are there") for mesh in meshes.values()))
            raise
        self._known.update((one.address, one.agent) for one in status.up())
        self._attached += attached
        if not self._is_looked_after:
            self._is_looked_after = True
            runtime.keep(self._look_after())
        return meshes

    async def _look_after(self) -> None:
        """See to it that something is known of a host when it is lost, for then there is no time to ask; and hear of who is gone."""
        while there := [(mesh, hosts) for mesh, hosts in self._attached if not mesh._record().is_over]:
            ends = asyncio.gather(*(mesh.wait() for mesh, _ in there))
            with suppress(TimeoutError):
                await asyncio.wait_for(ends, self.job._keep_s)
                continue
            with suppress(RoostError):
                await self.job._status()
                for mesh, hosts in there:
                    _let_go_of_the_gone(self.job, mesh, hosts)
        self._is_looked_after = False


def attached(name: str, hosts: list[HostStatus], key_file: str) -> HostMesh:
    """A mesh of hosts whose agents listen; it has yet to be waited for."""
    addresses = [one.address for one in hosts]
    return attach_named(name, addresses, key_file=key_file, timeout=_ATTACH_S, wait_for=len(hosts))


async def open_state(job: Job, status: JobStatus, key_file: str) -> JobState:
    """Attach all hosts that are up.

    Raises:
        HostLostError: one does not let this program in.
    """
    state = JobState(job, status.restarts, key_file)
    state._meshes = await state._attach(status)
    return state


def _let_go_of_the_gone(job: Job, mesh: HostMesh, hosts: list[HostStatus]) -> None:
    """Hosts that are not there any more need not be silent for long to be lost."""
    record = mesh._record()
    for rank, host in enumerate(hosts):
        if why := job._is_gone(host):
            record.is_gone(rank, why)


def _explanation(job: Job, hosts: list[HostStatus], rank: int) -> str:
    return job._said_of(hosts[rank].mesh, hosts[rank].rank)


async def _note_losses(job: Job, events: EventStream, hosts: list[HostStatus]) -> None:
    """Have the job know which of its hosts this program has lost."""
    async for event in events:
        if event.kind == "failed":
            job._lose(hosts[event.point["hosts"]], event.reason)
