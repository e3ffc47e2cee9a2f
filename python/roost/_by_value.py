"""The pickler for what no other process can import. It imports cloudpickle, so it is imported only when needed."""

# cloudpickle has no types.
# pyright: basic, reportCallIssue=false

from __future__ import annotations

import dis
import inspect
import types
from typing import TYPE_CHECKING, Any

import cloudpickle
from cloudpickle.cloudpickle import _make_skeleton_class

from roost import _definitions
from roost._pickling import Collector, Sink
from roost._typing_forms import is_typing_form, reduce_typing_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ValuePickler", "pickle_class"]


_CloudPickler: Any = cloudpickle.Pickler  # it has no types
_reduce_nameless: Any = _CloudPickler.dispatch_table[types.CodeType]
_NO_FILE = "<dynamic-code>"
# How a class body looks up a name; the second is newer Python's.
_BY_NAME = ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def _reduce_code(code: types.CodeType) -> Any:
    """As cloudpickle does, but with the name of the file: tracebacks and stacks of other processes show where it is, and its lines."""
    make, args = _reduce_nameless(code)
    return make, tuple(code.co_filename if type(part) is str and part == _NO_FILE else part for part in args)


def _names_in_class_bodies(code: types.CodeType) -> Iterator[str]:
    """What the bodies of classes inside a function look up: they do so by name, and cloudpickle sees only what is global for certain."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            if not inner.co_flags & inspect.CO_OPTIMIZED:
                yield from (step.argval for step in dis.get_instructions(inner) if step.opname in _BY_NAME)
            yield from _names_in_class_bodies(inner)


class ValuePickler(_CloudPickler):  # type: ignore[misc]
    """cloudpickle's pickler, which names classes by their id, and tags functions so that they are found again at home.

    Args:
        collector: Gathers what leaves the stream.
        first: Asked before all else how to reduce a value; `NotImplemented` passes it on.
        target: The class that is to be defined rather than named.
    """

    dispatch_table = _CloudPickler.dispatch_table.new_child({types.CodeType: _reduce_code})

    def __init__(
        self, collector: Collector, first: Callable[[Any, Any], Any] | None, target: type | None = None
    ) -> None:
        super().__init__(Sink(collector.chunks), 5, buffer_callback=collector.offer)
        self._collector = collector
        self._first = first
        self._target = target

    def reducer_override(self, value: Any) -> Any:
        """How one value is reduced: pickle asks for everything that is not a plain builtin."""
        if self._first is not None:
            reduced = self._first(self._collector, value)
            if reduced is not NotImplemented:
                return reduced
        if isinstance(value, type):
            return self._reduce_class(value)
        if is_typing_form(type(value)):
            # What a class names in its annotations, or a function in its globals.
            return reduce_typing_form(self._collector, value)
        reduced = super().reducer_override(value)
        if isinstance(value, types.FunctionType) and isinstance(reduced, tuple):
            make, args, state, items, pairs, setter = reduced
            known, found = value.__globals__, state[1]["__globals__"]
            found.update({name: known[name] for name in _names_in_class_bodies(value.__code__) if name in known})
            if self._target is not None:
                return reduced
            tagged = (_definitions.function_id(value), make, args)
            return _definitions.function, tagged, (setter, state), items, pairs, _definitions.fill_function
        return reduced

    def _reduce_class(self, kind: type) -> Any:
        if kind is self._target:
            make, args, *rest = super().reducer_override(kind)
            slots = vars(kind).get("__slots__")
            if slots is not None and make is _make_skeleton_class and not issubclass(kind, tuple):
                # cloudpickle makes the class without them, and its objects then have a __dict__ that they had not.
                constructor, name, bases, attributes, *more = args
                args = (constructor, name, bases, attributes | {"__slots__": slots}, *more)
            return (_definitions.begin, (_definitions.identify(kind), make, args), *rest)
        if _definitions.travels_by_value(kind):
            this = _definitions.identify(kind)
            self._collector.names[this] = None
            return _definitions.definition, (this,)
        return super().reducer_override(kind)


def pickle_class(kind: type) -> tuple[bytes, tuple[bytes, ...]]:
    """The form of a class, and the ids of the classes that it names, which have forms of their own."""
    collector = Collector(in_band=True)
    pickler: Any = ValuePickler(collector, None, kind)
    try:
        pickler.dump(kind)
    finally:
        pickler.clear_memo()
    return collector.payload(), tuple(collector.names)
