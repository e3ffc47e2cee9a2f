"""The owner's tables: how each rank of a mesh is, who waits for it, and which failures nobody has heard of yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from roost.errors import ActorDied, MeshError, StoppedError
from roost.events import EventStream, event
from roost.failure import Failure, State
from roost.mesh import rank_name
from roost.reply import Reply, fail_reply
from roost.shape import Shape, ValueMesh

if TYPE_CHECKING:
    from roost.runtime import Runtime

__all__ = ["OwnedActors", "OwnedMesh", "OwnedProcs", "Unheard"]

_logger = logging.getLogger("roost")

ENDED = ("failed", "stopped")


class Unheard:
    """A failure that somebody must hear of: a caller that got it, a hook that handled it, or else the end of the mesh."""

    __slots__ = ("_heard", "_replies", "failure")

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        self._heard = False
        # Replies that carry it and still live: whether their owner looked at the error is their own flag.
        self._replies: list[Any] = []

    def carried_by(self, reply: Any) -> None:
        """A reply was given this failure."""
        import weakref

        self._replies.append(weakref.ref(reply))

    def hear(self) -> None:
        """Somebody got it."""
        self._heard = True
        self._replies.clear()

    @property
    def heard(self) -> bool:
        if self._heard:
            return True
        for reference in self._replies:
            reply = reference()
            if reply is not None and reply.done() and not reply._log_traceback:
                self.hear()
                return True
        return False


class OwnedMesh:
    """One mesh that this process owns."""

    __slots__ = (
        "_incarnations", "_states", "entered", "failures", "id", "mesh_stopped", "name", "owner_runner", "pids", "reasons",
        "runtime", "subscribers", "supervise", "unheard", "waiters", "whole",
    )  # fmt: skip

    def __init__(self, runtime: Runtime, mesh: int, name: str, whole: Shape, supervise: Callable[..., Any] | None) -> None:
        self.runtime = runtime
        self.id = mesh
        self.name = name
        self.whole = whole
        self.supervise = supervise
        self.owner_runner = runtime.handling_runner()
        self._states = ["starting"] * len(whole)
        # Tables that most meshes never need are made when they are.
        self._incarnations: dict[int, int] | None = None
        self.failures: dict[int, Failure] | None = None
        self.reasons: dict[int, str] | None = None
        self.pids: dict[int, int] | None = None
        self.unheard: list[Unheard] | None = None
        self.waiters: list[tuple[str, Reply[Any], Shape, Any]] | None = None
        self.subscribers: list[EventStream] | None = None
        self.mesh_stopped: str | None = None
        # How many `async with` blocks are inside this mesh: the outermost raises what nobody heard.
        self.entered = 0

    # What ranks do -----------------------------------------------------------------------------------------------------
    def rank_name(self, rank: int) -> str:
        return rank_name(self.name, self.whole.point(rank))

    def incarnation(self, rank: int) -> int:
        return 0 if self._incarnations is None else self._incarnations.get(rank, 0)

    def state(self, rank: int) -> str:
        return self._states[rank]

    def set_state(self, rank: int, state: str, *, reason: str = "", failure: Failure | None = None, incarnation: int = 0) -> None:
        """A rank is in another state now."""
        if incarnation:
            if self._incarnations is None:
                self._incarnations = {}
            self._incarnations[rank] = incarnation
        if failure is not None:
            if self.failures is None:
                self.failures = {}
            self.failures[rank] = failure
        if reason:
            if self.reasons is None:
                self.reasons = {}
            self.reasons[rank] = reason
        self._states[rank] = state
        if self.waiters:
            self._check_waiters()

    def tell(self, kind: str, rank: int, reason: str = "", failure: Failure | None = None) -> None:
        """Give an event to whoever listens."""
        self.give(event(kind, self.name, self.rank_name(rank), self.whole.point(rank), self.incarnation(rank), reason, failure))

    def give(self, happened: Any) -> None:
        """Pass an event on: to this mesh's listeners and to the job's."""
        for subscriber in list(self.subscribers or ()):
            subscriber.push(happened)
        self.runtime.job_event(happened)

    # Waiting -----------------------------------------------------------------------------------------------------------
    def ready(self, handle: Any) -> Reply[Any]:
        """Done with the handle when all its ranks are up."""
        return self._wait("ready", handle._shape, handle)

    def wait(self, shape: Shape) -> Reply[ValueMesh[State]]:
        """Done with the states when all ranks have ended."""
        return self._wait("ended", shape, None)

    def _wait(self, what: str, shape: Shape, value: Any) -> Reply[Any]:
        reply: Reply[Any] = Reply(loop=self.runtime.loop)

        def begin() -> None:
            if self.waiters is None:
                self.waiters = []
            self.waiters.append((what, reply, shape, value))
            self._check_waiters()

        self.runtime.on_loop(begin)
        return reply

    def _check_waiters(self) -> None:
        waiting = self.waiters or []
        self.waiters = [one for one in waiting if not one[1].done() and not self._settle(*one)] or None

    def _settle(self, what: str, reply: Reply[Any], shape: Shape, value: Any) -> bool:
        states = self._states
        if what == "ended":
            if any(states[rank] not in ENDED for rank in shape.ranks()):
                return False
            reply.set_result(value if value is not None else self.snapshot(shape))
            return True
        if what == "stopped":
            if any(states[rank] not in ENDED for rank in shape.ranks()):
                return False
            reply.set_result(None)
            return True
        failed = [rank for rank in shape.ranks() if states[rank] in ENDED]
        if failed:
            self._fail_ready(reply, shape, failed)
            return True
        if any(states[rank] != "up" for rank in shape.ranks()):
            return False
        reply.set_result(value)
        return True

    def _fail_ready(self, reply: Reply[Any], shape: Shape, failed: list[int]) -> None:
        # Ranks that were stopped because another did not start are not the cause.
        cause = [rank for rank in failed if self._states[rank] == "failed"] or failed
        errors: list[Exception] = [self.death_error(rank) for rank in cause]
        error: Exception = errors[0]
        if len(errors) > 1:
            error = MeshError(f"{len(errors)} ranks of {self.name} are not up", errors, [self.whole.point(rank) for rank in cause])
        for rank in cause:
            self.runtime.carried((self.failures or {}).get(rank), reply)
        fail_reply(reply, error)

    def death_error(self, rank: int) -> ActorDied:
        """The error for whoever calls or waits for a rank that has ended."""
        failure = (self.failures or {}).get(rank)
        if failure is not None and failure.kind != "stopped":
            error = ActorDied(None, failure)
            error.__cause__ = self.runtime.original(failure)
            return error
        reason = (self.reasons or {}).get(rank) or self.mesh_stopped or "stopped"
        return StoppedError(f"{self.rank_name(rank)} stopped: {reason}", failure)

    # Stopping ----------------------------------------------------------------------------------------------------------
    def stop(self, shape: Shape, reason: str) -> Reply[None]:
        """Done when all these ranks have ended."""
        reply: Reply[None] = Reply(loop=self.runtime.loop)

        def begin() -> None:
            if len(shape) == len(self._states) and self.mesh_stopped is None:
                self.mesh_stopped = reason
            ranks = [rank for rank in shape.ranks() if self._states[rank] not in ENDED]
            if ranks:
                self.stop_ranks(ranks, reason)
            if self.waiters is None:
                self.waiters = []
            self.waiters.append(("stopped", reply, shape, None))
            self._check_waiters()

        self.runtime.on_loop(begin)
        return reply

    def stop_ranks(self, ranks: list[int], reason: str) -> None:
        raise NotImplementedError

    def restart(self, shape: Shape, reason: str) -> Reply[None]:
        raise NotImplementedError

    async def leave(self, shape: Shape, error: BaseException | None, *, entering: bool = False) -> None:
        """The end of an `async with`: stop, then raise what nobody has heard of, together with the body's own error."""
        self.entered -= 1
        reason = "its async with block ended" if error is None else f"its async with block raised {type(error).__name__}"
        stopping = self.stop(shape, reason)
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise
        self.end_subscribers()
        if entering:
            for failure in self.all_unheard():
                failure.hear()
            return
        unheard = [one for one in self.all_unheard() if not one.heard]
        for one in unheard:
            one.hear()
        if not unheard:
            return
        died: list[Exception] = [ActorDied(None, one.failure) for one in unheard]
        if error is None:
            raise MeshError(f"{len(died)} failures in {self.name} that nobody handled", died, [one.failure.point for one in unheard])
        if isinstance(error, Exception):
            raise MeshError(f"{self.name}: the block's own error, and failures that nobody handled", [error, *died]) from error
        for failure in died:
            error.add_note(f"besides, unhandled: {failure}")

    def all_unheard(self) -> list[Unheard]:
        """The failures of this mesh, and of meshes on it, that need a hearer."""
        return list(self.unheard or ())

    def end_subscribers(self) -> None:
        """No more events: the mesh has stopped."""
        if self.mesh_stopped is None or any(state not in ENDED for state in self._states):
            return
        for subscriber in self.subscribers or ():
            subscriber.end()
        self.subscribers = None

    # Failing -----------------------------------------------------------------------------------------------------------
    def climbs(self, rank: int, failure: Failure) -> None:
        """A failure that no policy mends: the hook hears of it, else the owner."""
        unheard = self.runtime.hearing(failure)
        if self.unheard is None:
            self.unheard = []
        if unheard not in self.unheard:
            self.unheard.append(unheard)
            self.runtime.escalate(self, unheard)

    # Looking -----------------------------------------------------------------------------------------------------------
    def states(self, shape: Shape) -> Reply[ValueMesh[State]]:
        """How each rank is, as the owner knows it."""
        reply: Reply[ValueMesh[State]] = Reply(loop=self.runtime.loop)
        self.runtime.on_loop(lambda: reply.set_result(self.snapshot(shape)))
        return reply

    def snapshot(self, shape: Shape) -> ValueMesh[State]:
        """States by rank."""
        reasons, failures = self.reasons or {}, self.failures or {}
        return ValueMesh(
            shape.sizes,
            [
                State(
                    self._states[rank],  # type: ignore[arg-type]
                    reasons.get(rank) or (self.mesh_stopped or "" if self._states[rank] == "stopped" else ""),
                    self.incarnation(rank),
                    self.pid(rank),
                    failures.get(rank),
                )
                for rank in shape.ranks()
            ],
        )

    def pid(self, rank: int) -> int | None:
        return (self.pids or {}).get(rank)

    def events(self, shape: Shape) -> EventStream:
        """Events of these ranks from now on."""
        wants = None
        if len(shape) != len(self.whole):
            points = {self.whole.point(rank) for rank in shape.ranks()}
            wants = lambda happened: happened.mesh != self.name or happened.point in points  # noqa: E731
        stream = EventStream(self.runtime.config.events_max, wants)
        if self.subscribers is None:
            self.subscribers = []
        self.subscribers.append(stream)
        return stream


class OwnedProcs(OwnedMesh):
    """A mesh of processes that this process owns."""

    __slots__ = ("actors", "ask", "labels", "policy", "procs", "started")

    def __init__(self, runtime: Runtime, mesh: int, name: str, whole: Shape, supervise: Any, procs: tuple[int, ...], policy: Any) -> None:
        super().__init__(runtime, mesh, name, whole, supervise)
        self.procs = procs
        self.policy = policy
        # Actor meshes of this process that live on these procs.
        self.actors: list[OwnedActors] = []
        self.ask: Callable[[int, int], Any] | None = None

    def member(self, rank: int, incarnation: int, status: str, details: dict[str, Any]) -> None:
        """The agent says how a proc is."""
        if status == "starting":
            self.set_state(rank, "starting" if incarnation == 0 else "restarting", incarnation=incarnation)
        elif status == "up":
            if self.pids is None:
                self.pids = {}
            self.pids[rank] = details.get("pid", 0)
            self.set_state(rank, "up", incarnation=incarnation)
            self.tell("started" if incarnation == 0 else "recovered", rank)
        elif status == "dead":
            self._dead(rank, incarnation, details)
        elif status == "restarting":
            self.tell("restarting", rank, details.get("reason", ""))
        elif status == "failed":
            self._failed(rank, incarnation, details)
        elif status == "stopped":
            self._stopped(rank, incarnation, details)

    def _dead(self, rank: int, incarnation: int, details: dict[str, Any]) -> None:
        failure = self.runtime.death_of(self.procs[rank], incarnation, details)
        state = "restarting" if details.get("next") == "restarting" else "failed"
        self.set_state(rank, state, reason=failure.reason, failure=failure, incarnation=incarnation)
        self.tell("failed", rank, failure.reason, failure)
        for actors in self.actors:
            actors.proc_ended(self.procs[rank], state, failure)

    def _failed(self, rank: int, incarnation: int, details: dict[str, Any]) -> None:
        failure = self.runtime.death_of(self.procs[rank], incarnation, details)
        self.set_state(rank, "failed", reason=failure.reason, failure=failure, incarnation=incarnation)
        for actors in self.actors:
            actors.proc_ended(self.procs[rank], "failed", failure)
        if failure.kind == "start" and self.mesh_stopped is None and incarnation == 0:
            # The others would wait for a rank that never comes.
            others = [other for other in range(len(self.procs)) if self.state(other) not in ENDED]
            if others:
                self.stop_ranks(others, f"{self.rank_name(rank)} did not start")
        self.climbs(rank, failure)

    def _stopped(self, rank: int, incarnation: int, details: dict[str, Any]) -> None:
        failure = self.runtime.death_of(self.procs[rank], incarnation, details)
        reason = self.mesh_stopped or details.get("reason") or "stopped"
        self.set_state(rank, "stopped", reason=reason, failure=failure, incarnation=incarnation)
        self.tell("stopped", rank, reason, failure)
        for actors in self.actors:
            actors.proc_ended(self.procs[rank], "stopped", failure)
        self.end_subscribers()

    def stop_ranks(self, ranks: list[int], reason: str) -> None:
        config = self.runtime.config
        procs = [self.procs[rank] for rank in ranks]
        extra = max([0.0, *(actors.cleanup_extra_s for actors in self.actors)])
        self.runtime.control.stop(procs, reason, config.grace_s + extra, config.sigterm_s)

    def restart(self, shape: Shape, reason: str) -> Reply[None]:
        """Stop these procs and start their next incarnation; done when they are up."""
        if self.mesh_stopped is not None:
            raise StoppedError(f"{self.name} stopped: {self.mesh_stopped}; spawn new procs instead of restarting these")
        config = self.runtime.config
        reply: Reply[None] = Reply(loop=self.runtime.loop)

        def begin() -> None:
            ranks = list(shape.ranks())
            self.runtime.control.restart([self.procs[rank] for rank in ranks], reason, config.grace_s, config.sigterm_s)
            for rank in ranks:
                self.set_state(rank, "restarting", reason=reason)
            ready = self._wait("ready", shape, None)
            ready.add_done_callback(lambda done: _copy(done, reply))

        self.runtime.on_loop(begin)
        return reply

    def all_unheard(self) -> list[Unheard]:
        own = list(self.unheard or ())
        for actors in self.actors:
            own += [one for one in actors.unheard or () if one not in own]
        return own

    def end_subscribers(self) -> None:
        super().end_subscribers()
        for actors in self.actors:
            actors.end_subscribers()


class OwnedActors(OwnedMesh):
    """A mesh of actors that this process owns."""

    __slots__ = ("class_name", "cleanup_extra_s", "on", "per", "places", "procs")

    def __init__(
        self, runtime: Runtime, mesh: int, name: str, whole: Shape, supervise: Any, procs: tuple[int, ...], per: int, class_name: str
    ) -> None:
        super().__init__(runtime, mesh, name, whole, supervise)
        self.procs = procs
        self.per = per
        self.class_name = class_name
        self.on: OwnedProcs | None = None
        self.cleanup_extra_s = 0.0

    def _ranks_of(self, proc: int) -> Iterable[int]:
        for place, one in enumerate(self.procs):
            if one == proc:
                yield from range(place * self.per, (place + 1) * self.per)

    def proc_ended(self, proc: int, state: str, failure: Failure) -> None:
        """The proc of some ranks has ended."""
        for rank in self._ranks_of(proc):
            if self._states[rank] == "failed" or (self._states[rank] == "stopped" and state != "restarting"):
                continue
            if self.mesh_stopped is not None and state != "stopped":
                state = "stopped"
            self.set_state(rank, state, reason=failure.reason, failure=failure)
            self.tell("failed" if state == "failed" else state, rank, failure.reason, failure)
            if failure.kind != "stopped" and len(failure.consequences) < 64:
                failure._add_consequence(self._followed(rank, failure))

    def _followed(self, rank: int, cause: Failure) -> Failure:
        return Failure(
            kind=cause.kind, origin=cause.origin, mesh=self.name, name=self.rank_name(rank), point=self.whole.point(rank),
            actor_class=self.class_name, host=cause.host, incarnation=self.incarnation(rank), reason="its proc ended",
            exit_code=cause.exit_code, signal=cause.signal, times=cause.times,
        )  # fmt: skip

    def actor_state(self, ranks: Iterable[int], state: str, incarnation: int, reason: str, failure: Failure | None) -> None:
        """A proc says how actors of this mesh are."""
        for rank in ranks:
            before = self._states[rank]
            self.set_state(rank, state, reason=reason, failure=failure, incarnation=incarnation)
            if state == "up":
                self.tell("recovered" if before == "restarting" else "started", rank)
            elif state == "failed" and failure is not None:
                self.tell("failed", rank, reason, failure)
                self.climbs(rank, failure)
            else:
                self.tell(state, rank, reason)
        self.end_subscribers()

    def stop_ranks(self, ranks: list[int], reason: str) -> None:
        for place, proc in enumerate(self.procs):
            slots = [rank - place * self.per for rank in ranks if rank // self.per == place]
            if slots:
                self.runtime.stop_actors(proc, self.id, slots, reason)
        if self.on is not None and self.mesh_stopped is not None:
            self.runtime.control.forget_actor(list(dict.fromkeys(self.procs)), self.id)

    def restart(self, shape: Shape, reason: str) -> Reply[None]:
        raise NotImplementedError(
            "actors restart with their procs: call restart() on the proc mesh, or spawn the actors with options(restart=…)"
        )


def _copy(done: Any, reply: Reply[Any]) -> None:
    if reply.done():
        return
    error = None if done.cancelled() else done.exception()
    if error is not None:
        fail_reply(reply, error)
    else:
        reply.set_result(None)
