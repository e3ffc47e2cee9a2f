"""`Incident`: one failure of one replica, and how training got over it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roost.failure import Failure

__all__ = ["PHASES", "Incident", "table"]

PHASES = (
    "detected", "survivors_released", "process_up", "libraries_imported", "quorum_joined", "group_formed", "state_pulled", "first_step",
)  # fmt: skip
"""In the order in which they happen."""


@dataclass(slots=True)
class Incident:
    """A failure of a replica. All its procs were restarted together."""

    replica: int
    procs: tuple[int, ...]
    """Those that failed by themselves."""
    failure: Failure
    phases: dict[str, float] = field(default_factory=dict[str, float])
    """What was done when, in seconds since the failure; `PHASES` has the names. What never came is not there."""
    survivors_committed: float | None = None
    """When the next sync of the others counted, in seconds since the failure; None where there was none without it."""
    source: int | None = None
    """The replica whose state it has taken."""
    donors: tuple[int, ...] = ()
    """Those that gave parts of it: that one, and others which have the same."""
    bytes: int = 0
    """How much state was taken."""
    checksum: str = ""
    lost_steps: int = 0
    """Inner steps of this replica that are in no committed sync."""
    life: int = 0
    """The life of the replica that began with it."""

    @property
    def failed_at(self) -> float:
        """When, in seconds since the epoch."""
        times = self.failure.times
        return times.get("died_at") or times.get("detected_at") or 0.0

    def note(self, phase: str, at: float) -> None:
        """A phase is done; the first time counts."""
        self.phases.setdefault(phase, max(0.0, at - self.failed_at))

    def to_json(self) -> str:
        """One line for a log."""
        failure = self.failure
        return json.dumps(
            {
                "replica": self.replica,
                "procs": self.procs,
                "life": self.life,
                "kind": failure.kind,
                "signal": failure.signal,
                "exit_code": failure.exit_code,
                "reason": failure.reason,
                "phases": self.phases,
                "survivors_committed": self.survivors_committed,
                "source": self.source,
                "donors": self.donors,
                "bytes": self.bytes,
                "checksum": self.checksum,
                "lost_steps": self.lost_steps,
            }
        )


def table(incidents: Sequence[Incident]) -> str:
    """A line for each incident: times in ms after the failure."""
    head = ("replica", "what", *PHASES)
    rows = [head, *(_row(one.replica, _what(one.failure), one.phases) for one in incidents)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(replica: int, what: str, phases: Mapping[str, float]) -> tuple[str, ...]:
    times = (f"{1000 * phases[name]:.0f}" if name in phases else "-" for name in PHASES)
    return (str(replica), what, *times)


def _what(failure: Failure) -> str:
    if failure.signal is not None:
        return f"signal {failure.signal}"
    return failure.kind if failure.exit_code is None else f"exit {failure.exit_code}"
