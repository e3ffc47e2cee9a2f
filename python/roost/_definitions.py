"""Classes and functions that no other process can import: they travel by value, and a class stays one class.

What `__main__` or a local scope defines is pickled by cloudpickle. A class is a *definition*: it gets an id once, in
the process that first sends it, and is pickled once. Values refer to it by that id; the pickled form is learned beside
them and made into a class when the first value needs it, so that each process has one class for one id, and the process
that defined it finds its own. Functions are captured anew at each sending, since they see globals that change; at home
they too are found again by their id.
"""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Container, Iterable

__all__ = ["DEFINITIONS_MAX", "closure", "definition", "home", "learn", "prepare", "set_home"]

DEFINITIONS_MAX = 10_000
"""Classes sent by value that a process keeps; each side keeps them for good, since any later value may name them."""

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made at run time, not built into the interpreter
_NUMBER_BYTES = 4
_HOME_BYTES = 12

_lock = threading.RLock()
_home = b""  # of this process; the first bytes of the ids that it gives
_numbers = itertools.count()
_ids: dict[type, bytes] = {}
_classes: dict[bytes, type] = {}
_unfinished: dict[bytes, type] = {}
_pickled: dict[bytes, tuple[bytes, tuple[bytes, ...]]] = {}  # id: its pickled form, and the ids it names itself
_prepared: set[bytes] = set()
_functions: weakref.WeakValueDictionary[bytes, types.FunctionType] = weakref.WeakValueDictionary()
_function_ids: weakref.WeakKeyDictionary[types.FunctionType, bytes] = weakref.WeakKeyDictionary()


def home(proc: int, incarnation: int) -> bytes:
    """What begins the ids of all that a process defines."""
    return proc.to_bytes(8, "little") + incarnation.to_bytes(_HOME_BYTES - 8, "little")


def set_home(this: bytes) -> None:
    """Say who this process is, before it sends anything; a process that nobody named gets a random home."""
    global _home  # noqa: PLW0603  (one per process)
    _home = this


def importable(value: Any) -> bool:
    """Whether another process finds this very class or function by its module and name."""
    module_name = getattr(value, "__module__", None)
    if module_name == "__main__" or not isinstance(module_name, str):
        return False
    found: Any = sys.modules.get(module_name)
    if found is None:
        return False
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
        if found is None:
            return False
    return found is value


def travels_by_value(kind: type) -> bool:
    """Whether a class must be sent as a definition."""
    return not importable(kind) and bool(kind.__flags__ & _HEAP_TYPE)


def find(kind: type) -> bytes | None:
    """The id of a class that was sent or received by value already."""
    return _ids.get(kind)


def identify(kind: type) -> bytes:
    """The id under which a class travels, which is given when it is first asked for."""
    with _lock:
        if kind not in _ids:
            if len(_ids) >= DEFINITIONS_MAX:
                raise TypeError(
                    f"{kind.__qualname__} is one class too many: {DEFINITIONS_MAX} classes of __main__ or of local"
                    " scopes were sent already; define such classes once, in a module"
                )
            _record(_new_id(), kind)
        return _ids[kind]


def prepare(ids: Iterable[bytes]) -> None:
    """Pickle classes and those that they name, so that it is known now whether they can be sent.

    Raises:
        TypeError: One of them cannot be.
    """
    if not _prepared.issuperset(ids):
        needed = _needed(ids, _prepared, b"")
        _prepared.update(needed)


def closure(ids: Iterable[bytes], known: set[bytes] | None = None, receiver: bytes = b"") -> bytes:
    """The pickled forms of classes and of those that they name, for `learn`; empty when the receiver has them all.

    Args:
        ids: The classes that a value names.
        known: Those that the receiver has already; what is given now is added. Left out, nothing is known of it.
        receiver: Its home: what it defined itself never travels back.
    """
    needed = _needed(ids, known or (), receiver)
    if not needed:
        return b""
    if known is not None:
        known.update(needed)
    return pickle.dumps([(this, *form) for this, form in needed.items()], 5)


def _needed(
    ids: Iterable[bytes], known: Container[bytes], receiver: bytes
) -> dict[bytes, tuple[bytes, tuple[bytes, ...]]]:
    needed: dict[bytes, tuple[bytes, tuple[bytes, ...]]] = {}
    waiting = list(ids)
    while waiting:
        this = waiting.pop()
        if this not in needed and this not in known and this[:_HOME_BYTES] != receiver:
            needed[this] = _form(this)
            waiting.extend(needed[this][1])
    return needed


def learn(forms: bytes, known: set[bytes] | None = None) -> None:
    """Take in what `closure` gave; no class is made yet. `known` is the set of what its sender has."""
    for this, form, names in pickle.loads(forms):
        _pickled.setdefault(this, (form, names))
        if known is not None:
            known.add(this)


def definition(this: bytes) -> type:
    """The class of an id; made now when this is its first use here."""
    found = _classes.get(this)
    if found is not None:
        return found
    with _lock:
        found = _classes.get(this) or _unfinished.get(this)
        if found is not None:
            return found
        if this not in _pickled:
            raise pickle.UnpicklingError(f"the class with id {this.hex()} was never sent to this process")
        try:
            made: type = pickle.loads(_pickled[this][0])
            _record(this, made)
        finally:
            _unfinished.pop(this, None)
        return made


def begin(this: bytes, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """Make the bare class, which is named by its own methods and by other classes before it is complete."""
    made = make(*args)
    _unfinished[this] = made
    return made


def function_id(value: types.FunctionType) -> bytes:
    """The id under which a function that is sent by value comes home."""
    found = _function_ids.get(value)
    if found is None:
        with _lock:
            found = _function_ids.setdefault(value, _new_id())
            _functions[found] = value
    return found


def function(this: bytes, make: Callable[..., types.FunctionType], args: tuple[Any, ...]) -> types.FunctionType:
    """The function itself in the process that defined it and still has it; a new one anywhere else."""
    if this[:_HOME_BYTES] == _home:
        found = _functions.get(this)
        if found is not None:
            return found
    made = make(*args)
    _function_ids[made] = this
    return made


def fill_function(value: types.FunctionType, state: Any) -> None:
    """Give a new function its globals and cells; the one found at home keeps its own."""
    if _functions.get(_function_ids.get(value, b"")) is not value:
        setter, inner = state
        setter(value, inner)


def _record(this: bytes, kind: type) -> None:
    _ids[kind] = this
    _classes[this] = kind


def _new_id() -> bytes:
    if not _home:
        set_home(os.urandom(_HOME_BYTES))
    return _home + next(_numbers).to_bytes(_NUMBER_BYTES, "little")


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  (what another thread held stays locked in the child)
    _lock = threading.RLock()
    set_home(b"")  # two processes must not give the same ids


os.register_at_fork(after_in_child=_after_fork)


def _form(this: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    found = _pickled.get(this)
    if found is None:
        with _lock:
            found = _pickled.get(this)
            if found is None:
                found = _pickled[this] = _pickle_class(_classes[this])
    return found


def _pickle_class(kind: type) -> tuple[bytes, tuple[bytes, ...]]:
    from roost._by_value import pickle_class  # cloudpickle: 35 ms that most processes never need

    try:
        return pickle_class(kind)
    except Exception as error:
        raise TypeError(f"class {kind.__qualname__} cannot be sent by value: {error}") from error
