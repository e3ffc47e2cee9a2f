"""`HostedMesh`: the actors of one mesh that live in this process, from their construction to their end."""

from __future__ import annotations

import logging
import pickle
import time
from typing import TYPE_CHECKING, Any

from roost import serialize
from roost._exceptions import one_line, traceback_text
from roost._roost import History
from roost.actor_mesh import ActorMesh
from roost.errors import ActorDied
from roost.failure import Failure
from roost.ids import chance
from roost.news import life
from roost.point import rank_name
from roost.probing import UnhealthyError
from roost.runner import Runner

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from roost._roost import Message
    from roost.constructing import Constructors, Plan
    from roost.failure import FailureKind, Restart
    from roost.point import Point
    from roost.runtime import Runtime

__all__ = ["HostedMesh", "Ranks", "refusal"]

_logger = logging.getLogger("roost")

# (slot in this process, rank in the mesh) of each actor.
Ranks = list[tuple[int, int]]


def refusal(mesh: int, rank: int, failure: Failure, original: bytes | None, *, maybe_executed: bool = False) -> bytes:
    """What a message is answered with that an actor does not take any more."""
    return pickle.dumps((mesh, rank, failure, original, maybe_executed), 5)


class Past:
    """What there is to say of one rank besides its present life."""

    __slots__ = ("_history", "again", "alone", "mended", "original")

    def __init__(self) -> None:
        # The failures that its policy mended; how often it was restarted alone; when it will be; what it failed with.
        self._history: History | None = None
        self.mended: list[Failure] = []
        self.alone = 0
        self.again: asyncio.TimerHandle | None = None
        self.original: bytes | None = None

    def decide(self, policy: Restart, now: float, failure: Failure | None) -> float | None:
        """Seconds to wait before the next start; None when there is none.

        Args:
            policy: what to go by.
            now: the time, in seconds of any clock.
            failure: how it failed; None for a normal end.
        """
        if self._history is None:
            self._history = History(policy._as_builtins())
        delay = self._history.decide(now, failure is None, chance())
        if delay is not None and failure is not None:
            self.mended = [*self.mended, failure][-policy.limit :]
        return delay


class HostedMesh:
    """The actors of one mesh in this process: made together, each with its own life."""

    __slots__ = (
        "_arguments", "_handle", "_live", "_over", "_past", "_waiting", "cells", "first", "id", "name", "plan",
        "runtime",
    )  # fmt: skip

    def __init__(self, runtime: Runtime, plan: Plan, made: Constructors) -> None:
        self.runtime = runtime
        self.plan = plan
        # The ranks that live here are in a row, from the first on.
        self.id, self.first, count, self.name, self._arguments = (
            made.mesh,
            made.first,
            made.size,
            made.name,
            made.arguments,
        )
        self._handle: ActorMesh | None = None
        self.cells = runtime.node.host(self.id, count, plan.actor.__roost_endpoints__)  # type: ignore[attr-defined]
        # How many have not ended, and how many of the others will be constructed anew.
        self._live = 0
        self._waiting = 0
        # By rank, where there is something to say.
        self._past: dict[int, Past] | None = None
        # For who waits for the end of all.
        self._over: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Have every actor constructed."""
        for slot in range(len(self.cells)):
            self._start(slot)

    def _start(self, slot: int) -> None:
        rank = self.first + slot
        cell = self.cells[slot]
        self._live += 1
        cell.start(Runner(self, rank, cell, self.incarnation(rank)))

    def construct(self) -> Any:
        """A new actor."""
        return self.plan.construct(self._arguments)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.runtime.loop

    @property
    def handle(self) -> ActorMesh:
        """The whole mesh."""
        if self._handle is None:
            self._handle = ActorMesh._planned(self.plan, self.id, self.name)
        return self._handle

    @property
    def owner(self) -> int:
        return self.plan.owner

    @property
    def class_name(self) -> str:
        return self.plan.class_name

    @property
    def endpoints(self) -> dict[str, Any]:
        endpoints: dict[str, Any] = self.plan.actor.__roost_endpoints__  # type: ignore[attr-defined]
        return endpoints

    @property
    def sizes(self) -> bytes:
        return self.plan.sizes

    @property
    def cleanup_timeout_s(self) -> float:
        return self.plan.cleanup_timeout_s or self.runtime.config.cleanup_timeout_s

    def point(self, rank: int) -> Point:
        return self.plan.whole.point(rank)

    def rank_name(self, rank: int) -> str:
        return rank_name(self.name, self.point(rank))

    @property
    def is_over(self) -> bool:
        """Whether every actor has ended, and none will be constructed anew."""
        return not self._live and not self._waiting

    def _past_of(self, rank: int) -> Past:
        if self._past is None:
            self._past = {}
        past = self._past.get(rank)
        if past is None:
            past = self._past[rank] = Past()
        return past

    def _alone(self, rank: int) -> int:
        past = None if self._past is None else self._past.get(rank)
        return 0 if past is None else past.alone

    def _original(self, rank: int) -> bytes | None:
        past = None if self._past is None else self._past.get(rank)
        return None if past is None else past.original

    def incarnation(self, rank: int) -> int:
        """The proc's, and one more for each time that this actor alone was restarted."""
        return self.runtime.incarnation + self._alone(rank)

    # What runners report -----------------------------------------------------------------------------------------------
    def up(self, runner: Runner) -> None:
        """An actor is constructed."""
        if self._past is None:
            self.runtime.news.tell_fresh(self.owner, self.id, runner.rank)
        else:
            self._tell("up", runner)

    def failing(self, runner: Runner, error: BaseException, during: str) -> Failure:
        """An actor has failed: callers get its failure from now on, and its owner hears of it unless its policy mends it."""
        rank = runner.rank
        failure = self.failure(runner, error, during)
        past = self._past_of(rank)
        original = past.original = None if isinstance(error, UnhealthyError) else serialize.dump_exception(error)
        delay, policy = None, self.plan.policy
        if policy is not None and not self.runtime.ending:
            reasons = tuple(past.mended)
            delay = past.decide(policy, self.loop.time(), failure)
            if delay is None and reasons:
                failure = self.failure(runner, error, during, reasons)
        runner.restarts_after_s = delay
        if delay is None or policy is None or policy.while_down != "wait":
            runner.cell.close(refusal(self.id, rank, failure, original))
        self._tell("failed" if delay is None else "restarting", runner, failure.reason, failure)
        return failure

    def stopping(self, runner: Runner, reason: str) -> Failure:
        """An actor takes no more messages, since it stops."""
        failure = self._stopped_failure(runner.rank, reason)
        if self.runtime.exit_code is None:
            # Who calls a process that exits hears how it exited, with its death.
            runner.cell.close(refusal(self.id, runner.rank, failure, None))
        return failure

    def _stopped_failure(self, rank: int, reason: str) -> Failure:
        return Failure(
            kind="stopped", origin="user", mesh=self.name, name=self.rank_name(rank), point=self.point(rank),
            actor_class=self.class_name, host=self.runtime.host, incarnation=self.incarnation(rank), reason=reason,
            times={"died_at": time.time()},
        )  # fmt: skip

    def ended(self, runner: Runner, reason: str, *, failed: bool) -> None:
        """An actor has ended, and what it owned too."""
        rank = runner.rank
        if runner.cell.runner is not runner:
            return  # it was overdue, and given up
        self._live -= 1
        for message in runner.cell.release():
            self.give_back(message, runner)
        again, policy = runner.restarts_after_s, self.plan.policy
        if again is None and not failed and runner.stopped_itself and policy is not None:
            again = self._past_of(rank).decide(policy, self.loop.time(), None)
            if again is not None:
                self._tell("restarting", runner, reason)
        if again is not None and not self.runtime.ending:
            self._past_of(rank).again = self.loop.call_later(again, self._restart, rank)
            self._waiting += 1
        elif (not failed or runner.called_off) and not self.runtime.ending:
            # The end of a process is told by the host, for all its actors.
            self._tell("stopped", runner, reason)
        if self.is_over:
            self.runtime.hosting.all_ended(self)
            if self._over is not None and not self._over.done():
                self._over.set_result(None)

    def _restart(self, rank: int) -> None:
        past = self._past_of(rank)
        if past.again is not None:
            past.again = None
            self._waiting -= 1
        if self.runtime.ending:
            return
        past.alone += 1
        slot = rank - self.first
        self.cells[slot].reopen()
        self._start(slot)

    def failure(self, runner: Runner, error: BaseException, during: str, reasons: tuple[Failure, ...] = ()) -> Failure:
        """What is told of an actor that raised."""
        # A user's class may raise for any name that it is asked for.
        cause = error.failure if isinstance(error, ActorDied) else None
        kind: FailureKind = "error"
        reason, traceback = f"{one_line(error)} (in {during})", traceback_text(error)
        if isinstance(error, UnhealthyError):
            # Nothing of the user's was raised.
            kind, reason, traceback = "unhealthy", str(error), ""
        return Failure(
            kind=kind, origin="user", mesh=self.name, name=self.rank_name(runner.rank), point=self.point(runner.rank),
            actor_class=self.class_name, host=self.runtime.host, incarnation=runner.incarnation, reason=reason,
            traceback=traceback, cause=cause, reasons=reasons, times={"died_at": time.time()},
        )  # fmt: skip

    def give_back(self, message: Message, runner: Runner) -> None:
        """A message whose actor ended while it ran: its caller hears why."""
        failure = runner.failure
        if message.wants_stream:
            self.runtime.streams.done(message)
        if self.runtime.exit_code is None and failure is not None:
            original = None if failure.kind == "stopped" else self._original(runner.rank)
            message.give_back(refusal(self.id, runner.rank, failure, original, maybe_executed=True))

    def _tell(self, state: str, runner: Runner, reason: str = "", failure: Failure | None = None) -> None:
        packed = None if failure is None else pickle.dumps((failure, self._original(runner.rank)), 5)
        self._say(state, runner.rank, reason, packed)

    def _say(self, state: str, rank: int, reason: str, packed: bytes | None) -> None:
        alone, first = self._alone(rank), self.runtime.incarnation
        self.runtime.news.tell(self.owner, (self.id, state, rank, reason, life(first, alone), first + alone, packed))

    def exit_process(self, ending: SystemExit) -> None:
        """An endpoint raised SystemExit."""
        self.runtime.exit(ending)

    def dead_letter(self, message: Message, reason: str) -> None:
        """A broadcast that no endpoint takes."""
        self.runtime.letters.send_back(message.sender, self.id, message.runner.rank, message.name, reason, None)

    def note(self, message: Message) -> str:
        """What is added to an exception that goes back to a caller."""
        return f"raised by {self.rank_name(message.runner.rank)} in endpoint {message.name}"

    def warn(self, text: str) -> None:
        _logger.warning("%s", text)

    # What the owner asks -----------------------------------------------------------------------------------------------
    def stop_slots(self, slots: Iterable[int], reason: str) -> None:
        """Stop the actors in these slots; one that has ended is told of again."""
        for slot in slots:
            if slot < len(self.cells) and self.stop_slot(slot, reason) is None:
                self._say("stopped", self.first + slot, reason, None)

    def runners(self, ranks: Ranks) -> list[Runner]:
        """The actors of these that live."""
        cells = self.cells
        found = [cells[slot].runner for slot, _ in ranks if slot < len(cells)]
        return [runner for runner in found if runner is not None]

    def probed(self, runner: Runner, wrong: str) -> None:
        """An actor said whether it is healthy."""
        self._tell("probed", runner, wrong)

    def waiting(self, slot: int, reason: str) -> None:
        """A message waits long for an actor."""
        self._say("waiting", self.first + slot, reason, None)

    async def stop(self, reason: str) -> None:
        """Stop every actor, and wait for their ends."""
        for slot in range(len(self.cells)):
            self.stop_slot(slot, reason)
        if not self.is_over:
            self._over = self.loop.create_future()
            await self._over

    def stop_slot(self, slot: int, reason: str) -> Runner | None:
        """Stop one actor; None when it has ended already."""
        self._not_again(slot, reason)
        runner: Runner | None = self.cells[slot].runner
        if runner is not None:
            runner.call_off()
            runner.stop(reason)
            self.loop.call_later(self.runtime.grace_left_s(), self._overdue, runner, reason)
        return runner

    def restart_slots(self, slots: Iterable[int], reason: str) -> None:
        """Stop the actors in these slots, then construct them anew."""
        for slot in slots:
            if slot >= len(self.cells):
                continue
            self._not_again(slot, None)
            runner: Runner | None = self.cells[slot].runner
            if runner is None:
                self._restart(self.first + slot)
                continue
            runner.restarts_after_s = 0.0
            runner.stop(reason)
            self.loop.call_later(self.runtime.grace_left_s(), self._overdue, runner, reason)

    def _not_again(self, slot: int, reason: str | None) -> None:
        """Do not construct an actor anew after its pause; with a reason, what waits for that goes back."""
        rank = self.first + slot
        past = None if self._past is None else self._past.get(rank)
        if past is None or past.again is None:
            return
        past.again.cancel()
        past.again = None
        self._waiting -= 1
        if reason is not None:
            self.cells[slot].close(refusal(self.id, rank, self._stopped_failure(rank, reason), None))

    def _overdue(self, runner: Runner, reason: str) -> None:
        """It does not end, although all that it does was cancelled: the actor counts as ended all the same."""
        if runner.cell.runner is runner and not self.runtime.closed:
            self.warn(f"{self.rank_name(runner.rank)} was told to stop ({reason}), but {runner.overdue}")
            self.ended(runner, reason, failed=False)
