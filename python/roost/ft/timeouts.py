"""Every time-out of a job, derived from the one that users set."""

from __future__ import annotations

from dataclasses import dataclass

from roost.failure import Probe
from roost.values import check_finite

__all__ = ["Timeouts"]

DETECT_LEAST_S = 0.5
_PROBES = 0.35
_GRACE = 0.2
_FIRST_STEP = 10.0
_FIRST_STEP_LEAST_S = 60.0
_FIRST_STEP_AGAIN = 3.0
_LOOKS = 20
_HEARTBEAT = 0.1
_HEARTBEAT_LEAST_S = 0.5


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The ladder. Each rung is longer than what it waits for, so that a cause is found before its consequences are.

    Args:
        detect_within_s: how long a replica that stands still may go unnoticed.
        heal_within_s: how long taking a state from a peer may take; others wait for it in the collective.

    Raises:
        ValueError: it is too short to tell a busy replica from one that hangs.
    """

    detect_within_s: float
    heal_within_s: float = 60.0

    def __post_init__(self) -> None:
        check_finite("FaultTolerantJob", "detect_within_s", self.detect_within_s)
        check_finite("FaultTolerantJob", "heal_within_s", self.heal_within_s)
        if not self.detect_within_s >= DETECT_LEAST_S:
            raise ValueError(
                f"detect_within_s={self.detect_within_s!r}: at least {DETECT_LEAST_S} s, or a busy replica looks like one that hangs"
            )
        if not self.heal_within_s > 0:
            raise ValueError(f"heal_within_s={self.heal_within_s!r}: more than 0 s")

    @property
    def probe(self) -> Probe:
        """How a proc whose loop stands still, with the GIL held say, is found: two unanswered questions and the grace."""
        return Probe(period_s=_PROBES * self.detect_within_s, failures_max=0, grace_s=_GRACE * self.detect_within_s)

    @property
    def look_s(self) -> float:
        """How often a proc looks whether its training thread gets on."""
        return self.detect_within_s / _LOOKS

    @property
    def step_s(self) -> float:
        """How long one step of the user's may take."""
        return self.detect_within_s

    @property
    def first_step_s(self) -> float:
        """The same for the build and the first step of a life, which compile and allocate."""
        return max(_FIRST_STEP * self.detect_within_s, _FIRST_STEP_LEAST_S)

    def first_step_after(self, longest_s: float | None) -> float:
        """The same once some lives have done theirs.

        Args:
            longest_s: how long the longest of them took; None while there is none.
        """
        if longest_s is None:
            return self.first_step_s
        return min(self.first_step_s, self.detect_within_s + _FIRST_STEP_AGAIN * longest_s)

    @property
    def group_s(self) -> float:
        """How long making a group may take: no more than a step, or who waits for it would be taken for the cause."""
        return 0.8 * self.detect_within_s

    def collective_s(self, *, is_healing: bool) -> float:
        """How long a collective may take; all its members are in it, or take their state first."""
        return 0.8 * self.detect_within_s + (self.heal_within_s if is_healing else 0.0)

    @property
    def heartbeat_s(self) -> float:
        """With torchft's quorum: how long a replica is silent before its lighthouse counts it as dead, and forms quorums without it."""
        return max(_HEARTBEAT * self.detect_within_s, _HEARTBEAT_LEAST_S)

    def __str__(self) -> str:
        probe = self.probe
        return (
            f"detect within {self.detect_within_s:g} s: probes every {probe.period_s:g} s with {probe.grace_s:g} s of grace, "
            f"a step {self.step_s:g} s, the first {self.first_step_s:g} s, making a group {self.group_s:g} s, a collective "
            f"{self.collective_s(is_healing=False):g} s, with a newcomer {self.collective_s(is_healing=True):g} s"
        )
