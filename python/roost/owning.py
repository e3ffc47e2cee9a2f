"""The owner's tables: how each rank of a mesh is, who waits for it, and which failures nobody has heard of yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from roost.errors import ActorDied, MeshError, StoppedError
from roost.events import EventStream, event
from roost.failure import Failure, State
from roost.reply import Reply, fail_reply
from roost.shape import Shape, ValueMesh, rank_name

if TYPE_CHECKING:
    from roost.hearing import Unheard
    from roost.runtime import Runtime

__all__ = ["ENDED", "OwnedMesh"]

ENDED = ("failed", "stopped")


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

    def states_now(self) -> list[str]:
        return self._states

    def news(self, payload: bytes) -> None:
        """A proc says how some ranks are."""
        raise NotImplementedError

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
            self.runtime.hearing.carried((self.failures or {}).get(rank), reply)
        fail_reply(reply, error)

    def death_error(self, rank: int) -> ActorDied:
        """The error for whoever calls or waits for a rank that has ended."""
        failure = (self.failures or {}).get(rank)
        if failure is not None and failure.kind != "stopped":
            error = ActorDied(None, failure)
            error.__cause__ = self.runtime.hearing.original(failure)
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
        unheard = self.runtime.hearing.of(failure)
        if self.unheard is None:
            self.unheard = []
        if unheard not in self.unheard:
            self.unheard.append(unheard)
            self.runtime.hearing.escalate(self, unheard)

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
