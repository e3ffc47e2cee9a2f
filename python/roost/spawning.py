"""`spawn_procs` and `spawn_actors`: from a request to procs and actors that start."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from roost._roost import INLINE_BYTES_MAX
from roost.actor_class import check_actor_class, takes_arguments
from roost.actor_mesh import ActorMesh
from roost.constructing import Plan, pack_arguments, pack_mesh
from roost.failure import Bind, Probe, Restart
from roost.ids import new_id
from roost.mesh import ProcMesh
from roost.owned_actors import OwnedActors
from roost.owned_procs import OwnedProcs
from roost.owning import ENDED
from roost.requesting import Env, Request, Start
from roost.shape import SCALAR, Shape
from roost.stops import stopped_error
from roost.values import check_finite, check_flag, check_hook, check_integer, check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from roost.failure import Failure
    from roost.host_mesh import HostMesh
    from roost.point import Point
    from roost.runtime import Runtime

__all__ = ["spawn_actors", "spawn_packed", "spawn_procs"]

# Constructors that the host is told of together: it wakes up for each time.
_UNRECORDED_MAX = 100
# Classes whose plans are kept for the same procs.
_PLANS_MAX = 16


def spawn_procs(
    runtime: Runtime,
    hosts: HostMesh,
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
    hosts._check_not_stopped()
    inside = Shape(per_host or {})
    whole = hosts._shape.extend(inside.sizes)
    check_name("spawn_procs", name)
    check_flag("spawn_procs", "logs", logs, "whether what they print is logged")
    request = Request(
        runtime, name or "procs", whole, len(inside), env, tuple(preload), bind, start, gpus_per_proc, setup,
        is_here=hosts._is_here(),
    )  # fmt: skip
    mesh = new_id()
    procs = tuple(new_id() for _ in range(len(whole)))
    request.mesh, request.procs = mesh, procs
    starts = [request.of(rank, 0) for rank in range(len(whole))]
    reserve = [request.of_spare(number) for _ in range(len(hosts)) for number in range(spares)]
    record = OwnedProcs(runtime, mesh, request.name, whole, supervise, procs, restart)
    record.request = request
    record.asks = any(callable(one) for one in (env, bind, start))
    handle = ProcMesh._make(mesh, request.name, runtime.proc, whole, whole, procs)
    runtime.own(record, handle)
    runtime.members.own(record)
    runtime.members.note_procs(handle)
    begin = functools.partial(_start_procs, runtime, record, starts, reserve, logs)
    runtime.on_loop(lambda: _start_there(hosts, handle, record, begin))
    return handle


def _start_there(hosts: HostMesh, handle: ProcMesh, record: OwnedProcs, start: Callable[[], None]) -> None:
    """Start the procs once their hosts have joined."""

    def begin(lost: Mapping[int, Failure]) -> None:
        if lost:
            record.never_start(lost)
        else:
            settle(hosts._members())
            start()

    def settle(members: tuple[tuple[int, str], ...]) -> None:
        record.request.hosts = handle._hosts = members

    if hosts._is_owned():
        hosts._record().hold(record, hosts._shape, begin)
    else:
        settle(hosts._members())
        start()


def _start_procs(runtime: Runtime, record: OwnedProcs, starts: list[Start], reserve: list[Any], logs: bool) -> None:
    """Ask the agent for the procs, and for the spares."""
    request = record.request
    ranks = [rank for rank in range(len(starts)) if record.state(rank) not in ENDED]
    for rank in ranks:
        runtime.node.expect(record.procs[rank])
    record.is_asked = True
    policy = None if record.policy is None else record.policy._as_builtins()
    asked = [
        (record.procs[rank], request.label(rank), *request.packed(rank, starts[rank]), request.host(rank)[0])
        for rank in ranks
    ]
    each = len(reserve) // len(request.hosts)
    spares = [request.packed_spare(one, request.hosts[number // each]) for number, one in enumerate(reserve)]
    try:
        runtime.control.spawn_procs(
            record.id, record.name, asked, request.template(), policy, runtime.proc, logs, record.asks, spares=spares
        )
    except BaseException as error:
        # Nobody will ever say anything of them.
        record.cannot_start(f"its procs could not be asked for: {error}")
        raise


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
    cleanup_timeout_s = options.get("cleanup_timeout_s")
    if cleanup_timeout_s is not None:
        check_finite("options", "cleanup_timeout_s", cleanup_timeout_s)
    waits = parent is not None and getattr(parent.policy, "while_down", "fail") == "wait"  # type: ignore[attr-defined]
    return Plan(procs, runtime.proc, kind, per_proc, policy, cleanup_timeout_s, waits)


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
    if not runtime.closed:
        runtime.node.hold()
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
