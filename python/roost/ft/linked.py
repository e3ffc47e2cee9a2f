"""How a training thread speaks with the quorum service and with the job. It waits in replies, which a death completes at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from roost.errors import ActorDied, StoppedError
from roost.ft.across import Asked, posted
from roost.ft.ending import End
from roost.ft.ledger import News

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.ft.coordinator import Coordinator
    from roost.ft.ledger import Ledger, Settlement
    from roost.ft.lighthouse import Entry, Lighthouse
    from roost.ft.quorum import Ask, Decision, Grant, Member, Verdict
    from roost.ft.seat import Seat
    from roost.reply import Reply

__all__ = ["CoordinatorLink", "LighthouseLink", "ServiceLink"]

_AGAIN_S = 0.02


class ServiceLink:
    """What ways to either quorum service have in common.

    Args:
        seat: the proc's.
        member: who speaks.
        service: the quorum service.
        ledger: what is told of coming back.
    """

    def __init__(self, seat: Seat, member: Member, service: Coordinator | Lighthouse, ledger: Ledger) -> None:
        self.replica = member.replica
        self.news = News()
        self._seat = seat
        self._member = member
        self._service = service
        self._ledger = ledger
        self._is_back = False
        # Tuples travel quicker than what has a class.
        self._seat_of_member = member.replica, member.proc, member.life

    def know(self, *, has_state: bool, last: Decision | None) -> None:
        """Remember for a new quorum service."""
        self._seat.know(has_state=has_state, last=last)

    def settle(self, settlement: Settlement) -> None:
        """Tell the job of the end of a sync."""
        posted(lambda: self._ledger.settle.broadcast(self._seat_of_member, settlement.fields))

    def take(self) -> Asked:
        """Ask the job for the next item."""
        return Asked(lambda: self._ledger.take.call_one(self._seat_of_member))

    def ended(self, end: End) -> None:
        """Training has ended here: whichever life of the quorum service there is, or comes, hears of it."""
        self._seat.know_end(end)
        self._service.over.broadcast(end)

    def mark(self, what: str, limit_s: float | None) -> None:
        """Say what the training thread does, and for how long it may."""
        self._seat.progress.mark(what, limit_s)
        fault = self._seat.fault
        # Where it waits for others there is nothing of its own that could go wrong.
        if fault is not None and limit_s is not None:
            self._seat.fault = None
            fault()

    def reached(self, phase: str) -> None:
        """A phase of coming back is done; with the last one the job is told of all."""
        if self._is_back:
            return
        self.news.times.setdefault(phase, time.time())
        if phase == "first_step":
            self._is_back = True
            self._ledger.tell.broadcast(self._member, self.news)

    def _insist(self, call: Callable[[], Reply[Any]], asked: Asked | None = None) -> Any:
        """Ask until there is an answer, beginning with what was asked already."""
        while True:
            try:
                return (asked or Asked(call)).result()
            except StoppedError:
                raise
            except ActorDied:
                # It is restarted, or the whole job ends. What was asked is asked again, and answered alike.
                asked = None
                time.sleep(_AGAIN_S)


class CoordinatorLink(ServiceLink):
    """The way to Roost's own quorum service, whichever life of it there is."""

    _service: Coordinator

    def ask(self, ask: Ask) -> Grant | End:
        """Wait for the next quorum."""
        granted: Grant | End = self._insist(lambda: self._service.ask.call_one(self._member, ask))
        return granted

    def vote(self, vote: Decision, *, idles: bool | None) -> Callable[[], Verdict | Literal[True]]:
        """Vote; what waits for the decision. A new coordinator is sent the same vote again."""
        says = vote.quorum_id, vote.step, vote.is_yes

        def call() -> Reply[Any]:
            return self._service.vote.call_one(self._seat_of_member, says, idles)

        asked = Asked(call)
        return lambda: self._insist(call, asked)


class LighthouseLink(ServiceLink):
    """The way to the actor that has torchft's lighthouse, whichever life of it there is."""

    _service: Lighthouse

    def enter(self) -> Entry | End:
        """Where the lighthouse is, and a store of this life's own."""
        entry: Entry | End = self._insist(lambda: self._service.enter.call_one(self._member))
        return entry

    def ready(self) -> End | None:
        """Wait until all that are to train have managers, or for the end: who asks alone would have a quorum alone."""
        end: End | None = self._insist(lambda: self._service.arrive.call_one(self._member))
        return end

    def failed(self, quorum_id: int, reason: str) -> None:
        """Have the others freed from a quorum that this member has left, and from those before it."""
        self._service.failed.broadcast(self.replica, quorum_id, reason)

    def formed(self, learners: tuple[int, ...]) -> None:
        """Other replicas train from now on than before."""
        self._ledger.formed.broadcast(learners)

    def has_begun(self) -> bool:
        """Whether a step counts by now."""
        return bool(self._insist(self._ledger.has_begun.call_one))

    def without_state(self) -> End | None:
        """How training ends when nobody in a quorum has the state, and steps count; None where others are there that have it."""
        end: End | None = self._insist(self._service.ended.call_one)
        if end is None and not self._insist(self._ledger.is_trained.call_one):
            return End(error="no replica is left that has the trained state; begin again from a checkpoint")
        return end
