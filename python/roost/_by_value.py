"""The pickler for what no other process can import. It imports cloudpickle, so it is imported only when needed."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from cloudpickle import Pickler as _CloudPickler

from roost import _definitions
from roost._pickling import Collector, Sink

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ValuePickler", "pickle_class"]


class ValuePickler(Collector, _CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's pickler, which names classes by their id, and tags functions so that they are found again at home.

    Args:
        first: Asked before all else how to reduce a value; `NotImplemented` passes it on.
        target: The class that is to be defined rather than named.
    """

    def __init__(self, first: Callable[[Any, Any], Any] | None, target: type | None = None) -> None:
        self.prepare()
        self.chunks: list[bytes] = []
        super().__init__(Sink(self.chunks), 5, buffer_callback=self.offer)
        self._first = first
        self._target = target

    def reducer_override(self, value: Any) -> Any:
        """How one value is reduced: pickle asks for everything that is not a plain builtin."""
        if self._first is not None:
            reduced = self._first(self, value)
            if reduced is not NotImplemented:
                return reduced
        if isinstance(value, type):
            return self._reduce_class(value)
        reduced = super().reducer_override(value)
        if isinstance(value, types.FunctionType) and isinstance(reduced, tuple) and self._target is None:
            make, args, state, items, pairs, setter = reduced
            tagged = (_definitions.function_id(value), make, args)
            return _definitions.function, tagged, (setter, state), items, pairs, _definitions.fill_function
        return reduced

    def _reduce_class(self, kind: type) -> Any:
        if kind is self._target:
            make, args, *rest = super().reducer_override(kind)
            return (_definitions.begin, (_definitions.identify(kind), make, args), *rest)
        if _definitions.travels_by_value(kind):
            this = _definitions.identify(kind)
            self.names[this] = None
            return _definitions.definition, (this,)
        return super().reducer_override(kind)


def pickle_class(kind: type) -> tuple[bytes, tuple[bytes, ...]]:
    """The form of a class, and the ids of the classes that it names, which have forms of their own."""
    pickler = ValuePickler(None, kind)
    pickler.in_band = True
    pickler.dump(kind)
    return b"".join(pickler.chunks), tuple(pickler.names)
