"""`Actor` and `@endpoint`: how users write actors, and what type checkers see of them on a mesh.

A mesh of `Trainer` is typed as `Trainer`, so `trainers.step` is the same attribute on a mesh and on `self`. Its
type is an `Endpoint` with the verbs that is also callable as the method itself; at run time a mesh gives the
first and an instance the second.
"""

from __future__ import annotations

import inspect
import sys
import types
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, ParamSpec, overload

from roost.endpoint_info import EndpointInfo, EndpointKind

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Coroutine,
        Generator,
        Iterator,
        Mapping,
    )
    from typing import Concatenate, Protocol, Self

    from typing_extensions import TypeVar

    from roost.channel import Port
    from roost.failure import Event, Failure, State
    from roost.reply import Broadcast, Reply
    from roost.shape import Selection
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

__all__ = ["HOOKS", "RESERVED", "Actor", "Endpoint", "EndpointMethod", "endpoint"]

VERBS = ("call", "call_one", "choose", "stream", "broadcast")
SHAPE_METHODS = ("slice", "split", "flatten", "rename")

RESERVED: tuple[str, ...] = (
    *VERBS,
    *SHAPE_METHODS,
    "sizes",
    "options",
    "events",
    "ready",
    "wait",
    "stop",
    "restart",
    "states",
    "spawn",
    "communicator",
)
"""Names that a mesh has itself, and that no endpoint may take."""

HOOKS: tuple[str, ...] = ("__start__", "__cleanup__", "__healthy__", "__supervise__")
"""Methods that the runtime calls, all `async def`."""


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


class Actor:
    """The base of actors: subclass it, give it endpoints, and spawn it on procs.

    The mesh's methods below are there for type checkers, which see a mesh as its actor class. An instance does not
    have them, so an actor may set attributes such as `self.name` and `self.size`.
    """

    __roost_endpoints__: ClassVar[dict[str, EndpointInfo]] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in HOOKS:
            hook = cls.__dict__.get(name)
            if hook is not None and not inspect.iscoroutinefunction(hook):
                raise TypeError(f"{cls.__qualname__}.{name} must be `async def`: the runtime awaits it on the loop")
        cls.__roost_endpoints__ = _with_group_limits(cls, _collect(cls))

    if TYPE_CHECKING:

        async def __start__(self) -> None:
            """Run after the constructor, at each incarnation, before the first message."""

        async def __cleanup__(self, exc: BaseException | None) -> None:
            """Run when the actor stops or failed with `exc`."""

        async def __healthy__(self) -> bool:
            """Answer a `Probe`: False, raising or silence is a miss."""
            ...

        async def __supervise__(self, failure: Failure) -> bool:
            """Hear of a failure among what this actor spawned; True when it is handled."""
            ...

        @overload
        def call(
            self, endpoint: EndpointMethod[P, R, S], /, *args: P.args, **kwargs: P.kwargs
        ) -> Reply[ValueMesh[R]]: ...
        @overload
        def call(self, endpoint: str, /, *args: object, **kwargs: object) -> Reply[ValueMesh[Any]]: ...
        def call(self, endpoint: object, /, *args: object, **kwargs: object) -> Reply[ValueMesh[Any]]:
            """Send to every rank; the reply has one answer of each."""
            ...

        @overload
        def call_one(self, endpoint: EndpointMethod[P, R, S], /, *args: P.args, **kwargs: P.kwargs) -> Reply[R]: ...
        @overload
        def call_one(self, endpoint: str, /, *args: object, **kwargs: object) -> Reply[Any]: ...
        def call_one(self, endpoint: object, /, *args: object, **kwargs: object) -> Reply[Any]:
            """Send to the only rank; the reply is its answer."""
            ...

        @overload
        def choose(self, endpoint: EndpointMethod[P, R, S], /, *args: P.args, **kwargs: P.kwargs) -> Reply[R]: ...
        @overload
        def choose(self, endpoint: str, /, *args: object, **kwargs: object) -> Reply[Any]: ...
        def choose(self, endpoint: object, /, *args: object, **kwargs: object) -> Reply[Any]:
            """Send to the less loaded of two live ranks picked at random."""
            ...

        @overload
        def stream(self, endpoint: EndpointMethod[P, R, S], /, *args: P.args, **kwargs: P.kwargs) -> Stream[S]: ...
        @overload
        def stream(self, endpoint: str, /, *args: object, **kwargs: object) -> Stream[Any]: ...
        def stream(self, endpoint: object, /, *args: object, **kwargs: object) -> Stream[Any]:
            """Send to every rank, and iterate over (point, answer) as they come."""
            ...

        @overload
        def broadcast(self, endpoint: EndpointMethod[P, R, S], /, *args: P.args, **kwargs: P.kwargs) -> Broadcast: ...
        @overload
        def broadcast(self, endpoint: str, /, *args: object, **kwargs: object) -> Broadcast: ...
        def broadcast(self, endpoint: object, /, *args: object, **kwargs: object) -> Broadcast:
            """Send to every rank without an answer; await it to wait for room."""
            ...

        @property
        def sizes(self) -> Mapping[str, int]:
            """The mesh's dimensions and how many ranks each has."""
            ...

        def slice(self, **selections: Selection) -> Self:
            """Part of the mesh: a number drops its dimension, a `slice` keeps it."""
            ...

        def split(self, **into: tuple[str, ...] | int) -> Self:
            """The mesh with dimensions split in parts: `split(gpus=("nodes", "local"), local=4)`."""
            ...

        def flatten(self, name: str, /) -> Self:
            """The mesh with all its ranks in one dimension."""
            ...

        def rename(self, **names: str) -> Self:
            """The mesh with other names for its dimensions."""
            ...

        def options(self, *, timeout: float | None = None) -> Self:
            """The mesh whose verbs have a deadline in seconds."""
            ...

        def events(self) -> AsyncIterator[Event]:
            """What happens to the mesh from now on."""
            ...

        def ready(self) -> Reply[Self]:
            """The mesh once all ranks are up; raises when they cannot be."""
            ...

        def wait(self) -> Reply[ValueMesh[State]]:
            """How each rank ended, once all have."""
            ...

        def states(self) -> Reply[ValueMesh[State]]:
            """How each rank is."""
            ...

        def stop(self, reason: str = "stopped") -> Reply[None]:
            """Stop every rank."""
            ...

        def restart(self, reason: str = "restarted") -> Reply[None]:
            """Start the next incarnation of every rank."""
            ...

        def __len__(self) -> int: ...
        def __iter__(self) -> Iterator[Self]: ...
        def __await__(self) -> Generator[Any, None, Self]: ...
        async def __aenter__(self) -> Self: ...
        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            exc: BaseException | None,
            traceback: types.TracebackType | None,
            /,
        ) -> None: ...
        def __enter__(self) -> Self: ...
        def __exit__(
            self,
            kind: type[BaseException] | None,
            exc: BaseException | None,
            traceback: types.TracebackType | None,
            /,
        ) -> None: ...


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


def _collect(cls: type) -> dict[str, EndpointInfo]:
    """A class's endpoints by name, inherited ones too, in the order of definition from the base on."""
    table: dict[str, EndpointInfo] = {}
    for base in reversed(cls.__mro__):
        for name, value in base.__dict__.items():
            if isinstance(value, EndpointMethod):
                _check_name(cls, name, value.info)
                table[name] = value.info
            elif name in table:
                _refuse_override(base, name, table[name])
    return table


def _check_name(cls: type, name: str, info: EndpointInfo) -> None:
    if name in RESERVED:
        raise TypeError(
            f"{cls.__qualname__}.{name} cannot be an endpoint: a mesh has its own {name!r}; rename it"
            f" (reserved are {', '.join(RESERVED)})"
        )
    if name != info.name:
        raise TypeError(
            f"{cls.__qualname__}.{name} is the endpoint {info.name!r} under a second name; write a method for it"
        )


def _refuse_override(cls: type, name: str, info: EndpointInfo) -> NoReturn:
    raise TypeError(
        f"{cls.__qualname__}.{name} overrides the endpoint {info.qualname} without being one; add @endpoint"
    )


def _with_group_limits(cls: type, table: dict[str, EndpointInfo]) -> dict[str, EndpointInfo]:
    """Give each endpoint of a group the group's limit, which one of them says or all say alike."""
    limits: dict[str, set[int]] = {}
    for info in table.values():
        if info.group is not None:
            limits.setdefault(info.group, set()).update(() if info.limit is None else (info.limit,))
    for group, said in limits.items():
        if len(said) != 1:
            wrong = f"limits {sorted(said)}" if said else "no limit"
            raise TypeError(
                f"group {group!r} of {cls.__qualname__} has {wrong}; give one limit=, on one of its endpoints"
            )
    return {
        name: info if info.group is None else info.with_limit(next(iter(limits[info.group])))
        for name, info in table.items()
    }


def _found(module: str, qualname: str) -> object:
    found: object = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _named(module: str, qualname: str) -> object:
    """The endpoint of a class that both sides can import."""
    __import__(module)
    return _found(module, qualname)
