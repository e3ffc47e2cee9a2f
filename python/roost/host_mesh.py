"""`HostMesh`: hosts that procs can be spawned on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from roost import process
from roost.mesh import Mesh
from roost.shape import SCALAR, Shape
from roost.values import check_modules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from typing_extensions import TypedDict, Unpack

    from roost.failure import Bind, Failure, Restart
    from roost.mesh import ProcMesh
    from roost.owned_hosts import OwnedHosts
    from roost.point import Point
    from roost.reply import Reply
    from roost.requesting import Env
    from roost.value_mesh import ValueMesh

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


__all__ = ["HostMesh"]


class HostMesh(Mesh):
    """Hosts that procs can be spawned on: `this_host()`, which has no dimensions, or those of `attach()`."""

    __slots__ = ("_hosts",)

    # The id and the name of each host of the whole mesh, in rank order; None where their owner has them.
    _hosts: tuple[tuple[int, str], ...] | None

    def __init__(self) -> None:
        """This process's own host."""
        self._id = self._owner = 0
        self._name = "this_host()"
        self._whole = self._shape = SCALAR
        self._hosts = None

    @classmethod
    def _make(
        cls, mesh: int, name: str, owner: int, whole: Shape, shape: Shape, hosts: tuple[tuple[int, str], ...] | None
    ) -> HostMesh:
        made = cls.__new__(cls)
        made._id, made._name, made._owner, made._whole, made._shape = mesh, name, owner, whole, shape
        made._hosts = hosts
        return made

    def _view(self, shape: Shape) -> HostMesh:
        return HostMesh._make(self._id, self._name, self._owner, self._whole, shape, self._hosts)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        if not self._id:
            return HostMesh, ()
        return HostMesh._make, (self._id, self._name, self._owner, self._whole, self._shape, self._whole_hosts())

    def __repr__(self) -> str:
        return super().__repr__() if self._id else self._name

    def _record(self) -> OwnedHosts:
        if not self._id:
            raise RuntimeError("this_host() is where this process runs: it is neither waited for nor stopped")
        return super()._record()  # type: ignore[return-value]

    def _whole_hosts(self) -> tuple[tuple[int, str], ...]:
        """The id and the name of each host of the whole mesh."""
        return self._hosts or self._joined(self._whole)

    def _members(self) -> tuple[tuple[int, str], ...]:
        """Those of this slice."""
        if not self._id:
            runtime = process.current()
            return ((runtime.host_id, runtime.host),)
        hosts = self._hosts
        return self._joined(self._shape) if hosts is None else tuple(hosts[rank] for rank in self._shape.ranks())

    def _joined(self, shape: Shape) -> tuple[tuple[int, str], ...]:
        hosts = self._record().hosts_at(shape)
        if hosts is None:
            raise RuntimeError(f"{self._name} have not all joined yet: `await hosts.ready()` first")
        return hosts

    def _check_not_stopped(self) -> None:
        if not self._is_owned():
            return
        from roost.stops import stopped_error

        record = self._record()
        if record.mesh_stopped is not None:
            raise stopped_error(self._name, record.mesh_stopped, advice="; attach the hosts anew")
        for rank in self._shape.ranks():
            if record.state(rank) == "stopped":
                reason = record.reasons.get(rank, "stopped")
                advice = "; attach it anew, or take a slice without it"
                raise stopped_error(record.rank_name(rank), reason, advice=advice)

    def _is_owned(self) -> bool:
        """Whether this process has attached them."""
        return bool(self._id) and self._hosts is None

    def _is_here(self) -> bool:
        """Whether it is this process's own host, and procs there have its surroundings."""
        return not self._id or (self._is_owned() and self._record().is_here)

    @property
    def names(self) -> ValueMesh[str]:
        """What the hosts call themselves.

        Raises:
            RuntimeError: they have not all joined yet.
        """
        from roost.value_mesh import ValueMesh

        names = [name for _, name in self._members()] if self._id else [os.uname().nodename]
        return ValueMesh(self._shape.sizes, names)

    def stop(self, reason: str = "stopped") -> Reply[None]:
        """End what this program has on these hosts, and let go of them; their agents live on. Idempotent."""
        return super().stop(reason)

    def shutdown(self, reason: str = "shut down") -> Reply[None]:
        """The same, and the agents end, too."""
        return self._record().shut_down(self._shape, reason)

    def restart(self, reason: str = "restarted") -> Reply[None]:
        """Not for hosts: their agents are not this program's.

        Raises:
            RuntimeError: always.
        """
        self._record().restart_ranks(list(self._shape.ranks()), reason)

    def spawn_procs(self, per_host: Mapping[str, int] | None = None, **options: Unpack[_ProcOptions]) -> ProcMesh:
        """Start processes on each of these hosts; returns at once.

        Args:
            per_host: names and sizes of the mesh's dimensions, behind those of the hosts; none for a single proc on each.
            name: the mesh's name in errors, events and output; "procs" when left out.
            env: environment variables to add, None to remove one, or a function of (point, incarnation). On `this_host()` they are
                added to this process's, on other hosts to the agent's.
            preload: modules that the template imports before it forks.
            restart: the restart policy.
            spares: procs on each host that wait, warm, to take the place of a rank that its policy mends.
            bind: CPUs or NUMA node to run on, or a function of (point, incarnation).
            start: "template" forks from a warm interpreter, "exec" starts a fresh one, a command stands for the interpreter.
            gpus_per_proc: visible devices a proc.
            setup: runs in each proc before any actor; may be async.
            supervise: an async function of a failure that says True when it handled it.
            logs: whether the procs' output goes on to the driver's.
        """
        preload = options["preload"] = check_modules(options.get("preload", ()))
        # First of all: the template imports while this process does.
        runtime = self._runtime() if self._id else process.current(preload)
        from roost.spawning import spawn_procs

        return spawn_procs(runtime, self, per_host, **options)
