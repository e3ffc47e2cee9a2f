"""`BoundEndpoint`: an endpoint on a mesh, whose verbs send; `each()` among their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost._roost import Verb
from roost.endpoint import Endpoint
from roost.ids import chance
from roost.stream import Stream, StreamSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor_mesh import ActorMesh
    from roost.endpoint_info import EndpointInfo
    from roost.reply import Reply

__all__ = ["BoundEndpoint", "Each", "check_timeout", "each", "least_loaded"]

A = TypeVar("A")

_MODES = {"call_one": Verb.CALL_ONE, "call": Verb.CALL, "broadcast": Verb.BROADCAST, "_stream": Verb.STREAM}


class BoundEndpoint(Endpoint[..., Any]):
    """An endpoint on a mesh: `mesh.step`. Its verbs send when they are called, not when the reply is awaited."""

    # The verbs are made in Rust at first use and kept in the slots of their names.
    __slots__ = ("_info", "_mesh", "_stream", "_timeout", "broadcast", "call", "call_one")

    def __init__(self, mesh: ActorMesh, info: EndpointInfo, timeout: float | None) -> None:
        self._mesh = mesh
        self._info = info
        self._timeout = timeout

    def __getattr__(self, name: str) -> Any:
        mode = _MODES.get(name)
        if mode is None:
            raise AttributeError(f"an endpoint has the verbs call, call_one, choose, stream, broadcast; not {name!r}")
        mesh, info = self._mesh, self._info
        if mode == Verb.CALL_ONE and len(mesh) != 1:
            raise ValueError(
                f"call_one() on {len(mesh)} ranks of {mesh._name}: slice the mesh to one rank, or use call()"
            )
        endpoints = mesh._class.__roost_endpoints__  # type: ignore[attr-defined]
        verb = Verb(mesh._runtime().node, mesh._places(), endpoints, info.name, mesh, mode, self._timeout)
        setattr(self, name, verb)
        return verb

    def choose(self, *args: Any, **kwargs: Any) -> Reply[Any]:
        """Call one live rank: the less loaded of two picked at random."""
        mesh = self._mesh
        rank = mesh._runtime().calls.choose(mesh)
        one = mesh if len(mesh) == 1 else mesh._view(mesh._shape.at(rank))
        return BoundEndpoint(one, self._info, self._timeout).call_one(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Stream[Any]:
        """Call every rank and iterate (Point, value) as the answers come."""
        runtime = self._mesh._runtime()
        sink = StreamSink(len(self._mesh))
        self._stream(sink, *args, **kwargs)
        return Stream(runtime, sink, self._mesh._point)

    def options(self, *, timeout: float | None = None) -> BoundEndpoint:
        """The same endpoint with a deadline, in seconds, for each call made through it."""
        return BoundEndpoint(self._mesh, self._info, check_timeout(timeout))

    def __repr__(self) -> str:
        return f"<endpoint {self._info.name} of {self._mesh!r}>"


def check_timeout(timeout: float | None) -> float | None:
    """A deadline in seconds that makes sense."""
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: give seconds above 0, or None for no deadline")
    return timeout


class Each(Generic[A]):
    """What `each()` gives: one argument a rank."""

    __slots__ = ("values",)

    def __init__(self, values: list[A]) -> None:
        self.values = values

    def __reduce__(self) -> Any:
        raise TypeError("each(…) must be an argument of a verb itself, not inside another value")


def each(values: Any) -> Any:
    """As an argument of a verb: rank i gets the i-th value; each proc is sent only its part.

    Args:
        values: a sequence with one value for each rank of the mesh called.
    """
    try:
        each_value = iter(values)
    except TypeError:
        raise TypeError(f"each({values!r}): give a sequence, with one value for each rank") from None
    return Each(list(each_value))


def least_loaded(candidates: list[int], load: Callable[[int], int]) -> int:
    """The less loaded of two picked at random (the power of two choices)."""
    if len(candidates) == 1:
        return candidates[0]
    place = int(chance() * len(candidates))
    # Any but the first, each as likely.
    other = (place + 1 + int(chance() * (len(candidates) - 1))) % len(candidates)
    first, second = candidates[place], candidates[other]
    return first if load(first) <= load(second) else second
