"""The picklers: how each kind of value is reduced, and which buffers leave the pickle. `serialize` is their face."""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable
from typing import Any

from roost import _arrays, _definitions
from roost._arrays import OUT_OF_BAND_BYTES_MIN, Storages
from roost._typing_forms import is_typing_form, reduce_typing_form

__all__ = [
    "OUT_OF_BAND_BYTES_MIN",
    "PARTS_MAX",
    "PICKLE_BYTES_MAX",
    "Collector",
    "Parts",
    "dump",
    "is_promise",
    "large",
]

PARTS_MAX = 65_000
"""Buffers beyond this number stay in the pickle; the wire's limit is 65,535."""

PICKLE_BYTES_MAX = 1 << 20
"""A larger pickle travels as a part: by shared memory, since a frame holds no more than 64 MiB."""

_PICKLER_KEPT_BYTES_MAX = 64 * 1024  # one that made a larger pickle has a large memo table: it is dropped
_RULES_MAX = 4096  # types whose rule is remembered; the table is emptied when it is full


class Parts:
    """A pickled value that is more than its pickle."""

    __slots__ = ("buffers", "definitions", "payload")

    def __init__(self, payload: bytes, buffers: list[memoryview], definitions: tuple[bytes, ...]) -> None:
        self.payload = payload
        """The pickle."""
        self.buffers = buffers
        """The large parts: contiguous, of format B, still the user's own memory."""
        self.definitions = definitions
        """The ids of the classes sent by value that the pickle names; `serialize.closure` gives their forms."""


class Collector:
    """What a pickler gathers beside its stream; each rule gets it as its first argument.

    It is apart from the pickler, which names it: a pickler in a cycle would be left to the garbage collector, together
    with the memoryviews in its memo, and CPython may crash over those that lend to each other when it takes them apart.
    """

    def __init__(self, *, in_band: bool = False, storages: Storages | None = None) -> None:
        self.in_band = in_band
        self.chunks: list[bytes] = []
        self.buffers: list[memoryview] = []
        self.names: dict[bytes, None] = {}
        self.storages = storages

    def offer(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer out of the pickle, or answer True to have it inside."""
        if self.in_band or len(self.buffers) >= PARTS_MAX:
            return True
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND_BYTES_MIN:
            return True
        self.buffers.append(raw)
        return False

    def payload(self) -> bytes:
        """The pickle."""
        chunks = self.chunks
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def dump(value: Any, *, in_band: bool = False) -> bytes | Parts:
    """Pickle a value; with `in_band`, its buffers inside."""
    if in_band:
        return _dump_again(value, Collector(in_band=True))
    try:
        pickler = _idle.pop()
    except IndexError:
        pickler = _Pickler(Collector())
    collector = pickler.collector
    try:
        pickler.dump(value)
    except _NeedsValuePickler:
        return _dump_again(value, Collector(), by_value=True)
    except pickle.PicklingError:
        # A module that was loaded anew has another class of that name: what was found before may no longer be there.
        _by_name.clear()
        return _dump_again(value, Collector())
    finally:
        pickler.clear_memo()
    if collector.storages is not None:
        return _finish(value, collector, by_value=False)
    payload = collector.payload()
    result: bytes | Parts = payload
    if collector.buffers or collector.names or len(payload) > PICKLE_BYTES_MAX:
        _definitions.prepare(collector.names)
        result = _parts(payload, collector)
        collector.buffers = []
        collector.names = {}
    if len(payload) <= _PICKLER_KEPT_BYTES_MAX:
        collector.chunks.clear()
        _idle.append(pickler)
    return result


def _dump_again(value: Any, collector: Collector, *, by_value: bool = False) -> bytes | Parts:
    pickler: Any
    if by_value:
        from roost._by_value import ValuePickler  # cloudpickle: 35 ms that most processes never need

        pickler = ValuePickler(collector, reduce_but_definitions)
    else:
        pickler = _Pickler(collector)
    try:
        pickler.dump(value)
    except _NeedsValuePickler:
        again = Collector(in_band=collector.in_band, storages=collector.storages)
        return _dump_again(value, again, by_value=True)
    finally:
        pickler.clear_memo()
    return _finish(value, collector, by_value=by_value)


def _finish(value: Any, collector: Collector, *, by_value: bool) -> bytes | Parts:
    storages = collector.storages
    if storages is not None and storages.is_partial():
        # Only now is it known which part of each storage is used: again, with that part alone.
        again = Collector(in_band=collector.in_band, storages=storages.narrowed())
        return _dump_again(value, again, by_value=by_value)
    payload = collector.payload()
    if not collector.buffers and not collector.names and (collector.in_band or len(payload) <= PICKLE_BYTES_MAX):
        return payload
    _definitions.prepare(collector.names)
    return _parts(payload, collector)


def _parts(payload: bytes, collector: Collector) -> Parts:
    """What was gathered; a pickle that is itself large becomes a part, and a small one that loads it takes its place."""
    buffers = collector.buffers
    if len(payload) > PICKLE_BYTES_MAX and not collector.in_band:
        buffers = [memoryview(payload), *buffers]
        payload = pickle.dumps(_Nested(buffers), 5, buffer_callback=lambda _buffer: False)
    return Parts(payload, buffers, tuple(collector.names))


class _Nested:
    """A pickle, and its buffers after it, as what they give when they are loaded."""

    def __init__(self, buffers: list[memoryview]) -> None:
        self._buffers = buffers

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return load_nested, tuple(map(pickle.PickleBuffer, self._buffers))


def load_nested(payload: Any, *buffers: Any) -> Any:
    """The value of a pickle that travelled as a part."""
    return pickle.loads(payload, buffers=buffers)


class _NeedsValuePickler(Exception):  # noqa: N818  (a signal inside this module, never an error)
    pass


class Large:
    """A large `bytes` or `bytearray`, which pickle would copy into its stream."""

    __slots__ = ("value",)

    def __init__(self, value: bytes | bytearray) -> None:
        self.value = value


def large(value: object) -> Any:
    """The value, wrapped so that it leaves the pickle when it is `bytes` or `bytearray` and large."""
    if (type(value) is bytes or type(value) is bytearray) and len(value) >= OUT_OF_BAND_BYTES_MIN:
        return Large(value)
    return value


def is_promise(kind: type[Any]) -> bool:
    """Whether values of a type are futures, coroutines or async generators: promises that no other process can keep."""
    return issubclass(kind, _PROMISES) or hasattr(kind, "_asyncio_future_blocking")


def is_rebuilt(kind: type[BaseException]) -> bool:
    """Whether an exception is rebuilt from its args without calling its `__init__`.

    Exceptions pickle as a call of their class with `args`, which fails, or says the wrong thing, as soon as an
    `__init__` written in Python takes other arguments than it hands up. What defines its own way to pickle keeps it.
    """
    if not isinstance(kind.__init__, types.FunctionType):
        return False
    return not any(isinstance(way, types.FunctionType) for way in (kind.__reduce__, kind.__reduce_ex__, kind.__new__))


def rebuild_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception with its args and what its built-in base makes of them; its attributes follow as its state."""
    made = kind.__new__(kind, *args)
    for base in kind.__mro__:
        init = vars(base).get("__init__")
        if init is not None and not isinstance(init, types.FunctionType):
            init(made, *args)
            break
    return made


def rebuild_bytes(buffer: Any) -> bytes:
    """The bytes of a part. They came read-only, so pickle lends them as a memoryview over the part."""
    part = buffer.obj if type(buffer) is memoryview else buffer
    if type(part) is bytes:
        return part
    # A part in shared memory is copied from where its pages are mapped already.
    whole = getattr(part, "original_bytes", None)
    return bytes(part) if whole is None else whole()


def rebuild_memoryview(buffer: Any, form: str, shape: tuple[int, ...]) -> memoryview:
    """A memoryview over a part, in the shape in which it was sent."""
    flat = memoryview(buffer).cast("B")
    return flat if (form, shape) == ("B", flat.shape) else flat.cast(form, shape)  # type: ignore[call-overload]


def _reduce_large(_collector: Collector, wrapped: Large) -> Any:
    make = rebuild_bytes if type(wrapped.value) is bytes else bytearray
    return make, (pickle.PickleBuffer(wrapped.value),)


def _reduce_memoryview(_collector: Collector, view: memoryview) -> Any:
    whole = view if view.c_contiguous else memoryview(view.tobytes())
    return rebuild_memoryview, (pickle.PickleBuffer(whole), view.format, view.shape)


def _reduce_exception(_collector: Collector, error: BaseException) -> Any:
    reduced: Any = error.__reduce__()
    make, args, *state = reduced
    return (rebuild_exception, (make, args), *state)


def _reduce_class(collector: Collector, kind: type) -> Any:
    if kind in _by_name:
        return NotImplemented
    this = _definitions.find(kind)
    if this is None:
        if _definitions.importable(kind) or kind in _PICKLE_KNOWS:
            return _remember_name(kind)
        if not _definitions.travels_by_value(kind):
            raise _NeedsValuePickler
        this = _definitions.identify(kind)
    collector.names[this] = None
    return _definitions.definition, (this,)


def _reduce_function(_collector: Collector, function: types.FunctionType) -> Any:
    if function in _by_name:
        return NotImplemented
    if _definitions.importable(function):
        return _remember_name(function)
    raise _NeedsValuePickler


def _remember_name(value: type | types.FunctionType) -> Any:
    if len(_by_name) >= _RULES_MAX:
        _by_name.clear()
    _by_name.add(value)
    return NotImplemented


def _reduce_module(_collector: Collector, _module: types.ModuleType) -> Any:
    raise _NeedsValuePickler


def _refuse_promise(_collector: Collector, value: Any) -> Any:
    raise TypeError(f"a {type(value).__name__} was not awaited: await it first")


_Rule = Callable[[Any, Any], Any]
_PROMISES = (types.CoroutineType, types.AsyncGeneratorType)
_PICKLE_KNOWS = frozenset({type(None), type(NotImplemented), type(...)})
_LEFT_TO_VALUE_PICKLER = frozenset({_reduce_class, _reduce_function, _reduce_module})
_rules: dict[type, _Rule | None] = {}
_by_name: set[type | types.FunctionType] = set()  # found where their names say; asked of pickle again when it disagrees


def _rule(kind: type[Any]) -> _Rule | None:
    """How values of a type are reduced, `None` for pickle's own way; found once and remembered."""
    found: _Rule | None
    if issubclass(kind, type):
        found = _reduce_class
    elif kind is types.FunctionType:
        found = _reduce_function
    elif kind is types.ModuleType:
        found = _reduce_module
    elif kind is Large:
        found = _reduce_large
    elif kind is memoryview:
        found = _reduce_memoryview
    elif is_promise(kind):
        found = _refuse_promise
    elif is_typing_form(kind):
        found = reduce_typing_form
    elif issubclass(kind, BaseException):
        found = _reduce_exception if is_rebuilt(kind) else None
    else:
        found = _arrays.rule(kind)
    if len(_rules) >= _RULES_MAX:
        _rules.clear()
    _rules[kind] = found
    return found


def reduce_but_definitions(collector: Any, value: object) -> Any:
    """The rules without those for classes, functions and modules, which the pickler by value has itself."""
    kind = type(value)
    rule = _rules[kind] if kind in _rules else _rule(kind)
    return NotImplemented if rule is None or rule in _LEFT_TO_VALUE_PICKLER else rule(collector, value)


class Sink:
    """A file for pickle to write to, which gathers what is written without copying it."""

    __slots__ = ("write",)

    def __init__(self, chunks: list[bytes]) -> None:
        self.write: Callable[[bytes], object] = chunks.append


class _Pickler(pickle.Pickler):
    """Pickles one value after another: to make a new one for each would cost more than a small value itself."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        sink: Any = Sink(collector.chunks)
        super().__init__(sink, 5, buffer_callback=collector.offer)

    def reducer_override(self, value: object) -> Any:
        kind = type(value)
        rule = _rules[kind] if kind in _rules else _rule(kind)
        return NotImplemented if rule is None else rule(self.collector, value)


_idle: list[_Pickler] = []
