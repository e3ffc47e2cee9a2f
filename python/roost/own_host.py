"""This process's own host as a mesh of hosts: with their dimension, used and stopped as those that were attached."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from roost import process
from roost.host_mesh import HostMesh
from roost.ids import new_id
from roost.owned_hosts import OwnedHosts
from roost.shape import Shape

if TYPE_CHECKING:
    from roost.runtime import Runtime

__all__ = ["own_host"]


class _OwnHost(OwnedHosts):
    """The owner's table of it. Nobody has to be dialled, or let go of."""

    __slots__ = ()

    is_here: ClassVar[bool] = True

    def __init__(self, runtime: Runtime, name: str) -> None:
        super().__init__(runtime, new_id(), name, Shape({"hosts": 1}))
        self.joined[0] = runtime.host_id, runtime.host
        self.set_state(0, "up")

    def dialled(self) -> list[str]:
        """Nothing."""
        return []

    def _give_up(self, reason: str) -> None:
        pass  # it is there already


def own_host(name: str) -> HostMesh:
    """The host that this process runs on, as a mesh of this name with the dimension `hosts`. What is spawned there ends with it."""
    runtime = process.current()
    record = _OwnHost(runtime, name)
    handle = HostMesh._make(record.id, name, runtime.proc, record.whole, record.whole, None)
    runtime.own(record, handle)
    return handle
