"""Roost: an asyncio-native actor framework for GPU clusters.

One program spawns meshes of actors over processes and hosts, awaits their endpoints, hears of every failure as an exception,
and restarts what died in place.
"""

from typing import TYPE_CHECKING, Any

from roost._roost import __version__
from roost.completing import as_completed
from roost.config import Config, configure
from roost.context import Context, context
from roost.endpoint import Actor, Endpoint, endpoint
from roost.errors import ActorDied, CallTimeoutError, DeadlockError, MeshError, RoostError
from roost.failure import Bind, DeadLetter, Event, Failure, Probe, Restart, State
from roost.mesh import HostMesh, ProcMesh, each
from roost.point import Point
from roost.reply import Broadcast, Reply
from roost.running import handle, run, this_host, this_proc
from roost.stream import Stream
from roost.value_mesh import ValueMesh

if TYPE_CHECKING:
    from roost.accumulator import Accumulator
    from roost.channel import Channel, Port, PortReceiver

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
    "Reply",
    "Restart",
    "RoostError",
    "State",
    "Stream",
    "ValueMesh",
    "__version__",
    "as_completed",
    "configure",
    "context",
    "each",
    "endpoint",
    "handle",
    "run",
    "this_host",
    "this_proc",
]


def __getattr__(name: str) -> Any:
    # Channels bring pickling with them, which a program that only defines actors does not need.
    if name in {"Channel", "Port", "PortReceiver"}:
        from roost import channel

        return getattr(channel, name)
    if name == "Accumulator":
        from roost.accumulator import Accumulator

        return Accumulator
    raise AttributeError(f"module 'roost' has no attribute {name!r}")
