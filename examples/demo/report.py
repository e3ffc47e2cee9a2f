"""What the demo tells: a progress bar, the table of incidents, and the verdict."""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from train import History, Training

    from chaos import Incident

FIRST_STEP_WANTED_MS = 300

_HEADINGS = (
    *("", "replica", "killed at", "seen", "up", "state taken", "first step"),
    *("state from", "steps lost", "heard as"),
)
_TEXTS = {"killed at", "state from", "heard as"}
"""Columns of words, to the left; the others are numbers."""

_BAR_WIDTH = 30
_REDRAW_S = 0.1
_PLAIN_LINES = 5


class Progress:
    """A bar on stderr; where that is no terminal, a line now and then.

    Args:
        label: what is going on.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._began = time.monotonic()
        self._drawn = 0.0
        self._lines = 0
        self._terminal = sys.stderr.isatty()

    def show(self, training: Training) -> None:
        """Draw, if it is time to."""
        done = training.progress / training.settings.steps
        now = time.monotonic()
        if self._terminal:
            if now - self._drawn < _REDRAW_S and done < 1:
                return
        elif done * _PLAIN_LINES < self._lines + 1:
            return
        self._drawn = now
        self._lines += 1
        filled = round(done * _BAR_WIDTH)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        line = (
            f"{self._label} [{bar}] step {training.progress:4}/{training.settings.steps}  loss {training.loss:.2f}"
            f"  {len(training.live)} live, {len(training.incidents)} killed  {now - self._began:3.0f} s"
        )
        sys.stderr.write(f"\r{line}" if self._terminal else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the bar's line."""
        if self._terminal:
            sys.stderr.write("\n")


def _ms(moment: float, incident: Incident) -> str:
    return f"{(moment - incident.killed) * 1e3:.1f}" if moment else "-"


def table(incidents: list[Incident]) -> str:
    """The incidents, a line each; times in ms after the kill."""
    rows: list[tuple[str, ...]] = [_HEADINGS]
    for number, one in enumerate(incidents, 1):
        at = f"step {one.step}, {one.moment}"
        times = (_ms(moment, one) for moment in (one.seen, one.up, one.state_taken, one.first_step))
        rows.append((str(number), str(one.rank), at, *times, f"replica {one.donor}", str(one.lost_steps), one.heard))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = zip(row, widths, _HEADINGS, strict=True)
        aligned = (cell.ljust(width) if heading in _TEXTS else cell.rjust(width) for cell, width, heading in cells)
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def summary(history: History) -> str:
    """What the kills cost."""
    settings, incidents = history.settings, history.incidents
    first_steps = sorted((one.first_step - one.killed) * 1e3 for one in incidents if one.first_step)
    seen = sorted((one.seen - one.killed) * 1e3 for one in incidents)
    lost = sum(one.lost_steps for one in incidents)
    given = settings.steps * settings.replicas
    calm = [pause * 1e3 for pause, disturbed in history.pauses_s if not disturbed]
    disturbed = [pause * 1e3 for pause, disturbed in history.pauses_s if disturbed]
    text = f"{given * settings.batch:,} windows given out, {lost * settings.batch:,} of them ({lost / given:.1%}) lost"
    pauses = f"{_median_and_longest(calm)}; in rounds with a kill {_median_and_longest(disturbed)}"
    lines = [
        f"kill to seen: {_median_and_longest(seen)}",
        f"kill to first step: {_median_and_longest(first_steps)} (wanted: at most {FIRST_STEP_WANTED_MS} ms)",
        f"text: {text} with killed replicas, none read twice",
        f"the others never restarted; from the last step of a round to the average: {pauses}",
    ]
    return "\n".join(lines)


def _median_and_longest(times_ms: list[float]) -> str:
    return f"median {statistics.median(times_ms):.0f} ms, longest {max(times_ms):.0f} ms"


def verdict(with_kills: float, without: dict[int, float], seed: int) -> tuple[str, bool]:
    """The final losses beside the spread between seeds, and whether the kills made no more difference than a seed."""
    spread = max(without.values()) - min(without.values())
    difference = with_kills - without[seed]
    passed = abs(difference) <= spread
    seeds = ", ".join(f"{loss:.4f} (seed {number})" for number, loss in without.items())
    lines = [
        f"final loss, nats a character of held-out text: with kills {with_kills:.4f} (seed {seed}); without {seeds}",
        f"the kills made a difference of {difference:+.4f} to seed {seed}",
    ]
    if len(without) > 1:
        lines[1] += f"; seeds without kills lie {spread:.4f} apart (a seed decides weights, text and what is held out)"
        lines.append(
            "passed: killing replicas made no more difference than choosing another seed"
            if passed
            else "failed: killing replicas made more difference than choosing another seed"
        )
    return "\n".join(lines), passed
