"""`Seat`: what the two actors of a trainer's proc share. The training thread writes, the companion on the loop reads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.ft.ending import End
    from roost.ft.group import Group
    from roost.ft.quorum import Decision, Report

__all__ = ["Progress", "Seat", "seat_here", "take_seat"]


def unscheduled_s(thread: int) -> float:
    """How long a thread of this process has been ready to run and had no processor, since it began.

    Args:
        thread: its native id.

    Returns:
        Seconds; 0 where the kernel does not say (proc(5), `/proc/PID/schedstat`).
    """
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Progress:
    """Whether a training thread gets on: it says what it does, and until when that should be done.

    Time in which it was ready and had no processor is left out: a machine that is too busy is no replica that hangs.

    Args:
        unscheduled: what tells of that time, by the thread's native id.
    """

    def __init__(self, unscheduled: Callable[[int], float] = unscheduled_s) -> None:
        self._unscheduled = unscheduled
        self._thread = 0
        self._now: tuple[str, float | None] = "starting", None
        # What it did when it was last looked at, and how long it had been without a processor when it was first seen at that.
        self._seen: tuple[tuple[str, float | None], float] = self._now, 0.0

    def begin(self) -> None:
        """The calling thread is the training thread."""
        self._thread = threading.get_native_id()

    def mark(self, what: str, limit_s: float | None) -> None:
        """It begins something; None for what may take as long as it takes, because others decide that."""
        self._now = what, None if limit_s is None else time.monotonic() + limit_s

    def overdue(self) -> str | None:
        """What should have been done by now."""
        now, unscheduled_s = self._now, self._unscheduled(self._thread)
        if self._seen[0] is not now:
            self._seen = now, unscheduled_s
        what, until = now
        excused_s = unscheduled_s - self._seen[1]
        return what if until is not None and time.monotonic() > until + excused_s else None

    @property
    def what(self) -> str:
        """What it does."""
        return self._now[0]


class Seat:
    """One proc of one replica.

    Args:
        replica: the replica.
        proc: which of its procs.
    """

    def __init__(self, replica: int, proc: int) -> None:
        from roost.ft.staging import Shelf

        self.replica = replica
        self.proc = proc
        self.born_at = time.time()
        self.progress = Progress()
        self._lock = threading.Lock()
        self._life = -1
        self._has_state = False
        self._last: Decision | None = None
        self.group: Group | None = None
        self._end: End | None = None
        self.renew: Callable[[str], None] | None = None
        """What frees the training thread from a quorum service that is gone, where nothing else does; any thread."""
        self.fault: Callable[[], object] | None = None
        """What is to go wrong where the training thread next says what it does."""
        self.shelf = Shelf()
        """What peers may take."""
        self.ended: Future[Callable[[], None]] = Future()
        """What stages the state that training has ended with, once it has."""

    def begin(self, life: int, group: Group, renew: Callable[[str], None] | None) -> None:
        """The training of a life begins, in the calling thread."""
        self.progress.begin()
        self.renew = renew
        with self._lock:
            self._life, self._has_state, self._last, self.group = life, False, None, group

    def know(self, *, has_state: bool, last: Decision | None) -> None:
        """What a new coordinator is told."""
        with self._lock:
            self._has_state, self._last = has_state, last or self._last

    def know_end(self, end: End) -> None:
        """Training has ended here; a new coordinator is told."""
        with self._lock:
            self._end = end

    def aborted(self) -> str | None:
        """Why the group was aborted, if it was."""
        return None if self.group is None else self.group.aborted

    def report(self) -> Report | None:
        """What this proc knows; None before it trains."""
        from roost.ft.quorum import Report

        with self._lock:
            return None if self._life < 0 else Report(self._life, self._has_state, self._last, self._end)


_here: Seat | None = None


def take_seat(replica: int, proc: int) -> Seat:
    """The companion makes the proc's seat."""
    global _here  # noqa: PLW0603 - a proc has one, and its two actors have nothing else in common
    _here = Seat(replica, proc)
    return _here


def seat_here() -> Seat:
    """The proc's seat."""
    assert _here is not None, "the companion is spawned before the trainer"
    return _here
