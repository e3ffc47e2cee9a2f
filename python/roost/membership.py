"""Who is there: what the control thread says of procs, their connections, and their deaths as failures."""

from __future__ import annotations

import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any

from roost._exceptions import one_line
from roost.failure import Failure
from roost.point import Point, rank_name
from roost.shape import Shape
from roost.stops import death_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from roost._roost import Letters
    from roost.actor_mesh import ActorMesh
    from roost.errors import ActorDied
    from roost.mesh import ProcMesh
    from roost.owned_actors import OwnedActors
    from roost.owned_procs import OwnedProcs
    from roost.owning import OwnedMesh
    from roost.runtime import Runtime

__all__ = ["Members"]

_logger = logging.getLogger("roost")

# Deaths that are remembered, so that all who hear of one get the same object; and meshes whose names are.
_DEATHS_MAX = 10_000
_NAMES_MAX = 10_000
# How long the last words of the dead are waited for, all of those that are told of together, and how often they are looked for.
_LAST_WORDS_S, _LAST_WORDS_LOOK_S = 0.1, 0.002
# Who ended a proc, by the kind of its death.
_ORIGINS = {"exit": "user", "stopped": "user", "start": "process", "lost": "host"}


class Members:
    """What this process knows of the job's procs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # proc id -> (proc mesh's record, rank) for procs that this process owns.
        self.owned: dict[int, tuple[OwnedProcs, int]] = {}
        # proc id -> the actor meshes of this process that live on it, whoever owns the proc.
        self._tenants: dict[int, list[OwnedActors]] = {}
        # proc id -> (mesh name, shape, rank), of every proc whose mesh was met here: for failures that name it.
        self._places: dict[int, tuple[str, Shape, int]] = {}
        # mesh id -> (name, shape, procs, actors a proc), of actor meshes that were met here; proc meshes have no procs.
        self._names: dict[int, tuple[str, Shape, tuple[int, ...], int]] = {}
        # proc id -> the id and the name of its host, of procs of others.
        self._homes: dict[int, tuple[int, str]] = {}
        self._deaths: dict[tuple[int, int], Failure] = {}
        # Procs that have ended for good.
        self.gone: dict[int, Failure] = {}
        # Procs that are to start again, until they do.
        self._down: dict[int, Failure] = {}
        # By a host that was lost, and an owner of actors there, what that owner hears of it.
        self._lost_tenants: dict[tuple[int | None, int], Failure] = {}
        # What the control thread has said and nobody has looked at: behind a death of which more may be heard, and until when.
        self._notices: deque[tuple[Any, ...]] = deque()
        self._waits_until: float | None = None
        # Who else hears at once that a proc has ended.
        self.departures: list[Callable[[int], None]] = []

    # Names -------------------------------------------------------------------------------------------------------------
    def own(self, record: OwnedProcs) -> None:
        """These procs are ours."""
        for rank, proc in enumerate(record.procs):
            self.owned[proc] = (record, rank)

    def forget(self, record: OwnedMesh) -> None:
        """A mesh of ours ended long ago."""
        procs: tuple[int, ...] = ()
        for proc in getattr(record, "procs", ()):
            if self.owned.get(proc, (None, 0))[0] is record:
                procs += (proc,)
                for table in (self.owned, self._places, self._homes, self.gone, self._down):
                    table.pop(proc, None)
        self._runtime.node.forget_owned(record.id, procs)

    def move_in(self, record: OwnedActors) -> None:
        """Actors of ours live on these procs."""
        for proc in dict.fromkeys(record.procs):
            self._tenants.setdefault(proc, []).append(record)

    def move_out(self, record: OwnedActors) -> None:
        """These actors have ended."""
        for proc in dict.fromkeys(record.procs):
            tenants = self._tenants.get(proc, [])
            if record in tenants:
                tenants.remove(record)
            if not tenants:
                self._tenants.pop(proc, None)

    def note_procs(self, handle: ProcMesh) -> None:
        """Learn the names of procs."""
        if handle._id not in self._names:
            self.remember(handle._id, (handle._name, handle._whole, (), 1))
            per = len(handle._procs) // (len(handle._hosts) or 1)
            for rank, proc in enumerate(handle._procs):
                self._places[proc] = (handle._name, handle._whole, rank)
                if handle._hosts:
                    self._homes[proc] = handle._hosts[rank // per]

    def host_of(self, proc: int) -> tuple[int | None, str]:
        """The id and the name of a proc's host, as far as they are known."""
        owned = self.owned.get(proc)
        known = self._homes.get(proc) if owned is None else owned[0].host(owned[1])
        return known or (None, "")

    def note(self, handle: ActorMesh) -> None:
        """Learn the names of actors and their procs."""
        if not self._is_known(handle._id):
            self.remember(handle._id, (handle._name, handle._whole, handle._on._members(), len(handle._per_proc)))
            self.note_procs(handle._on)

    def _is_known(self, mesh: int) -> bool:
        runtime = self._runtime
        return mesh in self._names or mesh in runtime.owned or mesh in runtime.hosting.meshes

    def _named(self, mesh: int) -> tuple[str, Shape, tuple[int, ...], int]:
        """The name, shape, procs and actors a proc of an actor mesh."""
        known = self._names.get(mesh)
        if known is not None:
            return known
        hosted = self._runtime.hosting.meshes.get(mesh)
        if hosted is not None:
            return hosted.name, hosted.plan.whole, hosted.plan.procs, len(hosted.plan.per_proc)
        record = self._runtime.owned.get(mesh)
        if record is not None and hasattr(record, "per"):
            return record.name, record.whole, record.procs, record.per  # type: ignore[attr-defined]
        return "actors", Shape({}), (), 1

    def remember(self, mesh: int, name: tuple[str, Shape, tuple[int, ...], int]) -> None:
        """Learn the name, shape, procs and actors a proc of a mesh."""
        self._names[mesh] = name
        if len(self._names) > _NAMES_MAX:
            del self._names[next(iter(self._names))]

    def job_ended(self) -> None:
        """Verbs that were made for meshes of others are as useless as those of meshes of one's own."""
        for mesh in self._names:
            self._runtime.node.set_stopped(mesh)

    def note_self(self, mesh: str, shape: Shape, rank: int) -> None:
        """Learn this proc's own name."""
        self._places[self._runtime.proc] = (mesh, shape, rank)

    def actor(self, mesh: int, rank: int) -> tuple[str, str, Point]:
        """The mesh's name, the rank's name and its place, of a rank of a whole mesh."""
        name, shape, _, _ = self._named(mesh)
        point = shape.point(rank) if rank < len(shape) else Point({})
        return name, rank_name(name, point), point

    def base_rank(self, mesh: int, proc: int, slot: int) -> int:
        """The rank in the whole mesh of an actor that lives in this slot of a proc."""
        _, _, procs, per = self._named(mesh)
        return procs.index(proc) * per + slot if proc in procs else 0

    # Notices of the control thread -------------------------------------------------------------------------------------
    def on_notices(self) -> None:
        """The control thread has something to say."""
        self.hear(self._runtime.control.drain())

    def hear(self, notices: Iterable[tuple[Any, ...]]) -> None:
        """What it has said."""
        self._notices.extend(notices)
        if self._waits_until is None:
            self._go_on()

    def _go_on(self) -> None:
        while self._notices:
            if self._has_more_to_say(self._notices[0]):
                self._runtime.loop.call_later(_LAST_WORDS_LOOK_S, self._go_on)
                return
            notice = self._notices.popleft()
            try:
                getattr(self, f"_on_{notice[0]}")(*notice[1:])
            except Exception:
                _logger.exception("handling %s from the control thread", notice[0])
        self._waits_until = None

    def _has_more_to_say(self, notice: tuple[Any, ...]) -> bool:
        """Whether it is the death of a proc whose last words are on their way: news of it took another connection, and were faster.

        What comes after it waits, too: it is of what is there now, and has its order. Nothing of that is longer in coming.
        """
        if notice[0] != "member" or self._runtime.closed:
            return False
        _, _, proc, incarnation, _, details = notice
        said = details.get("said")
        if said is None or not self._runtime.node.is_unheard(proc, incarnation, said):
            return False
        now = self._runtime.loop.time()
        if self._waits_until is None:
            self._waits_until = now + _LAST_WORDS_S
        return now < self._waits_until

    def _on_epoch(self, epoch: int, host: int) -> None:
        runtime = self._runtime
        if runtime.host_id != host:
            # A restart has moved it.
            runtime.host_id, runtime.host = host, os.uname().nodename
        runtime.node.set_epoch(epoch)

    def _on_connected(self, proc: int, incarnation: int, fd: int, slot: int | None) -> None:
        self._runtime.node.adopt(proc, incarnation, fd, slot)

    def session_lost(self, proc: int, reason: str) -> None:
        """The connection to a proc cannot go on, as this process has seen: its other end waits no longer than this one."""
        if proc not in self.gone:
            self._runtime.control.connect_lost(proc, f"has given up its data lane: {reason}")
        self._on_connect_failed(proc, reason)

    def _on_connect_failed(self, proc: int, reason: str) -> None:
        """Nothing that was sent to this proc is answered any more; it may be asked for anew."""
        runtime = self._runtime
        ended = self.gone.get(proc)
        if ended is None and proc in self.owned:
            # Nothing on it can be reached from here: its policy may start it anew, or its owner hears why.
            runtime.control.kill([proc], reason)
            return
        failure = ended or self._failure(
            proc, 0, {"kind": "lost", "origin": "roost", "reason": self._between_hosts(proc, reason)}
        )
        self._lose(proc, runtime.node.incarnation_of(proc), None, failure, again=False, gone=ended is not None)
        if ended is None:
            # The next message asks for a connection again.
            runtime.node.revive(proc, False)
            self._tell_tenants(proc, "failed", failure, down=False)

    def _between_hosts(self, proc: int, reason: str) -> str:
        """Why there is no connection to a proc, with the two hosts where they are two."""
        host, name = self.host_of(proc)
        own = self._runtime
        return reason if host in (None, own.host_id) else f"between {own.host} and {name}: {reason}"

    def _on_far_connected(self, proc: int, incarnation: int, lane: Any, slot: int | None) -> None:
        self._runtime.node.adopt_far(proc, incarnation, lane, slot)

    def _on_letters(self, letters: Letters) -> None:
        self._runtime.node.take_letters(letters)

    def _on_clock(self, offset_ns: int) -> None:
        self._runtime.node.set_clock(offset_ns)

    def _on_host(self, number: int, what: str, details: dict[str, Any]) -> None:
        self._runtime.hosts.heard(number, what, details)

    def _on_host_changed(self, host: int, name: str, status: str, reason: str) -> None:
        self._runtime.hosts.changed(host, name, status, reason)

    def _on_warning(self, text: str) -> None:
        _logger.warning("%s", text)

    def _on_segment(self, sender: int, segment: int, size: int, fd: int) -> None:
        self._runtime.sharing.offered(sender, segment, size, fd)

    def _on_segment_ack(self, receiver: int, segment: int, ok: bool) -> None:
        self._runtime.sharing.answered(receiver, segment, ok)

    def _on_seen(self, proc: int, mesh: int, activities: list[tuple[int, int, list[tuple[str, int]]]]) -> None:
        self._runtime.looking.seen(proc, mesh, activities)

    def _on_ask(self, proc: int, incarnation: int) -> None:
        control = self._runtime.control
        try:
            record, _ = self.owned[proc]
            spec, environ, command = record.request.of_proc(proc, incarnation)
        except Exception as error:  # noqa: BLE001 - the user's function, whatever it raises
            control.respawn_failed(proc, incarnation, f"its env, start or bind function raised {one_line(error)}")
        else:
            control.respawn(proc, incarnation, spec, environ, command)

    def _on_stop(self, reason: str, deadline: float) -> None:
        runtime = self._runtime
        runtime.stop_reason = runtime.stop_reason or reason
        runtime.stop_deadline = deadline if runtime.stop_deadline is None else min(runtime.stop_deadline, deadline)
        if runtime.stopping is not None:
            runtime.stopping.set()

    def _on_member(self, epoch: int, proc: int, incarnation: int, status: str, details: dict[str, Any]) -> None:
        failure = None
        if status in ("dead", "failed", "stopped"):
            failure = self.death_of(proc, incarnation, details)
            down = status == "dead"
            self._down.pop(proc, None)
            (self._down if down else self.gone)[proc] = failure
            if len(self.gone) > _DEATHS_MAX:
                del self.gone[next(iter(self.gone))]
            self._lose(proc, incarnation, details.get("started"), failure, again=down, gone=not down)
            self._tell_tenants(proc, status, failure, down=down)
            self._runtime.hosting.owner_ended(proc)
        elif status == "starting" and incarnation:
            self.gone.pop(proc, None)
            self._down.pop(proc, None)
            # The connection to a proc of ours comes unasked.
            self._runtime.node.revive(proc, proc in self.owned)
        owned = self.owned.get(proc)
        if owned is not None:
            record, rank = owned
            record.member(rank, incarnation, status, details, failure)
        self._runtime.node.set_epoch(epoch)

    def never_there(self, proc: int, failure: Failure) -> None:
        """A proc of ours that was never started never will be."""
        self.gone[proc] = failure
        self._lose(proc, 0, None, failure, again=False, gone=True)
        self._tell_tenants(proc, "stopped" if failure.kind == "stopped" else "failed", failure, down=False)

    def _tell_tenants(self, proc: int, status: str, failure: Failure, *, down: bool) -> None:
        """Our actors there have ended with their proc; who owns none of its procs hears of that as of a consequence."""
        tenants = self._tenants.get(proc, ())
        state = "restarting" if down else "stopped" if status == "stopped" else "failed"
        followed: dict[int, list[Failure]] = {}
        for actors in list(tenants):
            followed[id(actors)] = actors.proc_ended(proc, state, failure)
        if state != "failed" or proc in self.owned:
            return
        by_owner: dict[int, list[OwnedActors]] = {}
        for actors in tenants:
            by_owner.setdefault(id(actors.owner_runner), []).append(actors)
        for meshes in by_owner.values():
            self._hear_of_tenants(meshes, [one for actors in meshes for one in followed[id(actors)]], proc)

    def _hear_of_tenants(self, meshes: list[OwnedActors], followed: list[Failure], proc: int) -> None:
        """Once, also of all that was on a host that is lost."""
        if not followed:
            return
        key = self.host_of(proc)[0], id(meshes[0].owner_runner)
        first = self._lost_tenants.get(key) if followed[0].kind == "lost" and key[0] is not None else None
        if first is None:
            first, *followed = followed
            if first.kind == "lost":
                self._lost_tenants[key] = first
            meshes[0].climbs(first.point.rank, first)
        for one in followed:
            first._add_consequence(one)

    def _lose(
        self, proc: int, incarnation: int, started: int | None, failure: Failure, *, again: bool, gone: bool
    ) -> None:
        runtime = self._runtime
        calls, letters = runtime.node.lost(proc, incarnation, started, again, gone)

        def error_of(maybe_executed: bool) -> ActorDied:
            return death_error(failure, maybe_executed=maybe_executed)

        runtime.calls.orphaned(calls, error_of)
        for mesh, slot, _, endpoint, maybe_executed in letters:
            reason = f"{failure.summary}; it may have been executed" if maybe_executed else failure.summary
            runtime.letters.add(mesh, self.base_rank(mesh, proc, slot), endpoint, reason, failure, runtime.name)
        runtime.sharing.peer_gone(proc)
        runtime.ports.peer_gone(proc, error_of(True))
        runtime.streams.peer_gone(proc)
        for told in self.departures:
            told(proc)

    # Deaths ------------------------------------------------------------------------------------------------------------
    def death_of(self, proc: int, incarnation: int, details: dict[str, Any]) -> Failure:
        """The failure of a proc's incarnation: one object however often it is told."""
        known = self._deaths.get((proc, incarnation))
        if known is None:
            known = self._failure(proc, incarnation, details)
            self._deaths[proc, incarnation] = known
            # Nobody tells of one any more when the next but one has died.
            self._deaths.pop((proc, incarnation - 2), None)
            while len(self._deaths) > _DEATHS_MAX:
                self._deaths.pop(next(iter(self._deaths)))
        return known

    def _reasons(self, proc: int, incarnation: int, details: dict[str, Any]) -> tuple[Failure, ...]:
        past = details.get("reasons", ())
        first = max(0, incarnation - len(past))
        return tuple(self._failure(proc, first + at, one) for at, one in enumerate(past))

    def _failure(self, proc: int, incarnation: int, details: dict[str, Any]) -> Failure:
        mesh, shape, rank = self._places.get(proc, ("procs", Shape({}), 0))
        point = shape.point(rank)
        kind, reason = details.get("kind", "lost"), details.get("reason", "")
        owned = self.owned.get(proc)
        command = None if owned is None else owned[0].request.commands.get(owned[1])
        if kind == "start" and command is not None:
            import shlex

            reason = f"{reason}; it was started by: {shlex.join(command)}"
        host, host_name = self.host_of(proc)
        lost = self._runtime.hosts.loss(host) if kind == "lost" and details.get("origin") is None else None
        if lost is not None:
            # With what whoever gave the host says of it.
            reason = f"its host {host_name} is lost: {lost.reason}"
        origin: Any = details.get("origin") or _ORIGINS.get(kind, "process")
        failure = Failure(
            kind=kind, origin=origin, mesh=mesh, name=rank_name(mesh, point), point=point,
            host=host_name, incarnation=incarnation, reason=reason, cause=lost,
            exit_code=details.get("exit_code"), signal=details.get("signal"), stderr=details.get("stderr", ""),
            reasons=self._reasons(proc, incarnation, details), times=details.get("times", {}),
        )  # fmt: skip
        if lost is not None:
            lost._add_consequence(failure)
        return failure

    def error_of(self, proc: int) -> ActorDied | None:
        """The error for whoever writes to a proc that is gone or down; None when it is there."""
        failure = self.gone.get(proc) or self._down.get(proc)
        if failure is None:
            owned = self.owned.get(proc)
            if owned is None or owned[0].state(owned[1]) == "up":
                return None
            failure = owned[0].failures.get(owned[1])
            if failure is None:
                return None
        return death_error(failure)
