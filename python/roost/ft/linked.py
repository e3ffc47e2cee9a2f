"""`CoordinatorLink`: how a training thread speaks with the coordinator. It waits in replies, which a death completes at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from roost.errors import ActorDied, StoppedError
from roost.ft.ledger import News

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.ft.coordinator import Coordinator, Grant, Member, Verdict
    from roost.ft.ending import End
    from roost.ft.ledger import Ledger
    from roost.ft.quorum import Ask, Decision
    from roost.ft.seat import Seat
    from roost.reply import Reply

__all__ = ["CoordinatorLink"]

_AGAIN_S = 0.02


class CoordinatorLink:
    """The way to the coordinator, whichever life of it there is.

    Args:
        seat: the proc's.
        member: who speaks.
        coordinator: the quorum service.
        ledger: what is told of coming back.
    """

    def __init__(self, seat: Seat, member: Member, coordinator: Coordinator, ledger: Ledger) -> None:
        self.replica = member.replica
        self.news = News()
        self._seat = seat
        self._member = member
        self._coordinator = coordinator
        self._ledger = ledger
        self._is_back = False

    def ask(self, ask: Ask) -> Grant | End:
        """Wait for the next quorum."""
        granted: Grant | End = self._insist(lambda: self._coordinator.ask.call_one(self._member, ask))
        return granted

    def vote(self, vote: Decision, *, idles: bool | None) -> Verdict | Literal[True]:
        """Wait for the decision; a new coordinator is sent the same vote again."""
        seat = self._member.replica, self._member.proc, self._member.life
        says = vote.quorum_id, vote.step, vote.is_yes
        verdict: Verdict | Literal[True] = self._insist(lambda: self._coordinator.vote.call_one(seat, says, idles))
        return verdict

    def know(self, *, has_state: bool, last: Decision | None) -> None:
        """Remember for a new coordinator."""
        self._seat.know(has_state=has_state, last=last)

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

    def _insist(self, send: Callable[[], Reply[Any]]) -> Any:
        while True:
            try:
                return send().result()
            except StoppedError:
                raise
            except ActorDied:
                # It is restarted, or the whole job ends. What was asked is asked again, and answered alike.
                time.sleep(_AGAIN_S)
