"""What a proc is sent to make actors: `pack` at the owner, `unpack` in the proc.

The host keeps it for later incarnations, so everything is inside. A thousand small meshes on the same procs are usual, so what they
share, their `Plan`, is worked out once, pickled once and unpickled once.
"""

from __future__ import annotations

import functools
import pickle
import struct
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from roost import serialize
from roost.shape import SCALAR, Shape, encode_sizes

if TYPE_CHECKING:
    from roost.failure import Restart
    from roost.mesh import ProcMesh

__all__ = ["Constructors", "Plan", "load_plan", "pack_arguments", "pack_mesh", "unpack"]

_classes: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()
# The message is made in Rust too: see spawns.rs. Before the plan stands its length, before the name and the arguments of
# each mesh: the mesh, its owner, the rank of the first actor in the proc, how many there are, bytes of the name and of the
# arguments.
_LENGTH = struct.Struct("<I")
_MESH = struct.Struct("<QQIIII")


class Plan:
    """What meshes of one class on the same procs, with the same options, have in common."""

    __slots__ = (
        "actor", "class_name", "cleanup_timeout_s", "on", "owner", "packed", "per_proc", "policy", "procs", "sizes",
        "takes_arguments", "waits", "whole",
    )  # fmt: skip

    def __init__(
        self,
        on: ProcMesh,
        owner: int,
        actor: type,
        per_proc: Shape,
        policy: Restart | None,
        cleanup_timeout_s: float | None,
        waits: bool,
    ) -> None:
        self.on = on
        self.owner = owner
        self.actor = actor
        self.per_proc = per_proc
        self.policy = policy
        self.cleanup_timeout_s = cleanup_timeout_s
        # Whether messages wait while a proc restarts.
        self.waits = waits
        self.procs = on._members()
        self.whole = on._shape.extend(per_proc.sizes) if per_proc.names else on._shape.whole()
        self.sizes = encode_sizes(self.whole)
        self.class_name = f"{actor.__module__}.{actor.__qualname__}"
        # At its owner: the plan, pickled, and whether the constructor takes any arguments.
        self.packed = b""
        self.takes_arguments = True

    def pack(self) -> None:
        """Pickle the plan, once."""
        if not self.packed:
            sizes = dict(self.per_proc.sizes) if self.per_proc.names else None
            fields = (self.owner, sizes, self.policy, self.cleanup_timeout_s, self.waits)
            packed = pickle.dumps((serialize.dumps_alone(self.on), _packed_class(self.actor), fields), 5)
            self.packed = _LENGTH.pack(len(packed)) + packed

    def construct(self, arguments: bytes) -> Any:
        """A new actor."""
        if not arguments:
            return self.actor()
        args, kwargs = serialize.loads(arguments)
        return self.actor(*args, **kwargs)


def pack_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A constructor's arguments."""
    return serialize.dumps_alone((args, kwargs)) if args or kwargs else b""


class Constructors:
    """What a proc is told of the actors of one mesh that it is to make: their ranks are in a row."""

    __slots__ = ("arguments", "first", "mesh", "name", "owner", "size")

    def __init__(self, mesh: int, owner: int, first: int, size: int, name: str, arguments: bytes) -> None:
        self.mesh = mesh
        self.owner = owner
        self.first = first
        self.size = size
        self.name = name
        self.arguments = arguments


def pack_mesh(mesh: int, owner: int, first: int, count: int, name: bytes, arguments: bytes) -> bytes:
    """What comes after the plan."""
    return b"".join((_MESH.pack(mesh, owner, first, count, len(name), len(arguments)), name, arguments))


def unpack(payload: bytes) -> tuple[bytes, list[Constructors]]:
    """The packed plan, for `load_plan`, and the meshes to make."""
    (length,) = _LENGTH.unpack_from(payload)
    at = _LENGTH.size + length
    plan = payload[_LENGTH.size : at]
    meshes = []
    while at < len(payload):
        mesh, owner, first, count, name_length, length = _MESH.unpack_from(payload, at)
        name_at = at + _MESH.size
        arguments_at = name_at + name_length
        at = arguments_at + length
        name = payload[name_at:arguments_at].decode(errors="surrogatepass")
        meshes.append(Constructors(mesh, owner, first, count, name, payload[arguments_at:at]))
    return plan, meshes


@functools.lru_cache(maxsize=64)
def load_plan(packed: bytes) -> Plan:
    """The plan of a message."""
    procs, actor, (owner, per_proc, policy, cleanup_timeout_s, waits) = pickle.loads(packed)
    shape = Shape(per_proc) if per_proc else SCALAR
    return Plan(serialize.loads(procs), owner, _load_class(actor), shape, policy, cleanup_timeout_s, waits)


def _packed_class(actor: type) -> bytes:
    packed = _classes.get(actor)
    if packed is None:
        packed = _classes[actor] = serialize.dumps_alone(actor)
    return packed


@functools.lru_cache(maxsize=64)
def _load_class(packed: bytes) -> Any:
    return serialize.loads(packed)
