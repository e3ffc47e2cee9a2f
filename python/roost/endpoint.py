"""`@endpoint`: what it makes of a method, and what type checkers see of it on a mesh.

A mesh of `Trainer` is typed as `Trainer`, so `trainers.step` is the same attribute on a mesh and on `self`. Its
type is an `Endpoint` with the verbs that is also callable as the method itself; at run time a mesh gives the
first and an instance the second.
"""

from __future__ import annotations

import inspect
import sys
import types
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, overload

from roost.endpoint_info import EndpointInfo, EndpointKind

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Coroutine,
    )
    from typing import Concatenate, Protocol, Self

    from typing_extensions import TypeVar

    from roost.channel import Port
    from roost.reply import Broadcast, Reply
    from roost.stream import Stream
    from roost.value_mesh import ValueMesh

    R = TypeVar("R")
    S = TypeVar("S", default=R)
    M = TypeVar("M")
    A = TypeVar("A")
else:
    from typing import TypeVar

    R = TypeVar("R")
    S = TypeVar("S")

P = ParamSpec("P")

__all__ = ["VERBS", "Endpoint", "EndpointMethod", "endpoint"]

VERBS = ("call", "call_one", "choose", "stream", "broadcast")
"""What sends to an endpoint."""


class Endpoint(Generic[P, R, S]):
    """An endpoint of a mesh, with the verbs that send to it.

    `Endpoint[P, R]` takes the arguments P and answers R. A stream's endpoint is an `Endpoint[P, list[T], T]`: `call`
    gives lists, `stream` single values.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def call(self, *args: P.args, **kwargs: P.kwargs) -> Reply[ValueMesh[R]]:
            """Send to every rank; the reply has one answer of each."""
            ...

        def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Reply[R]:
            """Send to the only rank; the reply is its answer."""
            ...

        def choose(self, *args: P.args, **kwargs: P.kwargs) -> Reply[R]:
            """Send to the less loaded of two live ranks picked at random."""
            ...

        def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[S]:
            """Send to every rank, and iterate over (point, answer) as they come."""
            ...

        def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> Broadcast:
            """Send to every rank without an answer; await it to wait for room."""
            ...

        def options(self, *, timeout: float | None = None) -> Endpoint[P, R, S]:
            """The same endpoint with a deadline in seconds, which travels with each message."""
            ...

    else:
        # A parameter with a default needs Python 3.13; `Endpoint[[int], float]` works in annotations on 3.11 so.
        __class_getitem__ = classmethod(types.GenericAlias)

        def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
            """Refuse: an endpoint is sent to by a verb."""
            raise TypeError(f"an endpoint of a mesh is not called itself; use one of its verbs: .{', .'.join(VERBS)}")


class EndpointMethod(Generic[P, R, S]):
    """What `@endpoint` makes of a method: `Trainer.step`, to be named in `mesh.call(Trainer.step, 1)`."""

    info: EndpointInfo
    """What Roost knows of it."""

    if TYPE_CHECKING:

        def __init__(self, info: EndpointInfo) -> None: ...

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> Endpoint[P, R, S]: ...
        def __get__(self, instance: object, owner: type | None = None) -> Self | Endpoint[P, R, S]: ...

    else:
        __class_getitem__ = classmethod(types.GenericAlias)

        def __init__(self, info: EndpointInfo) -> None:
            self.info = info
            update_wrapper(self, info.function)  # its name and text, for help() and documentation tools

        def __get__(self, instance: object, owner: type | None = None) -> EndpointMethod | types.MethodType:
            return self if instance is None else types.MethodType(self.__wrapped__, instance)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        function = self.info.function
        if function.__module__ != "__main__" and _found(function.__module__, function.__qualname__) is self:
            return _named, (function.__module__, function.__qualname__)
        return EndpointMethod, (self.info,)

    def __repr__(self) -> str:
        return f"<endpoint {self.info.qualname}{self.info.signature}>"


if TYPE_CHECKING:
    # What `mesh.step` and `self.step` are, by the sort of the method: an Endpoint, callable as the method itself.

    class _BoundAsync(Endpoint[P, R]):
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    class _BoundSync(Endpoint[P, R]):
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class _BoundStream(Endpoint[P, list[R], R]):
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]: ...

    class _BoundPort(Endpoint[P, R], Generic[P, R, M]):
        def __call__(self, port: Port[R], /, *args: P.args, **kwargs: P.kwargs) -> M: ...

    class _AsyncMethod(EndpointMethod[P, R]):
        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> _BoundAsync[P, R]: ...
        def __get__(self, instance: object, owner: type | None = None) -> Self | _BoundAsync[P, R]: ...

    class _SyncMethod(EndpointMethod[P, R]):
        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> _BoundSync[P, R]: ...
        def __get__(self, instance: object, owner: type | None = None) -> Self | _BoundSync[P, R]: ...

    class _StreamMethod(EndpointMethod[P, list[R], R]):
        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> _BoundStream[P, R]: ...
        def __get__(self, instance: object, owner: type | None = None) -> Self | _BoundStream[P, R]: ...

    class _PortMethod(EndpointMethod[P, R], Generic[P, R, M]):
        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> _BoundPort[P, R, M]: ...
        def __get__(self, instance: object, owner: type | None = None) -> Self | _BoundPort[P, R, M]: ...

    class _Decorator(Protocol):
        # The overlaps are meant: what is async is never taken for a plain answer.
        @overload
        def __call__(self, method: Callable[Concatenate[Any, P], AsyncIterator[R]], /) -> _StreamMethod[P, R]: ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> _AsyncMethod[P, R]: ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, method: Callable[Concatenate[Any, P], R], /) -> _SyncMethod[P, R]: ...

    class _PortDecorator(Protocol):
        def __call__(self, method: Callable[Concatenate[Any, Port[R], P], M], /) -> _PortMethod[P, R, M]: ...


# The overlaps are meant: what is async is never taken for a plain answer.
@overload
def endpoint(method: Callable[Concatenate[Any, P], AsyncIterator[R]], /) -> _StreamMethod[P, R]: ...  # type: ignore[overload-overlap]
@overload
def endpoint(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> _AsyncMethod[P, R]: ...  # type: ignore[overload-overlap]
@overload
def endpoint(method: Callable[Concatenate[Any, P], R], /) -> _SyncMethod[P, R]: ...
@overload
def endpoint(
    *, reply: Literal["port"], concurrent: bool = False, limit: int | None = None, group: str | None = None
) -> _PortDecorator: ...
@overload
def endpoint(*, concurrent: bool = False, limit: int | None = None, group: str | None = None) -> _Decorator: ...
def endpoint(
    method: Callable[..., object] | None = None,
    /,
    *,
    reply: str | None = None,
    concurrent: bool = False,
    limit: int | None = None,
    group: str | None = None,
) -> object:
    """Make a method of an actor callable from elsewhere.

    Args:
        method: The method: `async def`, `def` (runs on a thread of that actor), or an `async def` that yields.
        reply: `"port"` hands the method a `Port` after self, to answer later, many times, or from elsewhere.
        concurrent: Let other endpoints of the actor run while this one waits.
        limit: How many of a concurrent endpoint, or of its group, may run at once.
        group: Concurrent endpoints of one group share one limit.

    Returns:
        The endpoint, or a decorator when only options are given.

    Raises:
        TypeError: The method or an option cannot be an endpoint's; the text says what to do.
        ValueError: A limit below 1.
    """
    if reply not in (None, "port"):
        raise TypeError(
            f'@endpoint(reply={reply!r}) is unknown; use reply="port", or leave it out to return the answer'
        )
    if not concurrent and (limit is not None or group is not None):
        option = "limit" if limit is not None else "group"
        raise TypeError(f"@endpoint({option}=…) bounds endpoints that run beside others; add concurrent=True")
    if limit is not None and limit < 1:
        raise ValueError(f"@endpoint(limit={limit}) would run nothing; give at least 1, or leave it out for no bound")

    def decorate(function: Callable[..., object]) -> EndpointMethod[..., Any, Any]:
        kind, is_async = _kind(function, reply)
        info = EndpointInfo(function, kind=kind, is_async=is_async, concurrent=concurrent, limit=limit, group=group)
        return EndpointMethod(info)

    return decorate if method is None else decorate(method)


def _kind(function: Callable[..., object], reply: str | None) -> tuple[EndpointKind, bool]:
    if not isinstance(function, types.FunctionType):
        raise TypeError(
            f"@endpoint goes on a `def` or `async def` method, not on {function!r};"
            " write it below @staticmethod or the like, or leave that out"
        )
    name = function.__qualname__
    if function.__name__.startswith("__") and function.__name__.endswith("__"):
        raise TypeError(f"{name} cannot be an endpoint: such names are Python's and the runtime's; choose another name")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{name} is a `def` that yields; make it `async def`, and its values stream to the caller")
    _check_first_arguments(function, ("self", "port") if reply == "port" else ("self",))
    if inspect.isasyncgenfunction(function):
        if reply == "port":
            raise TypeError(
                f'{name} yields and has reply="port"; answer by one of them: yield values, or port.send() them'
            )
        return "stream", True
    is_async = inspect.iscoroutinefunction(function)
    if reply == "port":
        return "port", is_async
    return ("async", True) if is_async else ("sync", False)


def _check_first_arguments(function: types.FunctionType, first: tuple[str, ...]) -> None:
    code = function.__code__
    takes_any = bool(code.co_flags & inspect.CO_VARARGS)  # as a decorator's wrapper does
    if code.co_argcount < len(first) and not takes_any:
        raise TypeError(f"{function.__qualname__} must take {' and '.join(first)} first, which Roost passes")


def _found(module: str, qualname: str) -> object:
    found: object = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _named(module: str, qualname: str) -> object:
    """The endpoint of a class that both sides can import."""
    __import__(module)
    return _found(module, qualname)
