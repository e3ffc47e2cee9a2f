"""Handles: what all meshes share, and `ProcMesh`.

A handle is an address: it owns nothing, pickles small, and outlives restarts. The owner's tables are in `owning`.
"""

from __future__ import annotations

import functools
import typing
from typing import TYPE_CHECKING, Any, TypeVar

from roost import process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
    from typing import Self, SupportsIndex

    from typing_extensions import TypedDict, Unpack

    from roost._roost import Targets
    from roost.actor_mesh import ActorMesh
    from roost.constructing import Plan
    from roost.events import EventStream
    from roost.failure import Failure, Probe, Restart, State
    from roost.owned_procs import OwnedProcs
    from roost.owning import OwnedMesh
    from roost.reply import Reply
    from roost.runtime import Runtime
    from roost.shape import Selection, Shape
    from roost.value_mesh import ValueMesh

__all__ = ["Mesh", "ProcMesh", "SpawnOptions"]

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


_NO_OPTIONS: dict[str, Any] = {}


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

    if TYPE_CHECKING:

        def _view(self, shape: Shape) -> Self:
            """The same mesh, seen in this shape: each kind makes its own."""
            ...

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._id == self._id and other._shape == self._shape

    def __hash__(self) -> int:
        return hash((self._id, self._shape))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, {dict(self.sizes)})"

    def _runtime(self) -> Runtime:
        """That of the mesh's job."""
        return process.of_job(self._name, self._owner)

    def _record(self) -> OwnedMesh:
        record = self._runtime().owned.get(self._id)
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
        runtime = self._runtime()
        runtime.refuse_on_loop("with", "async with")
        runtime.run_elsewhere(self.__aenter__())
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._runtime().run_elsewhere(self.__aexit__(kind, error, traceback))


class ProcMesh(Mesh):
    """A mesh of processes."""

    __slots__ = ("_hosts", "_layouts", "_member_ids", "_plans", "_procs")

    # Ids of the whole mesh's procs, in base rank order.
    _procs: tuple[int, ...]
    # The id and the name of each host, in rank order, as many ranks on each as on any other; none where that is not known.
    _hosts: tuple[tuple[int, str], ...]
    # Those of this slice, in its rank order; worked out once.
    _member_ids: tuple[int, ...]
    # How actors of a class are spawned here.
    _plans: dict[Any, Plan]
    # Where the ranks of a whole mesh live, by the actors of one proc, and whether messages wait: for any of such meshes.
    _layouts: dict[tuple[Shape, bool], Targets]

    @classmethod
    def _make(
        cls, mesh: int, name: str, owner: int, whole: Shape, shape: Shape, procs: tuple[int, ...],
        hosts: tuple[tuple[int, str], ...] = (),
    ) -> ProcMesh:  # fmt: skip
        made = cls.__new__(cls)
        made._id, made._name, made._owner, made._whole, made._shape, made._procs, made._hosts = (
            mesh,
            name,
            owner,
            whole,
            shape,
            procs,
            hosts,
        )
        made._plans, made._layouts = {}, {}
        return made

    def _view(self, shape: Shape) -> ProcMesh:
        return ProcMesh._make(self._id, self._name, self._owner, self._whole, shape, self._procs, self._hosts)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        parts = self._id, self._name, self._owner, self._whole, self._shape, self._procs, self._hosts
        return ProcMesh._make, parts

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
        return _spawner()(self._runtime(), self, self._plans, name, actor, args, kwargs, _NO_OPTIONS)  # type: ignore[return-value]

    def get_or_spawn(self, name: str, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> Reply[A]:
        """The service of this name; on these procs when there is none. See `roost.get_or_spawn`."""
        return _asker()(name, actor, args, kwargs, self, _NO_OPTIONS)

    def exec(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Reply[ValueMesh[int]]:
        """Run a command beside each of these procs; its output goes where theirs goes, and it ends when the reply is cancelled.

        Args:
            command: the program and its arguments.
            env: environment variables besides the proc's.
            cwd: its working directory; the proc's when left out.

        Returns:
            The exit codes; of one that a signal ended, the signal's number below zero.

        Raises:
            OSError: by the reply: it cannot be started.
        """
        from roost.executing import execute

        return execute(self, command, env, cwd)

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
        return _spawner()(self._procs._runtime(), self._procs, self._plans, name, actor, args, kwargs, self._options)  # type: ignore[return-value]

    def get_or_spawn(self, name: str, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> Reply[A]:
        """The service of this name; on these procs, with these options, when there is none. See `roost.get_or_spawn`."""
        return _asker()(name, actor, args, kwargs, self._procs, self._options)
