"""`ActorMesh`: the handle of a mesh of actors, and where its ranks live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roost import process
from roost._roost import Targets
from roost.bound import BoundEndpoint, check_timeout
from roost.mesh import Mesh
from roost.point import rank_name
from roost.shape import encode_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roost.collectives import Communicator
    from roost.collectives.library import Backend
    from roost.collectives.process_group import ProcessGroup
    from roost.constructing import Plan
    from roost.mesh import ProcMesh
    from roost.owned_actors import OwnedActors
    from roost.point import Point
    from roost.reply import Reply
    from roost.runtime import Runtime
    from roost.shape import Shape
    from roost.stream import Stream

__all__ = ["ActorMesh"]


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

    def _runtime(self) -> Runtime:
        return process.of_job(self._name, self._owner, self._on._owner)

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
            self._runtime().members.note(self)
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

    def communicator(self, *dimensions: str, backend: Backend = "gloo", timeout: float = 60.0) -> Reply[Communicator]:
        """This rank's end of a group of ranks that compute together; each rank of the group awaits its own, inside an endpoint.

        Args:
            *dimensions: the dimensions that the group spans: it is of the ranks that differ from this one in these alone. All of
                the mesh's when left out.
            backend: what moves the tensors, the same at all ranks: "gloo" those on the CPU, "rccl" those on each process's current GPU,
                by RCCL or, on NVIDIA's, by NCCL.
            timeout: seconds until it gives up and names who has not come.

        Raises:
            RuntimeError: this code does not run in an actor of this mesh.
            ValueError: the mesh has no such dimension, or there is no such backend; the reply, that the others want another one.
            Unavailable: raised by the reply: torch, the library or a GPU is not there, and what was tried.
        """
        # Few programs have collectives.
        from roost.collectives.communicator import communicator_of

        return communicator_of(self, dimensions, backend, timeout)

    def process_group(self, *dimensions: str, timeout: float = 60.0) -> Reply[ProcessGroup]:
        """torch.distributed's default group of the same ranks, for DDP, FSDP and whatever else takes it, without a port or variables.

        Each rank awaits its own, inside an endpoint. Collectives of tensors on the CPU go over gloo, of those on a GPU over "nccl". When
        a rank dies they end at once, in all of torch's groups, with a `RuntimeError`: see `ProcessGroup.explained`.

        Args:
            *dimensions: as for `communicator`.
            timeout: seconds until it gives up and names who has not come.

        Raises:
            RuntimeError: this code does not run in an actor of this mesh.
            ValueError: the mesh has no such dimension.
            CollectiveError: raised by the reply: the group could not be made, or this process has a default group already.
        """
        from roost.collectives.process_group import process_group_of

        return process_group_of(self, dimensions, timeout)

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
