"""What becomes of a job, told of looks at it: whichever looks there were, the story is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roost.events import now
from roost.job.status import JobEvent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from roost.job.status import HostStatus, JobEventKind, JobStatus

__all__ = ["Story"]


class Story:
    """A job's events, of looks at it that may be far apart.

    A job lives once, and once more each time that its scheduler starts it again (`requeued`). Of each life that had hosts `running` is told
    before its hosts and its end, though nobody looked while it was so.

    Args:
        warn_s: how many seconds before its end `time_left` is told.
    """

    def __init__(self, warn_s: float) -> None:
        self._warn_s = warn_s
        # The last look at this life; None before its first.
        self._last: JobStatus | None = None
        self._restarts: int | None = None
        # Whether it was told that this life runs.
        self._ran = False

    def goes_on(self, look: JobStatus) -> Iterator[JobEvent]:
        """What is to be told after one more look."""
        at = now()
        yield from self._lives_before(look, at)
        last, self._last = self._last, look
        yield from self._state(last, look, at)
        known = {} if last is None else {(one.mesh, one.rank): one for one in last.hosts}
        for one in look.hosts:
            yield from _of_host(known.get((one.mesh, one.rank)), one, look, at)
        if look.preempted and not (last is not None and last.preempted):
            yield JobEvent(kind="preempted", at=at, reason=look.reason)
        if self._is_near(look) and not (last is not None and self._is_near(last)):
            yield JobEvent(kind="time_left", at=at, reason=f"{look.time_left_s:.0f} s are left")
        if _is_over(look) and not (last is not None and _is_over(last)):
            yield JobEvent(kind="ended", at=at, reason=look.reason)

    def _lives_before(self, look: JobStatus, at: datetime) -> Iterator[JobEvent]:
        """The ends of the lives that are over since the last look."""
        if self._restarts is None:
            self._restarts = look.restarts
        while self._restarts < look.restarts:
            # Only what has run is started again.
            if not self._ran:
                yield JobEvent(kind="running", at=at)
            self._restarts += 1
            why = "" if _is_over(look) or self._restarts < look.restarts else look.reason
            yield JobEvent(kind="requeued", at=at, reason=why or f"started for the {self._restarts + 1}. time")
            self._last, self._ran = None, False

    def _state(self, last: JobStatus | None, look: JobStatus, at: datetime) -> Iterator[JobEvent]:
        before = None if last is None else last.state
        runs = look.state == "running"
        is_first = (runs or look.has_run) and not self._ran
        if is_first or (runs and before != "running"):
            self._ran = True
            yield JobEvent(kind="running", at=at, reason=look.reason if runs else "")
        if look.state == "pending" and (is_first or before != "pending"):
            yield JobEvent(kind="pending", at=at, reason=look.reason)

    def _is_near(self, look: JobStatus) -> bool:
        left = look.time_left_s
        return look.state == "running" and not look.preempted and left is not None and left <= self._warn_s


def _is_over(look: JobStatus) -> bool:
    return look.state in ("ended", "absent")


def _of_host(old: HostStatus | None, new: HostStatus, job: JobStatus, at: datetime) -> Iterator[JobEvent]:
    """What became of a host; what keeps the whole job waiting is not told of each."""
    was_up = old is not None and old.state == "up"
    is_same = old is not None and (old.state, old.address, old.agent) == (new.state, new.address, new.agent)
    # A job that ends takes all its hosts with it: that is its own event.
    goes_with_job = new.state == "missing" and new.reason == job.reason != "" and not job.preempted
    kinds: list[JobEventKind] = []
    if (was_up or new.state == "lost") and not (is_same or goes_with_job):
        # Another one may have taken its place already.
        kinds.append("host_lost")
    if new.state == "up" and not is_same:
        kinds.append("host_up")
    if new.state == "missing" and not was_up and new.reason not in ("", job.reason, "" if old is None else old.reason):
        kinds.append("host_waiting")
    for kind in kinds:
        host = old.host if old is not None and kind == "host_lost" and was_up else new.host
        yield JobEvent(kind=kind, at=at, mesh=new.mesh, rank=new.rank, host=host, reason=new.reason)
