"""`LocalJob`: this machine alone, without an agent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from roost.errors import JobError
from roost.job.job import Job
from roost.job.knowing import Look
from roost.job.record import Announced
from roost.own_host import own_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.host_mesh import HostMesh
    from roost.job.record import Part, Record
    from roost.job.spec import MeshSpec
    from roost.job.status import HostStatus

__all__ = ["LocalJob"]

_ONE_HOST = (
    "{} is to have {} hosts, and this machine is one: give it 1, or take a ProcessJob, whose hosts are agents here"
)


class LocalJob(Job):
    """A job whose one host is this machine: to write and debug a program that is to run on many, with nothing in between.

    Each mesh is this machine, and its procs are the program's own, as those of `this_host()`: they have its environment, what they
    write goes to its terminal, and nothing of them outlives it. Being there, the host is never waited for nor lost.

    Args:
        meshes: 1, or a `MeshSpec` of one host, by name; what a host is to have is not looked at.
        name: as of `Job`.
        folder: as of `Job`.
        sync: as of `Job`; this machine has the folder already.

    Raises:
        ValueError: names that cannot be, or more than one host.
    """

    kind: ClassVar[str] = "local"

    def __init__(
        self, meshes: Mapping[str, int | MeshSpec], *, name: str = "roost",
        folder: str | os.PathLike[str] | None = None, sync: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(meshes, name=name, folder=folder, sync=sync)
        for mesh, spec in self.meshes.items():
            if spec.hosts > 1:
                raise ValueError(_ONE_HOST.format(mesh, spec.hosts))

    def render(self) -> str:
        """What each mesh is."""
        return "".join(f"{name} is {_here()}, in the program itself\n" for name in self.meshes)

    def _submit(self, record: Record, wanted: list[Part]) -> list[Part]:  # noqa: ARG002 - as of all jobs
        for part in wanted:
            if part.first:
                raise JobError(_ONE_HOST.format(part.mesh, part.first + part.hosts))
        return [part._replace(id=_here()) for part in wanted]

    def _look(self, record: Record) -> Look:
        # Machines that share a home share the folder, too.
        gone = {
            (one.mesh, 0): f"it is {one.id}, and this program runs on {_here()}"
            for one in record.parts
            if one.id != _here()
        }
        there = {(one.mesh, 0): Announced("", one.id, "") for one in record.parts}
        return Look("running", gone=gone, there=there)

    def _attach(self, name: str, hosts: list[HostStatus], key_file: str) -> HostMesh:  # noqa: ARG002 - as of all jobs
        return own_host(name)

    def _end(self, record: Record) -> None:
        self._over(record, "given back", failed=False)

    def _shorten(self, record: Record, part: Part, hosts: int) -> Part:  # noqa: ARG002 - as of all jobs
        return part  # one host is as few as a mesh may have


def _here() -> str:
    return os.uname().nodename
