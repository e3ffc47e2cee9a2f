"""`Books`: what a job knows of its run, and the `Report` that comes of it."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roost.ft.curve import Curve
from roost.ft.data import Feed, GlobalBatch, shares
from roost.ft.incidents import Incident, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roost.failure import Failure
    from roost.ft.data import Item
    from roost.ft.ledger import News, Settlement
    from roost.ft.quorum import Member

__all__ = ["Books", "Report"]

_logger = logging.getLogger("roost.ft")
_RELEASES_KEPT = 16


@dataclass(frozen=True, slots=True)
class Report:
    """How a run went."""

    steps: int
    """Inner steps that count."""
    losses: tuple[float, ...]
    """Of each step, the mean over the replicas that took part in it."""
    participants: tuple[int, ...]
    """How many those were."""
    incidents: tuple[Incident, ...]
    """All failures of replicas, in the order in which they were heard of."""
    skipped: tuple[int, ...]
    """Positions of the items that were handed out and are in no step that counts, or are not known to be."""
    lost_steps: int = 0
    """Inner steps of all replicas that do not count: of those that died, and of syncs that failed."""
    ended: tuple[int | None, ...] = ()
    """How many steps each replica ended with; None for those that were given up, or came back when nobody was left to take it from."""

    def table(self) -> str:
        """The incidents, a line each."""
        return table(self.incidents)


class Books:
    """Keeps a run's books, on the loop of the job's process.

    Args:
        data: the items, or None.
        procs: how many procs a replica has.
    """

    def __init__(self, data: Iterable[Any] | None, procs: int) -> None:
        self.has_data = data is not None
        self.batch_size: int | None = None
        """How many items all replicas together learn from in a step; None where each learns from one."""
        items: Iterable[Any] = () if data is None else data
        if isinstance(data, GlobalBatch):
            items, self.batch_size = data.data, data.size
        self._feed: Feed[Any] = Feed(items, procs)
        self._learners: tuple[int, ...] = ()
        self._curve = Curve()
        self._lost_steps = 0
        self._heard: dict[int, list[float]] = {}
        # When groups were aborted of late: that may be heard before the failure that it was for.
        self._releases: deque[float] = deque(maxlen=_RELEASES_KEPT)
        self.incidents: list[Incident] = []
        # Replicas whose last sync counted, and that have not failed since.
        self._trained: set[int] = set()
        # Those of them that were made to fail, and of which that has not been heard yet.
        self._doomed: set[int] = set()
        self._lives: dict[int, int] = {}
        self.staged_s: list[float] = []
        self.longest_first_s: float | None = None
        """How long a life's build or first step has taken at most so far."""

    # ---- told by the ledger

    def take(self, member: Member) -> Item[Any] | None:
        """The next item for a proc."""
        return self._feed.take(member.replica, member.life, member.proc)

    def settle(self, member: Member, settlement: Settlement) -> None:
        """A sync of a replica is over; what its first proc tells is what all of them do."""
        if member.proc:
            return
        self._feed.settle(member.replica, member.life, settlement.counted, settlement.discarded)
        self._lost_steps += settlement.lost_steps
        if settlement.is_yes:
            self._note_survivor(member.replica, settlement.at)
        if settlement.is_yes and member.life == self._lives.get(member.replica, 0):
            self._trained.add(member.replica)
        for number, loss in enumerate(settlement.losses, settlement.first):
            self._curve.add(number, loss)

    def _note_survivor(self, replica: int, at: float) -> None:
        """A replica goes on: after whose failures?"""
        for incident in reversed(self.incidents):
            if incident.survivors_committed is not None:
                return
            if incident.replica != replica and at > incident.failed_at:
                incident.survivors_committed = at - incident.failed_at

    def tell(self, member: Member, news: News) -> None:
        """A replica is back."""
        for incident in reversed(self.incidents):
            if (incident.replica, incident.life) == (member.replica, member.life):
                for phase, at in news.times.items():
                    incident.note(phase, at)
                # They were free before: their collective had failed by itself, say, while its host was cut off.
                incident.note("survivors_released", incident.failed_at)
                incident.source, incident.donors = news.source, news.donors
                incident.bytes, incident.checksum = news.bytes, news.checksum
                _logger.info("incident: %s", incident.to_json())
                return

    def began(self, seconds: float) -> None:
        """A life has done its first step."""
        self.longest_first_s = max(seconds, self.longest_first_s or 0.0)

    def heard(self, replica: int, at: float) -> None:
        """The coordinator heard of a death, before or after the job's process did."""
        for incident in reversed(self.incidents):
            if incident.replica == replica:
                if at >= incident.failed_at and "detected" not in incident.phases:
                    incident.note("detected", at)
                    return
                break
        self._heard.setdefault(replica, []).append(at)

    def released(self, at: float) -> None:
        """The members of a group have been freed from it: because of the last failure that was heard of."""
        self._releases.append(at)
        for incident in reversed(self.incidents):
            if incident.failed_at <= at:
                committed_s = incident.survivors_committed
                # Else it is another quorum that follows, in which the one that failed is back.
                if committed_s is None or at <= incident.failed_at + committed_s:
                    incident.note("survivors_released", at)
                return

    def formed(self, learners: tuple[int, ...]) -> None:
        """Other replicas train from now on."""
        if learners and learners != self._learners:
            self._learners = learners
            _logger.info("%d replicas train%s", len(learners), self._batch(len(learners)))

    def _batch(self, learners: int) -> str:
        if not self.has_data:
            return ""
        if self.batch_size is None:
            return f": each learns from one item a step, {learners} together"
        parts = shares(self.batch_size, learners)
        return f": a step learns from {self.batch_size} items, {' + '.join(str(one) for one in parts)} of them"

    def staged(self, seconds: float, nbytes: int) -> None:
        """A donor has copied its state."""
        self.staged_s.append(seconds)
        _logger.info("a donor staged %d bytes in %.3f s", nbytes, seconds)

    # ---- told by the job

    def failed(self, replica: int, procs: tuple[int, ...], failure: Failure, life: int) -> Incident:
        """A replica failed; its next life has this number."""
        incident = Incident(replica, procs, failure, life=life)
        self._trained.discard(replica)
        self._doomed.discard(replica)
        self._lives[replica] = life
        for at in self._heard.pop(replica, []):
            if at >= incident.failed_at:
                incident.note("detected", at)
        for at in self._releases:
            if at >= incident.failed_at:
                incident.note("survivors_released", at)
        self.incidents.append(incident)
        # One of its items was only waiting for its turn; where it learns from several a step, it may have begun one more step.
        share = 1 if self.batch_size is None else min(shares(self.batch_size, max(1, len(self._learners))))
        incident.lost_steps = -(-max(0, self._feed.end_life(replica) - 1) // share)
        self._lost_steps += incident.lost_steps
        _logger.warning("replica %d failed: %s", replica, failure.summary)
        return incident

    @property
    def trained(self) -> frozenset[int]:
        """The replicas whose last sync counted, and that have not failed since."""
        return frozenset(self._trained - self._doomed)

    @property
    def progress(self) -> int:
        """How many steps count."""
        return len(self._curve)

    def doom(self, replica: int) -> None:
        """A replica is about to fail."""
        self._doomed.add(replica)

    def report(self, ended: tuple[int | None, ...]) -> Report:
        """How the run went."""
        return Report(
            steps=max((one for one in ended if one is not None), default=0),
            losses=self._curve.means(),
            participants=self._curve.participants(),
            incidents=tuple(self.incidents),
            skipped=tuple(sorted(self._feed.skipped)),
            lost_steps=self._lost_steps,
            ended=ended,
        )
