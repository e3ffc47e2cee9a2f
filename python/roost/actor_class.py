"""What may be spawned: a class of actors, with arguments that its constructor takes."""

from __future__ import annotations

import typing
import weakref
from typing import Any

from roost.actor import Actor

__all__ = ["check_actor_class", "takes_arguments"]

_signatures: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()


def check_actor_class(actor: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> type:
    """The class to spawn, when its constructor takes these arguments."""
    import inspect

    kind: Any = typing.get_origin(actor) or actor
    if not isinstance(kind, type) or not issubclass(kind, Actor):
        raise TypeError(
            f"spawn({name!r}, {actor!r}): give a class that derives from roost.Actor, and its arguments after it"
        )
    if not isinstance(name, str) or not name:  # type: ignore[redundant-expr]  # users without a type checker
        raise TypeError(f"spawn({name!r}, …): the first argument is the mesh's name")
    signature = None
    try:
        signature = _signatures.get(kind)
        if signature is None:
            signature = _signatures[kind] = inspect.signature(kind)
        if args or kwargs or signature.parameters:
            signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{kind.__qualname__}{signature or '(…)'}: {error}") from None
    return kind


def takes_arguments(kind: type) -> bool:
    """Whether the constructor of a class that was checked takes any."""
    return bool(_signatures[kind].parameters)
