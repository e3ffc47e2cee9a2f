"""Roost: an asyncio-native actor framework for GPU clusters.

One program spawns meshes of actors over processes and hosts, awaits their endpoints, hears of every failure as an exception,
and restarts what died in place.
"""

from typing import TYPE_CHECKING, Any

from roost._roost import __version__
from roost.actor import Actor
from roost.bound import each
from roost.config import Config, configure
from roost.context import Context, context
from roost.endpoint import Endpoint, endpoint
from roost.errors import ActorDied, CallTimeoutError, DeadlockError, MeshError, RoostError
from roost.failure import Bind, DeadLetter, Event, Failure, Probe, Restart, State
from roost.point import Point
from roost.reply import Broadcast, Reply
from roost.running import handle, run, this_host, this_proc
from roost.stream import Stream

if TYPE_CHECKING:
    from roost import rdma, spmd
    from roost.accumulator import Accumulator
    from roost.attaching import attach
    from roost.channel import Channel, Port, PortReceiver
    from roost.completing import as_completed
    from roost.host_mesh import HostMesh
    from roost.mesh import ProcMesh
    from roost.monitoring import monitor
    from roost.process_hosts import ProcessHosts
    from roost.services import get_or_spawn, lookup, remove
    from roost.tls import Tls
    from roost.torchrun import attach_torchrun
    from roost.value_mesh import ValueMesh

__all__ = [
    "Accumulator",
    "Actor",
    "ActorDied",
    "Bind",
    "Broadcast",
    "CallTimeoutError",
    "Channel",
    "Config",
    "Context",
    "DeadLetter",
    "DeadlockError",
    "Endpoint",
    "Event",
    "Failure",
    "HostMesh",
    "MeshError",
    "Point",
    "Port",
    "PortReceiver",
    "Probe",
    "ProcMesh",
    "ProcessHosts",
    "Reply",
    "Restart",
    "RoostError",
    "State",
    "Stream",
    "Tls",
    "ValueMesh",
    "__version__",
    "as_completed",
    "attach",
    "attach_torchrun",
    "configure",
    "context",
    "each",
    "endpoint",
    "get_or_spawn",
    "handle",
    "lookup",
    "monitor",
    "rdma",
    "remove",
    "run",
    "spmd",
    "this_host",
    "this_proc",
]


# Names that bring with them what a program that only defines actors does not need, and where they are.
_AT_FIRST_USE = {
    "Accumulator": "accumulator", "Channel": "channel", "HostMesh": "host_mesh", "Port": "channel", "PortReceiver": "channel",
    "ProcMesh": "mesh", "ProcessHosts": "process_hosts", "Tls": "tls", "ValueMesh": "value_mesh", "as_completed": "completing",
    "attach": "attaching", "attach_torchrun": "torchrun", "get_or_spawn": "services", "lookup": "services", "monitor": "monitoring",
    "remove": "services",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    module = _AT_FIRST_USE.get(name)
    if module is not None:
        from importlib import import_module

        return getattr(import_module(f"roost.{module}"), name)
    if name in ("rdma", "spmd"):
        from importlib import import_module

        return import_module(f"roost.{name}")
    raise AttributeError(f"module 'roost' has no attribute {name!r}")
