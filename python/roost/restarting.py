"""When an actor that failed is constructed again: the policy's memory of one rank."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.failure import Failure, Restart

__all__ = ["History"]

# A pause is this much shorter or longer, so that what died together does not start together; pauses still grow.
_JITTER = 0.2


class History:
    """The failures of one rank that its policy mended; the host's agent keeps the same for procs."""

    __slots__ = ("_at", "failures")

    def __init__(self) -> None:
        self._at: deque[float] = deque()
        self.failures: list[Failure] = []

    def decide(self, policy: Restart, now: float, failure: Failure | None) -> float | None:
        """Seconds to wait before the next start; None when there is none.

        Args:
            policy: what to go by.
            now: the time, in seconds of any clock.
            failure: how it failed; None for a normal end.
        """
        if failure is None and policy.when != "always":
            return None
        while self._at and self._at[0] + policy.within_s <= now:
            self._at.popleft()
        mended = len(self._at)
        if mended >= policy.limit:
            return None
        self._at.append(now)
        if failure is not None:
            self.failures = [*self.failures[1 - policy.limit :], failure] if policy.limit > 1 else [failure]
        from random import uniform  # a millisecond of importing that most procs never need

        first, longest = policy.backoff_s
        return min(first * 2.0**mended, longest) * uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - a pause
