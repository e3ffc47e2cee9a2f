"""Roost: an asyncio-native actor framework for GPU clusters.

One program spawns meshes of actors over processes and hosts, awaits their endpoints, hears of every failure as an exception,
and restarts what died in place.
"""

from typing import TYPE_CHECKING, Any

from roost._roost import __version__
from roost.actor import Actor
from roost.config import Config, configure
from roost.context import Context, context
from roost.endpoint import Endpoint, endpoint
from roost.running import handle, run, this_host, this_proc

if TYPE_CHECKING:
    from roost import collectives as collectives
    from roost import errors as errors
    from roost import ft as ft
    from roost import job as job
    from roost import kernels as kernels
    from roost import rdma, spmd
    from roost import testing as testing
    from roost.accumulator import Accumulator
    from roost.attaching import attach
    from roost.bound import each
    from roost.channel import Channel, Port, PortReceiver
    from roost.completing import as_completed
    from roost.errors import ActorDied, CallTimeoutError, DeadlockError, MeshError, RoostError
    from roost.failure import Bind, DeadLetter, Event, Failure, Probe, Restart, State
    from roost.host_mesh import HostMesh
    from roost.mesh import ProcMesh
    from roost.monitoring import monitor
    from roost.point import Point
    from roost.process_hosts import ProcessHosts
    from roost.reply import Broadcast, Reply
    from roost.services import get_or_spawn, lookup, remove
    from roost.stream import Stream
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


# Names that bring with them what a program that only defines actors does not need, by the modules that have them.
_AT_FIRST_USE = {
    "accumulator": ("Accumulator",),
    "attaching": ("attach",),
    "bound": ("each",),
    "channel": ("Channel", "Port", "PortReceiver"),
    "completing": ("as_completed",),
    "errors": ("ActorDied", "CallTimeoutError", "DeadlockError", "MeshError", "RoostError"),
    "failure": ("Bind", "DeadLetter", "Event", "Failure", "Probe", "Restart", "State"),
    "host_mesh": ("HostMesh",),
    "mesh": ("ProcMesh",),
    "monitoring": ("monitor",),
    "point": ("Point",),
    "process_hosts": ("ProcessHosts",),
    "reply": ("Broadcast", "Reply"),
    "services": ("get_or_spawn", "lookup", "remove"),
    "stream": ("Stream",),
    "tls": ("Tls",),
    "torchrun": ("attach_torchrun",),
    "value_mesh": ("ValueMesh",),
}
_MODULE_OF = {name: module for module, names in _AT_FIRST_USE.items() for name in names}
# Parts of Roost that users know by their own names: `import roost` is enough for `roost.ft.DiLoCo`.
_PARTS = ("collectives", "errors", "ft", "job", "kernels", "rdma", "spmd", "testing")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULE_OF:
        value = globals()[name] = getattr(import_module(f"roost.{_MODULE_OF[name]}"), name)
        return value
    if name in _PARTS:
        return import_module(f"roost.{name}")
    raise AttributeError(f"module 'roost' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_PARTS, *(name for name in globals() if name.startswith("__"))})
