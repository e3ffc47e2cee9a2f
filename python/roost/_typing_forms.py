"""Type variables, `NewType`s and type aliases that no other process can import: they travel by what they are made of.

They pickle as a name in their module, which a proc does not find where that is `__main__` or a local scope.
"""

from __future__ import annotations

import sys
import typing
from typing import Any

__all__ = ["is_typing_form", "reduce_typing_form", "typing_form"]

_ALIAS: Any = getattr(typing, "TypeAliasType", None)  # of Python 3.12
_NEW_TYPE: Any = typing.NewType
_TUPLE: Any = typing.TypeVarTuple
_KINDS: tuple[Any, ...] = (typing.TypeVar, typing.ParamSpec, _TUPLE, _NEW_TYPE, _ALIAS)

# Those made here, by module and name: `list[T]` of two messages are equal.
_made: dict[tuple[str, str], Any] = {}
_MADE_MAX = 1000


def is_typing_form(kind: type[Any]) -> bool:
    """Whether values of a type are such forms."""
    return kind in _KINDS


def reduce_typing_form(_collector: Any, value: Any) -> Any:
    """How one is pickled; by its name where other processes find it."""
    module = sys.modules.get(value.__module__)
    if value.__module__ != "__main__" and getattr(module, _name(value), None) is value:
        return NotImplemented
    return typing_form, (type(value), value.__module__, _name(value), *_details(value))


def typing_form(kind: Any, module: str, name: str, *details: Any) -> Any:
    """The form itself in the process that defined it; one and the same, while it says the same, in any other."""
    for found in (getattr(sys.modules.get(module), name, None), _made.get((module, name))):
        if type(found) is kind and _details(found) == details:
            return found
    if len(_made) >= _MADE_MAX:
        _made.clear()
    made = _made[module, name] = _make(kind, name, details)
    if kind is not _ALIAS:
        made.__module__ = module
    return made


def _name(value: Any) -> str:
    name: str = getattr(value, "__qualname__", None) or value.__name__
    return name


def _details(value: Any) -> tuple[Any, ...]:
    """What it is made of, besides its name."""
    if isinstance(value, _NEW_TYPE):
        return (value.__supertype__,)
    if isinstance(value, _TUPLE):
        return ()
    if _ALIAS is not None and isinstance(value, _ALIAS):
        return (value.__value__, value.__type_params__)
    variance = (value.__covariant__, value.__contravariant__, getattr(value, "__infer_variance__", False))
    return (getattr(value, "__constraints__", ()), value.__bound__, variance)


def _make(kind: Any, name: str, details: tuple[Any, ...]) -> Any:
    plain = name.rpartition(".")[2]
    if kind is _NEW_TYPE:
        made = kind(plain, details[0])
        made.__qualname__ = name
        return made
    if kind is _TUPLE:
        return kind(plain)
    if kind is _ALIAS:
        return kind(plain, details[0], type_params=details[1])
    constraints, bound, (covariant, contravariant, inferred) = details
    if inferred:
        return kind(plain, *constraints, bound=bound, infer_variance=True)
    return kind(plain, *constraints, bound=bound, covariant=covariant, contravariant=contravariant)
