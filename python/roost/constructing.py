"""What a proc is sent to make actors: `pack` at the owner, `unpack` in the proc.

The host keeps it for later incarnations, so everything is inside. A thousand small meshes on the same procs are usual, so what they
share, the procs and the class, is pickled once and unpickled once.
"""

from __future__ import annotations

import functools
import pickle
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from roost import serialize
from roost.mesh import ActorMesh
from roost.shape import SCALAR, Shape

if TYPE_CHECKING:
    from roost.mesh import ProcMesh

__all__ = ["construct", "pack", "unpack"]

_classes: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()
_last_procs: tuple[ProcMesh, bytes] | None = None
_NO_ARGUMENTS = pickle.dumps(((), {}), 5)


def pack(handle: ActorMesh, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> bytes:
    """What a proc needs to make its actors of a mesh."""
    arguments = serialize.dumps_alone((args, kwargs)) if args or kwargs else _NO_ARGUMENTS
    given = {name: value for name, value in options.items() if value is not None}
    per_proc = dict(handle._per_proc.sizes) if handle._per_proc.names else None
    fields = (handle._id, handle._name, handle._owner, per_proc, handle._waits)
    return pickle.dumps((_packed_procs(handle._on), _packed_class(handle._class), fields, arguments, given), 5)


def unpack(payload: bytes) -> tuple[ActorMesh, bytes, dict[str, Any]]:
    """The mesh's handle, its constructor's arguments for `construct`, and its options."""
    procs, actor, (mesh, name, owner, per_proc, waits), arguments, options = pickle.loads(payload)
    handle = ActorMesh._make(
        mesh, name, owner, _load(procs), Shape(per_proc) if per_proc else SCALAR, None, _load(actor), waits
    )
    return handle, arguments, options


def construct(handle: ActorMesh, arguments: bytes) -> Any:
    """A new actor."""
    args, kwargs = ((), {}) if arguments == _NO_ARGUMENTS else serialize.loads(arguments)
    return handle._class(*args, **kwargs)


def _packed_procs(procs: ProcMesh) -> bytes:
    global _last_procs  # noqa: PLW0603 - one for the process
    if _last_procs is None or _last_procs[0] is not procs:
        _last_procs = procs, serialize.dumps_alone(procs)
    return _last_procs[1]


def _packed_class(actor: type) -> bytes:
    packed = _classes.get(actor)
    if packed is None:
        packed = _classes[actor] = serialize.dumps_alone(actor)
    return packed


@functools.lru_cache(maxsize=64)
def _load(packed: bytes) -> Any:
    return serialize.loads(packed)
