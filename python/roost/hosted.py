"""`HostedMesh`: the actors of one mesh that live in this process, from their construction to their end."""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import TYPE_CHECKING, Any

from roost import serialize
from roost.constructing import construct, unpack
from roost.failure import Failure
from roost.restarting import History
from roost.runner import Runner
from roost.shape import encode_sizes, rank_name

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from roost._roost import Cell, Message
    from roost.failure import Restart
    from roost.runtime import Runtime
    from roost.shape import Point

__all__ = ["HostedMesh", "News", "Ranks", "life", "proc_incarnation", "refusal"]

_logger = logging.getLogger("roost")

# (slot in this process, rank in the mesh) of each actor.
Ranks = list[tuple[int, int]]
# What an owner is told of a rank: its state, the rank, the reason, its life and its incarnation, and a failure with its
# exception.
News = tuple[str, int, str, tuple[int, int], bytes | None]

_LIVES_MAX = 1 << 32


def life(incarnation: int, alone: int) -> int:
    """A number that grows with each life of an actor: its proc's incarnation, and how often it alone was restarted in that."""
    return incarnation * _LIVES_MAX + alone


def proc_incarnation(life: int) -> int:
    """The incarnation of its proc, in the life of an actor."""
    return life // _LIVES_MAX


def refusal(mesh: int, rank: int, failure: Failure, original: bytes | None, *, maybe_executed: bool = False) -> bytes:
    """What a message is answered with that an actor does not take any more."""
    return pickle.dumps((mesh, rank, failure, original, maybe_executed), 5)


class HostedMesh:
    """The actors of one mesh in this process: made together, each with its own life."""

    __slots__ = (
        "_again", "_arguments", "_histories", "_lives", "_news", "_originals", "_ranks", "cells", "cleanup_timeout_s",
        "endpoints", "handle", "id", "owner", "policy", "runners", "runtime", "sizes",
    )  # fmt: skip

    def __init__(self, runtime: Runtime, mesh: int, owner: int, payload: bytes, ranks: Ranks) -> None:
        self.runtime = runtime
        self.id = mesh
        self.owner = owner
        self.handle, self._arguments, options = unpack(payload)
        self.cleanup_timeout_s: float = options.get("cleanup_timeout_s") or runtime.config.cleanup_timeout_s
        self.policy: Restart | None = options.get("restart")
        self.endpoints = self.handle._class.__roost_endpoints__  # type: ignore[attr-defined]
        self.sizes = encode_sizes(self.handle._whole)
        # News for the owner, sent together once a loop turn: 1,000 actors that come up are one message.
        self._news: list[News] = []
        self._ranks = dict(ranks)
        cells: list[Cell] = runtime.node.host(mesh, [slot for slot, _ in ranks], self.endpoints)
        self.cells = {rank: cell for cell, (_, rank) in zip(cells, ranks, strict=True)}
        self.runners: dict[int, Runner] = {}
        # By rank, where there is something to say: what its policy mended, how often it was restarted alone, when it will be,
        # and what it failed with.
        self._histories: dict[int, History] = {}
        self._lives: dict[int, int] = {}
        self._again: dict[int, asyncio.TimerHandle] = {}
        self._originals: dict[int, bytes] = {}

    def start(self) -> None:
        """Construct every actor, each in its own task."""
        for rank in self.cells:
            self._start(rank)

    def _start(self, rank: int) -> None:
        cell = self.cells[rank]
        runner = self.runners[rank] = Runner(self, rank, cell, self.incarnation(rank))
        cell.set_runner(runner)
        runner.start(self._make)

    def _make(self) -> Any:
        return construct(self.handle, self._arguments)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.runtime.loop

    @property
    def name(self) -> str:
        return self.handle._name

    @property
    def class_name(self) -> str:
        kind = self.handle._class
        return f"{kind.__module__}.{kind.__qualname__}"

    def point(self, rank: int) -> Point:
        return self.handle._whole.point(rank)

    def rank_name(self, rank: int) -> str:
        return rank_name(self.name, self.point(rank))

    @property
    def is_over(self) -> bool:
        """Whether every actor has ended, and none will be constructed anew."""
        return not self.runners and not self._again

    def incarnation(self, rank: int) -> int:
        """The proc's, and one more for each time that this actor alone was restarted."""
        return self.runtime.incarnation + self._lives.get(rank, 0)

    def _life(self, rank: int) -> tuple[int, int]:
        return life(self.runtime.incarnation, self._lives.get(rank, 0)), self.incarnation(rank)

    # What runners report -----------------------------------------------------------------------------------------------
    def up(self, runner: Runner) -> None:
        """An actor is constructed."""
        self._tell("up", runner)

    def failing(self, runner: Runner, error: BaseException, during: str) -> Failure:
        """An actor has failed: callers get its failure from now on, and its owner hears of it unless its policy mends it."""
        rank = runner.rank
        failure = self.failure(runner, error, during)
        original = self._originals[rank] = serialize.dump_exception(error)
        delay = None
        if self.policy is not None and not self.runtime.ending:
            history = self._histories.setdefault(rank, History())
            reasons = tuple(history.failures)
            delay = history.decide(self.policy, self.loop.time(), failure)
            if delay is None and reasons:
                failure = self.failure(runner, error, during, reasons)
        runner.restarts_after_s = delay
        if delay is None or self.policy is None or self.policy.while_down != "wait":
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
        )  # fmt: skip

    def ended(self, runner: Runner, reason: str, *, failed: bool) -> None:
        """An actor has ended, and what it owned too."""
        rank = runner.rank
        if self.runners.get(rank) is not runner:
            return  # it was overdue, and given up
        del self.runners[rank]
        for message in runner.cell.release():
            self.give_back(message, runner)
        again = runner.restarts_after_s
        if again is None and not failed and runner.stopped_itself and self.policy is not None:
            again = self._histories.setdefault(rank, History()).decide(self.policy, self.loop.time(), None)
            if again is not None:
                self._tell("restarting", runner, reason)
        if again is not None and not self.runtime.ending:
            self._again[rank] = self.loop.call_later(again, self._restart, rank)
        elif not failed and not self.runtime.ending:
            # The end of a process is told by the host, for all its actors.
            self._tell("stopped", runner, reason)
        if self.is_over:
            self.runtime.hosting.all_ended(self)

    def _restart(self, rank: int) -> None:
        self._again.pop(rank, None)
        if self.runtime.ending:
            return
        self._lives[rank] = self._lives.get(rank, 0) + 1
        self.cells[rank].reopen()
        self._start(rank)

    def failure(self, runner: Runner, error: BaseException, during: str, reasons: tuple[Failure, ...] = ()) -> Failure:
        """What is told of an actor that raised."""
        said = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        cause = getattr(error, "failure", None)
        return Failure(
            kind="error", origin="user", mesh=self.name, name=self.rank_name(runner.rank), point=self.point(runner.rank),
            actor_class=self.class_name, host=self.runtime.host, incarnation=runner.incarnation, reason=f"{said} (in {during})",
            traceback="".join(traceback.format_exception(error)), cause=cause if isinstance(cause, Failure) else None, reasons=reasons,
        )  # fmt: skip

    def give_back(self, message: Message, runner: Runner) -> None:
        """A message whose actor ended while it ran: its caller hears why."""
        failure = runner.failure
        if self.runtime.exit_code is None and failure is not None:
            original = None if failure.kind == "stopped" else self._originals.get(runner.rank)
            message.give_back(refusal(self.id, runner.rank, failure, original, maybe_executed=True))

    def _tell(self, state: str, runner: Runner, reason: str = "", failure: Failure | None = None) -> None:
        packed = None if failure is None else pickle.dumps((failure, self._originals.get(runner.rank)), 5)
        self._say((state, runner.rank, reason, self._life(runner.rank), packed))

    def _say(self, news: News) -> None:
        self._news.append(news)
        if len(self._news) == 1:
            self.loop.call_soon(self._send_news)

    def _send_news(self) -> None:
        news, self._news = self._news, []
        self.runtime.send_news(self.owner, self.id, news)

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
            rank = self._ranks.get(slot)
            if rank is not None and self.stop_rank(rank, reason) is None:
                self._say(("stopped", rank, reason, self._life(rank), None))

    def stop_rank(self, rank: int, reason: str) -> Runner | None:
        """Stop one actor; None when it has ended already."""
        self._not_again(rank, reason)
        runner = self.runners.get(rank)
        if runner is not None:
            runner.restarts_after_s = None
            runner.stop(reason)
            self.loop.call_later(self.runtime.grace_left_s(), self._overdue, runner, reason)
        return runner

    def restart_slots(self, slots: Iterable[int], reason: str) -> None:
        """Stop the actors in these slots, then construct them anew."""
        for slot in slots:
            rank = self._ranks.get(slot)
            if rank is None:
                continue
            self._not_again(rank, None)
            runner = self.runners.get(rank)
            if runner is None:
                self._restart(rank)
                continue
            runner.restarts_after_s = 0.0
            runner.stop(reason)
            self.loop.call_later(self.runtime.grace_left_s(), self._overdue, runner, reason)

    def _not_again(self, rank: int, reason: str | None) -> None:
        """Do not construct an actor anew after its pause; with a reason, what waits for that goes back."""
        timer = self._again.pop(rank, None)
        if timer is not None:
            timer.cancel()
            if reason is not None:
                self.cells[rank].close(refusal(self.id, rank, self._stopped_failure(rank, reason), None))

    def _overdue(self, runner: Runner, reason: str) -> None:
        """An endpoint does not end although it was cancelled: the actor counts as ended all the same."""
        if self.runners.get(runner.rank) is runner:
            self.warn(f"{self.rank_name(runner.rank)} was told to stop ({reason}), but one of its endpoints still runs")
            self.ended(runner, reason, failed=False)
