"""The owner's table of a mesh: how each rank is, who waits for it, and which failures nobody has heard of yet."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from roost.errors import ActorDied, MeshError
from roost.events import EventStream, event
from roost.failure import State
from roost.hearing import failures_in, raise_unheard
from roost.point import rank_name
from roost.reply import Reply, fail_reply
from roost.stops import death_error, stopped_error
from roost.value_mesh import ValueMesh
from roost.waiting import RankWaiter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from roost.failure import Event, Failure
    from roost.looking import Doing
    from roost.runtime import Runtime
    from roost.shape import Shape
    from roost.unheard import Unheard

__all__ = ["ENDED", "NOTHING", "OwnedMesh", "noted"]

V = TypeVar("V")

ENDED = ("failed", "stopped")


# What most meshes have to say of their ranks, and the states of a mesh of one rank: shared by all.
NOTHING: Mapping[int, Any] = MappingProxyType({})
_ALONE = {state: (state,) for state in ("starting", "up", "restarting", "failed", "stopped")}
_STARTING = _ALONE["starting"]


def noted(known: Mapping[int, V], rank: int, value: V) -> Mapping[int, V]:
    """What is known of some ranks, and this too."""
    if isinstance(known, dict):
        known[rank] = value
        return known
    return {rank: value}


class OwnedMesh(ABC):
    """One mesh that this process owns."""

    __slots__ = (
        "_ended", "_incarnations", "_least", "_lives", "_mended", "_retired", "_states", "_told", "entered", "failures", "id",
        "mesh_stopped", "name", "owner_runner", "pids", "reasons", "runtime", "subscribers", "supervise", "unheard", "waiters",
        "whole",
    )  # fmt: skip

    def __init__(
        self, runtime: Runtime, mesh: int, name: str, whole: Shape, supervise: Callable[..., Any] | None
    ) -> None:
        self.runtime = runtime
        self.id = mesh
        self.name = name
        self.whole = whole
        self.supervise = supervise
        self.owner_runner = runtime.handling_runner()
        size = len(whole)
        self._states: Sequence[str] = _STARTING if size == 1 else ["starting"] * size
        # How many ranks have.
        self._ended = 0
        # By rank, where there is something to say; the last life that was heard of, and the first that counts as up after a
        # restart was asked for. Meshes are many and most are of one actor, of which there is nothing to say: nothing is
        # made before there is.
        self._incarnations: Mapping[int, int] = NOTHING
        self._lives: Mapping[int, int] = NOTHING
        self._least: Mapping[int, int] = NOTHING
        self.failures: Mapping[int, Failure] = NOTHING
        # Those after which the rank was up again: not how it ends.
        self._mended: Mapping[int, Failure] = NOTHING
        self.reasons: Mapping[int, str] = NOTHING
        self.pids: Mapping[int, int] = NOTHING
        self.unheard: Sequence[Unheard] = ()
        self.waiters: Sequence[RankWaiter] = ()
        # One that its reader has let go of is gone.
        self.subscribers: Collection[EventStream] = ()
        self.mesh_stopped: str | None = None
        # How many `async with` blocks are inside this mesh: the outermost raises what nobody heard.
        self.entered = 0
        self._retired = False
        # A failure to start that whoever waited for ranks was told of, and those of them that were not up yet.
        self._told: tuple[Unheard, set[int]] | None = None

    @property
    def is_root(self) -> bool:
        """Whether it does not end with another mesh of this process."""
        return True

    @property
    def is_over(self) -> bool:
        """Whether every rank has ended."""
        return self._ended == len(self._states)

    # What ranks do -----------------------------------------------------------------------------------------------------
    def rank_name(self, rank: int) -> str:
        """The name of a rank, such as `workers[gpus=3]`."""
        return rank_name(self.name, self.whole.point(rank))

    def incarnation(self, rank: int) -> int:
        """Which life of the rank this is."""
        return self._incarnations.get(rank, 0)

    def life(self, rank: int) -> int:
        """A number that grows with each life of the rank."""
        return self._lives.get(rank, 0)

    def is_old(self, rank: int, life: int) -> bool:
        """Whether word of this life came after it was to be restarted."""
        if life > self.life(rank):
            self._lives = noted(self._lives, rank, life)
        return life < self._least.get(rank, 0)

    def state(self, rank: int) -> str:
        """How a rank is."""
        return self._states[rank]

    def has_gone(self, rank: int) -> bool:
        """Whether nothing is left of a rank."""
        return self._states[rank] in ENDED

    def set_state(
        self, rank: int, state: str, *, reason: str = "", failure: Failure | None = None, incarnation: int | None = None
    ) -> None:
        """A rank is in another state now."""
        if incarnation is not None and incarnation != self.incarnation(rank):
            self._incarnations = noted(self._incarnations, rank, incarnation)
        if failure is not None:
            self.failures = noted(self.failures, rank, failure)
        if reason:
            self.reasons = noted(self.reasons, rank, reason)
        self._ended += (state in ENDED) - (self._states[rank] in ENDED)
        if isinstance(self._states, list):
            self._states[rank] = state
        else:
            self._states = _ALONE[state]
        if state == "up":
            if self._told is not None:
                self._told[1].discard(rank)
            if rank in self.failures:
                self._mended = noted(self._mended, rank, self.failures[rank])
        if self.waiters:
            self._check_waiters()

    def tell(self, kind: str, rank: int, reason: str = "", failure: Failure | None = None) -> None:
        """Give an event to whoever listens."""
        if not self.has_listeners():
            return
        name, point = self.rank_name(rank), self.whole.point(rank)
        self.give(event(kind, self.name, name, point, self.incarnation(rank), reason, failure))

    def has_listeners(self) -> bool:
        """Whether anybody listens to events of this mesh."""
        return bool(self.subscribers or self.runtime.job_subscribers)

    def give(self, happened: Event) -> None:
        """Pass an event on: to this mesh's listeners and to the job's."""
        for subscriber in list(self.subscribers):
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
            waiter = RankWaiter(what, reply, shape, value)
            if not self._settle(waiter):
                # Those that were given up make room: a mesh that stays as it is may be waited for again and again.
                self.waiters = [*(one for one in self.waiters if not one.reply.done()), waiter]

        self.runtime.on_loop(begin)
        return reply

    def _check_waiters(self) -> None:
        self.waiters = [one for one in self.waiters if not one.reply.done() and not self._settle(one)]

    def _settle(self, waiter: RankWaiter) -> bool:
        """Whether a waiter has what it waits for."""
        what, reply = waiter.what, waiter.reply
        if what == "stopped":
            if waiter.all_are(self.has_gone):
                reply.set_result(None)
            return reply.done()
        if what == "ended":
            if waiter.all_are(self._has_ended):
                reply.set_result(self.snapshot(waiter.shape))
            return reply.done()
        if self._ended and any(self._has_ended(rank) for rank in waiter.ranks):
            self._fail_ready(reply, waiter.shape)
            return True
        if not waiter.all_are(self._is_up):
            return False
        reply.set_result(waiter.value)
        return True

    def _has_ended(self, rank: int) -> bool:
        return self._states[rank] in ENDED

    def _is_up(self, rank: int) -> bool:
        return self._states[rank] == "up"

    def _fail_ready(self, reply: Reply[Any], shape: Shape) -> None:
        ended = [rank for rank in shape.ranks() if self._states[rank] in ENDED]
        # Ranks that were stopped because another did not start are not the cause.
        cause = [rank for rank in ended if self._states[rank] == "failed"] or ended
        errors: list[Exception] = [self.death_error(rank) for rank in cause]
        error: Exception = errors[0]
        if len(errors) > 1:
            error = MeshError(
                f"{len(errors)} ranks of {self.name} are not up", errors, [self.whole.point(rank) for rank in cause]
            )
        for rank in cause:
            self.runtime.hearing.carried(self.failures.get(rank), reply)
        first = self.failures.get(cause[0])
        if first is not None:
            rest = {rank for rank in shape.ranks() if self._states[rank] not in ("up", *ENDED)}
            self._told = self.runtime.hearing.of(first), rest
        fail_reply(reply, error)

    def was_told(self, rank: int) -> bool:
        """Whether who waited for this rank was told that another does not start."""
        return self._told is not None and rank in self._told[1]

    def death_error(self, rank: int) -> ActorDied:
        """The error for whoever calls or waits for a rank that has ended."""
        failure = self.failures.get(rank)
        if failure is self._mended.get(rank):
            failure = None
        if failure is not None and failure.kind != "stopped":
            error = death_error(failure)
            error.__cause__ = self.runtime.hearing.original(failure)
            return error
        reason = self.reasons.get(rank) or self.mesh_stopped or "stopped"
        error = stopped_error(self.rank_name(rank), reason, mesh=self.name, point=self.whole.point(rank))
        if failure is not None:
            error.failure = failure
        return error

    # Stopping ----------------------------------------------------------------------------------------------------------
    def stop(self, shape: Shape, reason: str) -> Reply[None]:
        """Done when all these ranks have ended."""
        reply: Reply[None] = Reply(loop=self.runtime.loop)

        def begin() -> None:
            if len(shape) == len(self._states):
                self.mark_stopped(reason)
            self.keep_down(shape.ranks(), reason)
            ranks = [rank for rank in shape.ranks() if self._states[rank] not in ENDED]
            if ranks:
                self.stop_ranks(ranks, reason)
            waiter = RankWaiter("stopped", reply, shape, None)
            if not self._settle(waiter):
                self.waiters = [*self.waiters, waiter]
            self.check_over()

        self.runtime.on_loop(begin)
        return reply

    def job_ended(self) -> None:
        """The job was ended at once: whoever waits for a stop would wait for ever."""
        for waiter in self.waiters:
            if waiter.what == "stopped" and not waiter.reply.done():
                waiter.reply.set_result(None)

    def mark_stopped(self, reason: str) -> None:
        """The whole mesh is stopped: from now on its verbs raise."""
        if self.mesh_stopped is None:
            self.mesh_stopped = reason
            self.runtime.node.set_stopped(self.id)

    def keep_down(self, ranks: Iterable[int], reason: str) -> None:  # noqa: B027 - most have nothing that brings them back
        """These ranks are stopped: what they live on may come back, and they do not, also where they had failed before."""

    @abstractmethod
    def stop_ranks(self, ranks: list[int], reason: str) -> None:
        """Have these ranks stopped."""

    def restart(self, shape: Shape, reason: str) -> Reply[None]:
        """Start the next incarnation of these ranks; done when they are up."""
        if self.mesh_stopped is not None:
            raise stopped_error(self.name, self.mesh_stopped, advice="; spawn a new one instead of restarting this")
        stopping = {rank for waiter in self.waiters if waiter.what == "stopped" for rank in waiter.ranks}
        for rank in shape.ranks():
            if rank in stopping and self._states[rank] not in ENDED:
                why = "it is being stopped; await that, then restart it"
                raise stopped_error(self.rank_name(rank), why, mesh=self.name, point=self.whole.point(rank))
        reply: Reply[None] = Reply(loop=self.runtime.loop)

        def begin() -> None:
            ranks = list(shape.ranks())
            refused = self.no_restart(ranks)
            if refused is not None:
                self.runtime.hearing.carried(refused.failure, reply)
                fail_reply(reply, refused)
                return
            self.restart_ranks(ranks, reason)
            for rank in ranks:
                self.set_state(rank, "restarting", reason=reason)
                # That the old one is up may still be on its way here.
                self._least = noted(self._least, rank, self.life(rank) + 1)
            self.waiters = [*self.waiters, RankWaiter("ready", reply, shape, None)]

        self.runtime.on_loop(begin)
        return reply

    def no_restart(self, _ranks: Iterable[int]) -> ActorDied | None:
        """Why these ranks cannot be started anew; None where they can."""
        return None

    @abstractmethod
    def restart_ranks(self, ranks: list[int], reason: str) -> None:
        """Have these ranks started anew."""

    async def leave(self, shape: Shape, error: BaseException | None, *, entering: bool = False) -> None:
        """The end of an `async with`: stop, then raise what nobody has heard of, together with the body's own error.

        When it could not be entered its caller raises the error, which tells of the others that failed.
        """
        self.entered -= 1
        reason = (
            "its async with block ended" if error is None else f"its async with block raised {type(error).__name__}"
        )
        stopping = self.stop(shape, reason)
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise
        if self.entered == 0:
            await self.runtime.hearing.settled(self.all_unheard())
            self._raise_unheard(error, entering=entering)

    def _raise_unheard(self, error: BaseException | None, *, entering: bool) -> None:
        for failure in () if error is None else failures_in(error):
            self.runtime.hearing.of(failure).hear()
        unheard = [one for one in self.all_unheard() if not one.heard]
        for one in unheard:
            one.hear()
        died = [death_error(one.failure) for one in unheard]
        if entering and error is not None:
            for death in died:
                error.add_note(f"besides: {death}")
            return
        raise_unheard(error, died, self.name, [one.failure.point for one in unheard])

    def all_unheard(self) -> list[Unheard]:
        """The failures of this mesh, and of meshes on it, that need a hearer."""
        return list(self.unheard)

    def check_over(self) -> None:
        """When the mesh has ended there are no more events, and it is remembered only for a while."""
        if self.is_over and (self.mesh_stopped is not None or all(state == "stopped" for state in self._states)):
            for subscriber in list(self.subscribers):
                subscriber.end()
            self.subscribers = ()
            if not self._retired:
                self._retired = True
                self.runtime.retire(self)

    # Failing -----------------------------------------------------------------------------------------------------------
    def climbs(self, rank: int, failure: Failure) -> None:
        """A failure that no policy mends: the hook hears of it, else the owner."""
        unheard = self.runtime.hearing.of(failure)
        if unheard not in self.unheard:
            self.unheard = [*self.unheard, unheard]
            if self._told is not None and self.was_told(rank):
                unheard.goes_with(self._told[0])
            self.runtime.hearing.escalate(self, rank, unheard)

    # Looking -----------------------------------------------------------------------------------------------------------
    def states(self, shape: Shape) -> Reply[ValueMesh[State]]:
        """How each rank is, as the owner knows it."""
        reply: Reply[ValueMesh[State]] = Reply(loop=self.runtime.loop)
        self.runtime.on_loop(lambda: reply.set_result(self.snapshot(shape)))
        return reply

    def snapshot(self, shape: Shape) -> ValueMesh[State]:
        """States by rank."""
        return ValueMesh(shape.sizes, [self._state_of(rank) for rank in shape.ranks()])

    def _state_of(self, rank: int) -> State:
        state = self._states[rank]
        reason = (
            "" if state == "up" else self.reasons.get(rank) or (self.mesh_stopped or "" if state == "stopped" else "")
        )
        running, queued = ((), 0) if state in ENDED else self._doing_of(rank)
        return State(
            state, reason, self.incarnation(rank), self.pid(rank), self.failures.get(rank), running, queued  # type: ignore[arg-type]
        )  # fmt: skip

    def _doing_of(self, _rank: int) -> Doing:
        """What a rank does, as far as that was seen."""
        return (), 0

    def pid(self, rank: int) -> int | None:
        """The process of a rank, while it has one."""
        return None if self._states[rank] in ENDED else self.pids.get(rank)

    def events(self, shape: Shape) -> EventStream:
        """Events of these ranks from now on."""
        wants = None
        if len(shape) != len(self.whole):
            wants = self.wants(list(shape.ranks()))
        stream = EventStream(self.runtime.config.events_max, wants)
        if self._retired:
            stream.end()
        else:
            if not isinstance(self.subscribers, WeakSet):
                self.subscribers = WeakSet()
            self.subscribers.add(stream)
        return stream

    def wants(self, ranks: Iterable[int]) -> Callable[[Event], bool]:
        """Whether an event is about these ranks."""
        names = {self.rank_name(rank) for rank in ranks}
        return lambda happened: happened.name in names
