"""Handles: `HostMesh`, `ProcMesh`, `ActorMesh` and the endpoints on them.

A handle is an address: it owns nothing, pickles small, and outlives restarts. The owner's tables are in `owning`.
"""

from __future__ import annotations

import functools
import typing
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost import process
from roost._roost import Targets, Verb
from roost.endpoint import Actor, Endpoint
from roost.gathered import GatheredReply
from roost.point import Point, rank_name
from roost.shape import Selection, Shape, encode_sizes
from roost.stream import Stream, StreamSink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
    from typing import Self, SupportsIndex

    from typing_extensions import TypedDict, Unpack

    from roost.constructing import Plan
    from roost.endpoint_info import EndpointInfo
    from roost.events import EventStream
    from roost.failure import Bind, Failure, Probe, Restart, State
    from roost.owned_actors import OwnedActors
    from roost.owned_procs import OwnedProcs
    from roost.owning import OwnedMesh
    from roost.reply import Reply
    from roost.spawning import Env
    from roost.value_mesh import ValueMesh

__all__ = ["ActorMesh", "BoundEndpoint", "HostMesh", "ProcMesh"]

A = TypeVar("A")
P = typing.ParamSpec("P")

if TYPE_CHECKING:

    class _ActorOptions(TypedDict, total=False):
        """What `procs.options()` takes."""

        restart: Restart | None
        probe: Probe | None
        per_proc: Mapping[str, int]
        supervise: Callable[[Failure], Awaitable[bool]]
        cleanup_timeout_s: float

    class _ProcOptions(TypedDict, total=False):
        """The keywords of `roost.spawning.spawn_procs` once more; a test compares the two."""

        name: str | None
        env: Env | None
        preload: Sequence[str]
        restart: Restart | None
        spares: int
        bind: Bind | Callable[[Point, int], Bind | None] | None
        start: str | Sequence[str] | Callable[[Point, int], str | Sequence[str]]
        gpus_per_proc: int | None
        setup: Callable[[], object] | None
        supervise: Callable[[Failure], Awaitable[bool]] | None
        logs: bool


_NO_OPTIONS: dict[str, Any] = {}

_MODES = {"call_one": Verb.CALL_ONE, "call": Verb.CALL, "broadcast": Verb.BROADCAST, "_stream": Verb.STREAM}


class Mesh:
    """What proc and actor meshes share: shape, life, waiting."""

    __slots__ = ("_id", "_name", "_owner", "_shape", "_whole")

    _id: int
    _name: str
    _owner: int
    # The shape of the whole mesh, and of this handle's slice of it.
    _whole: Shape
    _shape: Shape

    @property
    def sizes(self) -> Mapping[str, int]:
        """The dimensions and how many ranks each has."""
        return self._shape.sizes

    def __len__(self) -> int:
        return len(self._shape)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Self]:
        return (self._view(self._shape.at(rank)) for rank in range(len(self._shape)))

    def slice(self, **selections: Selection) -> Self:
        """Part of the mesh: a number drops its dimension, a `slice` keeps it."""
        return self._view(self._shape.slice(**selections))

    def split(self, **into: Sequence[str] | SupportsIndex) -> Self:
        """The same ranks with a dimension split: `split(gpus=("nodes", "local"), local=4)`."""
        return self._view(self._shape.split(**into))

    def flatten(self, name: str) -> Self:
        """The same ranks in one dimension."""
        return self._view(self._shape.flatten(name))

    def rename(self, **names: str) -> Self:
        """The same ranks with dimensions of other names."""
        return self._view(self._shape.rename(**names))

    def _view(self, shape: Shape) -> Self:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._id == self._id and other._shape == self._shape

    def __hash__(self) -> int:
        return hash((self._id, self._shape))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, {dict(self.sizes)})"

    def _record(self) -> OwnedMesh:
        record = process.current().owned.get(self._id)
        if record is None:
            raise RuntimeError(
                f"{self._name} is owned by another process; only its owner may wait for it, stop it or ask for its states"
            )
        return record

    def ready(self) -> Reply[Self]:
        """The mesh itself, when all its ranks are up; raises what went wrong when they cannot be."""
        return self._record().ready(self)

    def __await__(self) -> Generator[Any, None, Self]:
        return self.ready().__await__()

    def wait(self) -> Reply[ValueMesh[State]]:
        """The last states, when all ranks have ended."""
        return self._record().wait(self._shape)

    def stop(self, reason: str = "stopped") -> Reply[None]:
        """Stop these ranks: `async` endpoints are cancelled, then a grace time, SIGTERM, SIGKILL. Idempotent."""
        return self._record().stop(self._shape, reason)

    def restart(self, reason: str = "restarted") -> Reply[None]:
        """Start the next incarnation of these ranks."""
        return self._record().restart(self._shape, reason)

    def states(self) -> Reply[ValueMesh[State]]:
        """How each rank is; also after the stop."""
        return self._record().states(self._shape)

    def events(self) -> EventStream:
        """What happens to these ranks from now on: `async for event in mesh.events()`."""
        return self._record().events(self._shape)

    async def __aenter__(self) -> Self:
        record = self._record()
        record.entered += 1
        try:
            await self.ready()
        except BaseException as error:
            # The failure to start is raised here; leaving it for the exit too would tell it twice.
            await record.leave(self._shape, error, entering=True)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._record().leave(self._shape, error)

    def __enter__(self) -> Self:
        process.current().refuse_on_loop("with", "async with")
        process.current().run_elsewhere(self.__aenter__())
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        process.current().run_elsewhere(self.__aexit__(kind, error, traceback))


class ProcMesh(Mesh):
    """A mesh of processes."""

    __slots__ = ("_layouts", "_member_ids", "_plans", "_procs")

    # Ids of the whole mesh's procs, in base rank order.
    _procs: tuple[int, ...]
    # Those of this slice, in its rank order; worked out once.
    _member_ids: tuple[int, ...]
    # How actors of a class are spawned here.
    _plans: dict[Any, Plan]
    # Where the ranks of a whole mesh live, by the actors of one proc, and whether messages wait: for any of such meshes.
    _layouts: dict[tuple[Shape, bool], Targets]

    @classmethod
    def _make(cls, mesh: int, name: str, owner: int, whole: Shape, shape: Shape, procs: tuple[int, ...]) -> ProcMesh:
        made = cls.__new__(cls)
        made._id, made._name, made._owner, made._whole, made._shape, made._procs = (
            mesh,
            name,
            owner,
            whole,
            shape,
            procs,
        )
        made._plans, made._layouts = {}, {}
        return made

    def _view(self, shape: Shape) -> ProcMesh:
        return ProcMesh._make(self._id, self._name, self._owner, self._whole, shape, self._procs)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return ProcMesh._make, (self._id, self._name, self._owner, self._whole, self._shape, self._procs)

    def _record(self) -> OwnedProcs:
        return super()._record()  # type: ignore[return-value]

    def _members(self) -> tuple[int, ...]:
        """The procs of this slice, in its rank order."""
        try:
            return self._member_ids
        except AttributeError:
            procs = self._procs
            self._member_ids = tuple(procs[rank] for rank in self._shape.ranks())
            return self._member_ids

    def spawn(self, name: str, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """One actor on each proc; at once, with a mesh that can be used while the actors are being made.

        Args:
            name: the mesh's name; it need not be unique.
            actor: the actor class.
            *args: the constructor's arguments.
            **kwargs: the same.
        """
        return _spawner()(process.current(), self, self._plans, name, actor, args, kwargs, _NO_OPTIONS)  # type: ignore[return-value]

    def get_or_spawn(self, name: str, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> Reply[A]:
        """The service of this name; on these procs when there is none. See `roost.get_or_spawn`."""
        return _asker()(name, actor, args, kwargs, self, _NO_OPTIONS)

    def options(self, **options: Unpack[_ActorOptions]) -> SpawnOptions:
        """The same procs with options for `spawn` and `get_or_spawn`: restart, probe, per_proc, supervise, cleanup_timeout_s.

        Args:
            **options: `restart`, a policy for each actor alone; `probe`, how often each is asked for its health; `per_proc`, names
                and sizes of dimensions inside each proc; `supervise`, an async function of a failure that says True when it
                handled it; `cleanup_timeout_s`, the time for `__cleanup__`.
        """
        return SpawnOptions(self, dict(options))


@functools.cache
def _spawner() -> Callable[..., ActorMesh]:
    # Not imported at the top: it makes handles.
    from roost.spawning import spawn_actors

    return spawn_actors


@functools.cache
def _asker() -> Callable[..., Reply[Any]]:
    # Few programs have services.
    from roost.services import ask

    return ask


class SpawnOptions:
    """`procs.options(…)`: has `spawn` and `get_or_spawn` as the procs have."""

    __slots__ = ("_options", "_plans", "_procs")

    KNOWN = ("restart", "probe", "per_proc", "supervise", "cleanup_timeout_s")

    def __init__(self, procs: ProcMesh, options: dict[str, Any]) -> None:
        unknown = sorted(set(options) - set(self.KNOWN))
        if unknown:
            raise TypeError(f"options() knows no {', '.join(unknown)}; it takes {', '.join(self.KNOWN)}")
        self._procs = procs
        self._options = options
        self._plans: dict[Any, Plan] = {}

    def spawn(self, name: str, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """One actor on each proc, or `per_proc` actors on each; see `ProcMesh.spawn`."""
        return _spawner()(process.current(), self._procs, self._plans, name, actor, args, kwargs, self._options)  # type: ignore[return-value]

    def get_or_spawn(self, name: str, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> Reply[A]:
        """The service of this name; on these procs, with these options, when there is none. See `roost.get_or_spawn`."""
        return _asker()(name, actor, args, kwargs, self._procs, self._options)


class HostMesh:
    """Hosts that procs can be spawned on."""

    __slots__ = ()

    @property
    def sizes(self) -> Mapping[str, int]:
        """The dimensions of the hosts; `this_host()` has none."""
        return {}

    def __repr__(self) -> str:
        return "this_host()"

    def spawn_procs(self, per_host: Mapping[str, int] | None = None, **options: Unpack[_ProcOptions]) -> ProcMesh:
        """Processes on each host; returns at once. See `roost.spawning.spawn_procs` for the options."""
        from roost.spawning import spawn_procs

        return spawn_procs(process.current(), per_host, **options)


class ActorMesh(Mesh):
    """A mesh of actors of one class. To type checkers it is that class."""

    __slots__ = ("__dict__", "_class", "_on", "_per_proc", "_targets", "_waits")

    # The procs that it lives on (the slice that it was spawned on), and the dimensions of the actors of one proc.
    _on: ProcMesh
    _per_proc: Shape
    _class: type
    # Whether messages wait while a proc restarts.
    _waits: bool
    _targets: Targets | None

    @classmethod
    def _make(
        cls,
        mesh: int,
        name: str,
        owner: int,
        on: ProcMesh,
        per_proc: Shape,
        shape: Shape | None,
        actor: type,
        waits: bool,
    ) -> ActorMesh:
        made = cls.__new__(cls)
        made._id, made._name, made._owner, made._on, made._per_proc = mesh, name, owner, on, per_proc
        made._whole = on._shape.extend(per_proc.sizes) if per_proc.names else on._shape.whole()
        made._shape = made._whole if shape is None else shape
        made._class, made._waits, made._targets = actor, waits, None
        return made

    @classmethod
    def _planned(cls, plan: Plan, mesh: int, name: str) -> ActorMesh:
        """A whole mesh, as it is spawned."""
        made = cls.__new__(cls)
        made._id, made._name, made._owner, made._on, made._per_proc = mesh, name, plan.owner, plan.on, plan.per_proc
        made._whole = made._shape = plan.whole
        made._class, made._waits, made._targets = plan.actor, plan.waits, None
        return made

    def _view(self, shape: Shape) -> ActorMesh:
        return ActorMesh._make(
            self._id, self._name, self._owner, self._on, self._per_proc, shape, self._class, self._waits
        )

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        shape = None if self._shape == self._whole else self._shape
        return ActorMesh._make, (
            self._id, self._name, self._owner, self._on, self._per_proc, shape, self._class, self._waits,
        )  # fmt: skip

    def _record(self) -> OwnedActors:
        return super()._record()  # type: ignore[return-value]

    def _places(self) -> Targets:
        """Where messages to this slice go: worked out once."""
        targets = self._targets
        if targets is None:
            if self._shape is self._whole:
                # Many meshes are spawned on the same procs, and have their ranks at the same places.
                known, key = self._on._layouts, (self._per_proc, self._waits)
                if key not in known:
                    known[key] = self._targets_of(self._shape)
                targets = known[key].of_mesh(self._id)
            else:
                targets = self._targets_of(self._shape)
            self._targets = targets
            process.current().members.note(self)
        return targets

    def _targets_of(self, shape: Shape) -> Targets:
        per = len(self._per_proc)
        procs = self._on._members()
        places: dict[int, list[tuple[int, int, int, int, int]]] = {}
        rank = 0
        for first, count, stride in shape.runs():
            for place, run in _by_proc(first, count, stride, per, rank):
                places.setdefault(procs[place], []).append(run)
            rank += count
        sizes = b"" if not shape.names else encode_sizes(shape)
        return Targets(self._id, list(places.items()), per, sizes, self._waits)

    def _dense(self) -> Shape:
        """The shape of the answers: this slice's dimensions, as a whole of their own."""
        return self._shape.whole()

    def _name_of(self, rank: int) -> str:
        """A rank of this slice by its name in the whole mesh: `workers[gpus=3]`."""
        return rank_name(self._name, self._whole.point(self._shape.base_rank(rank)))

    def _point(self, rank: int) -> Point:
        return self._shape.point(rank)

    def __getattr__(self, name: str) -> BoundEndpoint:
        info = self._class.__roost_endpoints__.get(name)  # type: ignore[attr-defined]
        if info is None:
            raise AttributeError(self._no_endpoint(name))
        bound = self.__dict__[name] = BoundEndpoint(self, info, None)
        return bound

    def _no_endpoint(self, name: str) -> str:
        known = ", ".join(sorted(self._class.__roost_endpoints__)) or "none"  # type: ignore[attr-defined]
        if hasattr(self._class, name):
            return (
                f"{self._class.__qualname__}.{name} is not an endpoint: decorate it with @endpoint to call it on a mesh"
            )
        return f"{self._class.__qualname__} has no endpoint {name!r}; it has: {known}"

    def _bound(self, endpoint: Any) -> BoundEndpoint:
        name = endpoint if isinstance(endpoint, str) else getattr(getattr(endpoint, "info", None), "name", None)
        if not isinstance(name, str):
            raise TypeError(f"{endpoint!r} is no endpoint: give Class.method or the method's name")
        bound = getattr(self, name)
        if not isinstance(bound, BoundEndpoint):
            raise AttributeError(self._no_endpoint(name))  # noqa: TRY004 - as for any name that a mesh does not have
        return bound

    def call(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> Reply[Any]:
        """Call an endpoint on every rank: a `ValueMesh`."""
        return self._bound(endpoint).call(*args, **kwargs)

    def call_one(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> Reply[Any]:
        """Call an endpoint on the one rank of this mesh."""
        return self._bound(endpoint).call_one(*args, **kwargs)

    def choose(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> Reply[Any]:
        """Call an endpoint on one live rank: the less loaded of two picked at random."""
        return self._bound(endpoint).choose(*args, **kwargs)

    def stream(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> Stream[Any]:
        """Call an endpoint on every rank and iterate the answers as they come."""
        return self._bound(endpoint).stream(*args, **kwargs)

    def broadcast(self, endpoint: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Send to every rank without wanting an answer."""
        return self._bound(endpoint).broadcast(*args, **kwargs)

    def options(self, *, timeout: float | None = None) -> ActorMesh:
        """The same mesh with options for every call made through it."""
        return _TimedMesh._of(self, timeout)


class _TimedMesh(ActorMesh):
    """An actor mesh whose calls have a deadline."""

    __slots__ = ("_timeout",)

    _timeout: float | None

    @classmethod
    def _of(cls, mesh: ActorMesh, timeout: float | None) -> _TimedMesh:
        made = cls.__new__(cls)
        for name in ("_id", "_name", "_owner", "_on", "_per_proc", "_whole", "_shape", "_class", "_waits", "_targets"):
            setattr(made, name, getattr(mesh, name))
        made._timeout = check_timeout(timeout)
        return made

    def __getattr__(self, name: str) -> BoundEndpoint:
        bound = super().__getattr__(name).options(timeout=self._timeout)
        self.__dict__[name] = bound
        return bound


def check_timeout(timeout: float | None) -> float | None:
    """A deadline in seconds that makes sense."""
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: give seconds above 0, or None for no deadline")
    return timeout


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
        verb = Verb(process.current().node, mesh._places(), endpoints, info.name, mesh, mode, self._timeout)
        setattr(self, name, verb)
        return verb

    def choose(self, *args: Any, **kwargs: Any) -> Reply[Any]:
        """Call one live rank: the less loaded of two picked at random."""
        mesh = self._mesh
        rank = process.current().choose(mesh)
        one = mesh if len(mesh) == 1 else mesh._view(mesh._shape.at(rank))
        return BoundEndpoint(one, self._info, self._timeout).call_one(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Stream[Any]:
        """Call every rank and iterate (Point, value) as the answers come."""
        runtime = process.current()
        sink = StreamSink(len(self._mesh))
        self._stream(sink, *args, **kwargs)
        return Stream(runtime, sink, self._mesh._point)

    def options(self, *, timeout: float | None = None) -> BoundEndpoint:
        """The same endpoint with a deadline, in seconds, for each call made through it."""
        return BoundEndpoint(self._mesh, self._info, check_timeout(timeout))

    def __repr__(self) -> str:
        return f"<endpoint {self._info.name} of {self._mesh!r}>"


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


_signatures: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()


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
    return Each(list(values))


def least_loaded(candidates: list[int], load: Callable[[int], int]) -> int:
    """The less loaded of two picked at random (the power of two choices)."""
    if len(candidates) == 1:
        return candidates[0]
    from random import sample  # a millisecond that few programs need

    first, second = sample(candidates, 2)
    return first if load(first) <= load(second) else second


def _by_proc(
    first: int, count: int, stride: int, per: int, rank: int
) -> Iterator[tuple[int, tuple[int, int, int, int, int]]]:
    """A run of base ranks, cut at the borders of procs: (place, (slot, count, slot stride, rank, rank stride))."""
    done = 0
    while done < count:
        base = first + done * stride
        place, slot = divmod(base, per)
        here = min(count - done, (per - 1 - slot) // stride + 1)
        yield place, (slot, here, stride if here > 1 else 1, rank + done, 1)
        done += here


__all__ += ["Each", "GatheredReply", "SpawnOptions", "each", "least_loaded"]
