"""`Actor`: what users derive their actors from, and what type checkers see of a mesh of them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, overload

from roost.endpoint import VERBS, EndpointMethod

if TYPE_CHECKING:
    import types
    from collections.abc import AsyncIterator, Generator, Iterator, Mapping
    from typing import Self

    from typing_extensions import TypeVar

    from roost.collectives import Communicator
    from roost.endpoint_info import EndpointInfo
    from roost.failure import Event, Failure, State
    from roost.reply import Broadcast, Reply
    from roost.shape import Selection
    from roost.stream import Stream
    from roost.value_mesh import ValueMesh

    R = TypeVar("R")
    S = TypeVar("S", default=R)
    A = TypeVar("A")

P = ParamSpec("P")

__all__ = ["HOOKS", "RESERVED", "Actor"]

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


class Actor:
    """The base of actors: subclass it, give it endpoints, and spawn it on procs.

    The mesh's methods below are there for type checkers, which see a mesh as its actor class. An instance does not
    have them, so an actor may set attributes such as `self.name` and `self.size`.
    """

    if TYPE_CHECKING:
        __roost_endpoints__: ClassVar[dict[str, EndpointInfo]] = {}
    else:
        # No annotation that only type checkers can read: `typing.get_type_hints` of users' actors looks here, too.
        __roost_endpoints__ = {}

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

        def communicator(self, *dimensions: str, timeout: float = 60.0) -> Reply[Communicator]:
            """This rank's end of a group of ranks that compute together, over these dimensions or all."""
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
