"""`spawn_procs` and `spawn_actors`: from a request to procs and actors that start."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roost import serialize
from roost._roost import INLINE_BYTES_MAX
from roost.actor_class import check_actor_class, takes_arguments
from roost.actor_mesh import ActorMesh
from roost.constructing import Plan, pack_arguments, pack_mesh
from roost.failure import Bind, Probe, Restart
from roost.ids import new_id
from roost.mesh import ProcMesh
from roost.owned_actors import OwnedActors
from roost.owned_procs import OwnedProcs
from roost.point import Point, rank_name
from roost.shape import SCALAR, Shape
from roost.stops import stopped_error
from roost.values import check_hook, check_integer

if TYPE_CHECKING:
    from roost.runtime import Runtime

__all__ = ["spawn_actors", "spawn_packed", "spawn_procs"]

_logger = logging.getLogger("roost")

# Read by the interpreter, the loader or a preloaded library when the process starts: a forked proc comes too late for them.
_START_ONLY = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_")

# Constructors that the host is told of together: it wakes up for each time.
_UNRECORDED_MAX = 100
# Classes whose plans are kept for the same procs.
_PLANS_MAX = 16

Env = Mapping[str, str | None] | Callable[[Point, int], Mapping[str, str | None]]


def spawn_procs(
    runtime: Runtime,
    per_host: Mapping[str, int] | None = None,
    *,
    name: str | None = None,
    env: Env | None = None,
    preload: Sequence[str] = (),
    restart: Restart | None = None,
    spares: int = 0,
    bind: Bind | Callable[[Point, int], Bind | None] | None = None,
    start: str | Sequence[str] | Callable[[Point, int], str | Sequence[str]] = "template",
    gpus_per_proc: int | None = None,
    setup: Callable[[], object] | None = None,
    supervise: Callable[..., Any] | None = None,
    logs: bool = True,
) -> ProcMesh:
    """`HostMesh.spawn_procs`, which says what the options are; with this process's runtime."""
    _checked_policy(restart)
    _check_spares(spares, restart, start)
    check_hook(supervise)
    _check_place(runtime)
    whole = Shape(per_host or {})
    request = _Request(runtime, name or "procs", whole, env, tuple(preload), bind, start, gpus_per_proc, setup)
    mesh = new_id()
    procs = tuple(new_id() for _ in range(len(whole)))
    request.mesh, request.procs = mesh, procs
    ranks = [(procs[rank], request.label(rank), *request.of(rank, 0)) for rank in range(len(whole))]
    reserve = [request.of_spare(number) for number in range(spares)]
    record = OwnedProcs(runtime, mesh, request.name, whole, supervise, procs, restart)
    asks = any(callable(one) for one in (env, bind)) or callable(start)
    record.ask = request.of_proc if asks else None
    record.commands = request.commands
    handle = ProcMesh._make(mesh, request.name, runtime.proc, whole, whole, procs)
    runtime.own(record, handle)
    runtime.members.own(record)
    runtime.members.note_procs(handle)
    runtime.on_loop(lambda: _start_procs(runtime, record, (ranks, reserve), request.template(), logs, asks))
    return handle


def _start_procs(
    runtime: Runtime, record: OwnedProcs, ranks: tuple[list[Any], list[Any]], template: Any, logs: bool, asks: bool
) -> None:
    """Ask the agent for the procs, and for the spares."""
    for proc in record.procs:
        runtime.node.expect(proc)
    restart: Restart | None = record.policy
    policy = None if restart is None else restart._as_builtins()
    runtime.control.spawn_procs(
        record.id, record.name, ranks[0], template, policy, runtime.proc, logs, asks, spares=ranks[1]
    )


def spawn_actors(
    runtime: Runtime,
    procs: ProcMesh,
    plans: dict[Any, Plan],
    name: str,
    actor: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: dict[str, Any],
) -> ActorMesh:
    """Spawn one actor, or `per_proc`, on each proc of a mesh; returns at once.

    Args:
        runtime: this process's runtime.
        procs: where to.
        plans: plans by class, for these procs and options: those made are kept there.
        name: the mesh's name.
        actor: the class.
        args: its constructor's arguments.
        kwargs: the same.
        options: what `ProcMesh.options` takes.
    """
    _check_place(runtime)
    _check_procs(runtime, procs)
    kind = actor
    plan = plans.get(actor) if isinstance(actor, type) else None
    if plan is None or plan.takes_arguments or args or kwargs or not name or type(name) is not str:
        kind = check_actor_class(actor, name, args, kwargs)
        plan = plans.get(kind)
    if plan is None or plan.owner != runtime.proc:
        if len(plans) >= _PLANS_MAX:
            plans.clear()
        plan = plans[kind] = _plan(runtime, procs, kind, options)
        plan.takes_arguments = takes_arguments(kind)
    return _spawn_planned(runtime, plan, name, pack_arguments(args, kwargs), options)


def spawn_packed(
    runtime: Runtime, procs: ProcMesh, name: str, kind: type, arguments: bytes, options: dict[str, Any]
) -> ActorMesh:
    """The same for arguments that were checked and packed elsewhere."""
    _check_procs(runtime, procs)
    return _spawn_planned(runtime, _plan(runtime, procs, kind, options), name, arguments, options)


def _spawn_planned(runtime: Runtime, plan: Plan, name: str, arguments: bytes, options: dict[str, Any]) -> ActorMesh:
    plan.pack()
    size = len(plan.packed) + len(arguments)
    if size > min(runtime.config.message_bytes_max, INLINE_BYTES_MAX):
        runtime.calls.too_large(size, size)
    mesh = new_id()
    handle = ActorMesh._planned(plan, mesh, name)
    probe, supervise = _checked_probe(options.get("probe"), plan), options.get("supervise")
    check_hook(supervise)
    record = OwnedActors(runtime, mesh, name, plan, supervise, probe)
    runtime.own(record, handle)
    if threading.get_ident() == runtime.thread:
        _start_actors(runtime, record, arguments)
    else:
        runtime.loop.call_soon_threadsafe(_start_actors, runtime, record, arguments)
    return handle


def _check_procs(runtime: Runtime, procs: ProcMesh) -> None:
    parent = runtime.owned.get(procs._id)
    if parent is not None and parent.mesh_stopped is not None:
        raise stopped_error(parent.name, parent.mesh_stopped, advice="; spawn procs anew, and the actors on those")


def _plan(runtime: Runtime, procs: ProcMesh, kind: type, options: dict[str, Any]) -> Plan:
    per_proc = Shape(options["per_proc"]) if options.get("per_proc") else SCALAR
    parent = runtime.owned.get(procs._id)
    policy = _checked_policy(options.get("restart"))
    waits = parent is not None and getattr(parent.policy, "while_down", "fail") == "wait"  # type: ignore[attr-defined]
    return Plan(procs, runtime.proc, kind, per_proc, policy, options.get("cleanup_timeout_s"), waits)


def _start_actors(runtime: Runtime, record: OwnedActors, arguments: bytes) -> None:
    runtime.members.note_procs(record.plan.on)
    runtime.members.move_in(record)
    record.begin_probing()
    parent = runtime.owned.get(record.plan.on._id)
    if parent is not None:
        record.on = parent  # type: ignore[assignment]
        parent.actors.append(record)  # type: ignore[attr-defined]
        if parent.mesh_stopped is not None:
            record.mark_stopped(parent.mesh_stopped)
    plan, per, name = record.plan, record.per, record.name.encode(errors="surrogatepass")
    for place, proc in enumerate(record.procs):
        first = place * per
        failure = runtime.members.gone.get(proc)
        if failure is not None:
            record.proc_ended(proc, "failed" if failure.kind != "stopped" else "stopped", failure)
        elif proc == runtime.proc:
            runtime.hosting.spawn(0, 0, [], plan.packed + pack_mesh(record.id, proc, first, per, name, arguments))
        else:
            packed = pack_mesh(record.id, runtime.proc, first, per, name, arguments)
            _record(runtime, (proc, record.id, plan.packed, packed))
            if not runtime.closed:
                runtime.node.send_spawn(proc, record.id, plan.packed, packed)


def _record(runtime: Runtime, record: tuple[int, int, bytes, bytes]) -> None:
    """Have the host keep a constructor's message; those of one turn of the loop go together."""
    runtime.unrecorded.append(record)
    if len(runtime.unrecorded) == 1:
        runtime.loop.call_soon(_record_all, runtime)
    elif len(runtime.unrecorded) >= _UNRECORDED_MAX:
        _record_all(runtime)


def _record_all(runtime: Runtime) -> None:
    records, runtime.unrecorded = runtime.unrecorded, []
    if records and not runtime.closed:
        runtime.control.record_actors(records)


def _check_place(runtime: Runtime) -> None:
    """Refuse a forked child, and a thread that belongs to no actor: who would own the mesh?"""
    runtime.check_usable()
    is_threads = runtime.background is None and runtime.handling_runner() is None
    if is_threads and threading.get_ident() != runtime.thread:
        raise RuntimeError(
            "spawning in a thread of one's own: nobody would own the mesh; spawn in an endpoint or in the program that runs "
            "on the event loop, and hand the mesh to the thread"
        )


def _checked_probe(probe: object, plan: Plan) -> Probe | None:
    if probe is None:
        return None
    if not isinstance(probe, Probe):
        raise TypeError(f"probe={probe!r}: give a roost.Probe(period_s=…)")
    if not hasattr(plan.actor, "__healthy__"):
        raise TypeError(
            f"probe= asks {plan.class_name}.__healthy__, which is not there: write `async def __healthy__(self) -> bool`"
        )
    return probe


def _checked_policy(restart: object) -> Restart | None:
    if restart is not None and not isinstance(restart, Restart):
        raise TypeError(f"restart={restart!r}: give a roost.Restart(limit=…, within_s=…)")
    return restart


def _check_spares(spares: int, restart: Restart | None, start: Any) -> None:
    check_integer("spawn_procs", "spares", spares, least=0, instead="0 keeps none in reserve")
    if not spares:
        return
    if restart is None:
        raise ValueError(
            f"spares={spares} take the place of ranks that a policy mends, and there is none: give restart=Restart(…) too"
        )
    if callable(start):
        raise ValueError(  # noqa: TRY004 - a function is no wrong type, but with spares
            f"spares={spares} are started before it is known which rank they will be: give start= as a value, not a function"
        )


class _Request:
    """What each proc of a mesh is started with."""

    mesh: int
    procs: tuple[int, ...]

    def __init__(
        self, runtime: Runtime, name: str, whole: Shape, env: Any, preload: tuple[str, ...], bind: Any, start: Any,
        gpus_per_proc: int | None, setup: Any,
    ) -> None:  # fmt: skip
        self.runtime = runtime
        self.name = name
        self.whole = whole
        self.env = env
        self.preload = preload
        self.bind = bind
        self.start = start
        self.gpus_per_proc = gpus_per_proc
        self.setup = None if setup is None else serialize.dumps_alone(setup)
        self.environ = dict(os.environ)
        self.sys_path = list(sys.path)
        self.argv = list(sys.argv)
        self.cwd = _working_directory()
        self.commands: dict[int, list[str]] = {}
        if isinstance(start, str) and start not in ("template", "exec"):
            raise ValueError(f'start={start!r}: give "template", "exec", or a command as a list of words')

    def label(self, rank: int) -> str:
        return rank_name(self.name, self.whole.point(rank))

    def template(self) -> tuple[list[str], list[str], dict[str, str]]:
        return list(self.preload), self.sys_path, self.environ

    def of_proc(self, proc: int, incarnation: int) -> tuple[bytes, dict[str, str] | None, list[str] | None]:
        """What the next incarnation of a proc is started with, when that is a function."""
        return self.of(self.procs.index(proc), incarnation)

    def of(self, rank: int, incarnation: int) -> tuple[bytes, dict[str, str] | None, list[str] | None]:
        """(spec, whole environment for a cold start or None, command or None)."""
        point = self.whole.point(rank)

        def at(value: Any) -> Any:
            return value(point, incarnation) if callable(value) else value

        environ, cold = self._environ(at(self.env), self.label(rank))
        if self.gpus_per_proc is not None:
            first = rank * self.gpus_per_proc
            devices = ",".join(str(first + index) for index in range(self.gpus_per_proc))
            environ.update(HIP_VISIBLE_DEVICES=devices, CUDA_VISIBLE_DEVICES=devices)
        start = at(self.start)
        command = None if isinstance(start, str) else [str(word) for word in start]
        cold = cold or start == "exec" or command is not None
        if command is not None:
            self.commands[rank] = command
        bind: Bind | None = at(self.bind)
        spec = {
            **self._shared(self.procs[rank], environ, bind), "mesh": self.mesh, "name": self.label(rank),
            "mesh_name": self.name, "sizes": dict(self.whole.sizes), "rank": rank, "setup": self.setup, "actors": [],
        }  # fmt: skip
        return pickle.dumps(spec, 5), environ if cold else None, command

    def of_spare(self, number: int) -> tuple[int, str, bytes, dict[str, str] | None, list[str] | None]:
        """The same for a spare, behind its id and its name: what depends on a rank it gets with that."""
        label = f"{self.name} spare {number}"
        environ, cold = self._environ(None if callable(self.env) else self.env, label)
        command = None if isinstance(self.start, str) else [str(word) for word in self.start]
        cold = cold or self.start == "exec" or command is not None
        differs = callable(self.env) or callable(self.bind) or self.gpus_per_proc is not None
        if cold and differs:
            raise ValueError(
                f"{label} would have to be executed with the environment of a rank that is not known yet: spares of ranks that "
                "differ (gpus_per_proc=, or env= or bind= as functions) need the template, so no start= and no variable that "
                "is read when a process starts"
            )
        proc = new_id()
        spec = {
            **self._shared(proc, environ, None if callable(self.bind) else self.bind), "name": label, "rank": None,
            # It may depend on what the rank has for itself, and is run with that then.
            "setup": None if differs else self.setup,
        }  # fmt: skip
        return proc, label, pickle.dumps(spec, 5), environ if cold else None, command

    def _environ(self, changes: Any, whose: str) -> tuple[dict[str, str], bool]:
        """The environment with these changes, and whether it has to be there from the first instruction on."""
        environ = dict(self.environ)
        cold = False
        for key, value in (changes or {}).items():
            if not isinstance(key, str) or not isinstance(value, str | None):
                raise TypeError(f"env: {key!r}: {value!r} for {whose}; names and values are strings, None removes one")
            cold = cold or (key.startswith(_START_ONLY) and environ.get(key) != value)
            if value is None:
                environ.pop(key, None)
            else:
                environ[key] = value
        return environ, cold

    def _shared(self, proc: int, environ: dict[str, str], bind: Bind | None) -> dict[str, Any]:
        """What ranks and spares are told alike."""
        return {
            "job": self.runtime.job_id, "proc": proc, "owner": self.runtime.proc,
            "owner_incarnation": self.runtime.incarnation, "driver": self.runtime.driver,
            "sys_path": self.sys_path, "argv": self.argv, "cwd": self.cwd, "environ": environ, "preload": list(self.preload),
            "config": self.runtime.config.as_builtins(), "cpus": None if bind is None else _cpus(bind),
        }  # fmt: skip


def _working_directory() -> str:
    """Where procs start: where this process is."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        _logger.warning("this program's working directory was removed: its procs start in /")
        return "/"


def _cpus(bind: Bind) -> list[int] | None:
    """The CPUs to run on: those given, else those of the NUMA node."""
    if bind.cpus:
        wanted = list(bind.cpus)
    elif bind.numa_node is not None:
        path = f"/sys/devices/system/node/node{bind.numa_node}/cpulist"
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            raise ValueError(f"Bind(numa_node={bind.numa_node}): this host has no such node ({path})") from None
        wanted = []
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            wanted += range(int(first), int(last or first) + 1)
    else:
        return None
    missing = sorted(set(wanted) - os.sched_getaffinity(0))
    if missing:
        raise ValueError(
            f"Bind: CPUs {missing} are not there for this process, which may run on {sorted(os.sched_getaffinity(0))}"
        )
    return wanted
