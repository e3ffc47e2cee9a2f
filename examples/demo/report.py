"""What the demo tells: a progress bar, the table of incidents, and the verdict."""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from roost.ft.incidents import PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runs import Run

_BAR_WIDTH = 30
_REDRAW_S = 0.1
_PLAIN_LINES = 5


class Progress:
    """A bar on stderr; where that is no terminal, a line now and then.

    Args:
        label: what is going on.
        steps: how many there will be.
    """

    def __init__(self, label: str, steps: int) -> None:
        self._label = label
        self._steps = steps
        self._began = time.monotonic()
        self._drawn = 0.0
        self._lines = 0
        self._terminal = sys.stderr.isatty()

    def show(self, step: int, live: int, failures: int) -> None:
        """Draw, if it is time to."""
        done = step / self._steps
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
            f"{self._label} [{bar}] step {step:4}/{self._steps}"
            f"  {live} in training, {failures} failures  {now - self._began:3.0f} s"
        )
        sys.stderr.write(f"\r{line}" if self._terminal else f"{line}\n")
        sys.stderr.flush()

    def tell(self, text: str) -> None:
        """A line of its own, above the bar."""
        sys.stderr.write(f"\r\033[K{text}\n" if self._terminal else f"{text}\n")
        sys.stderr.flush()
        # The bar comes again at the next look.
        self._drawn = 0.0

    def end(self) -> None:
        """Leave the bar's line."""
        if self._terminal:
            sys.stderr.write("\n")


def summary(runs: Sequence[Run]) -> str:
    """What the failures of all runs cost."""
    kinds = Counter(kind for run in runs for _, kind in run.failures)
    incidents = [one for run in runs for one in run.report.incidents]
    whole = [one for one in incidents if "first_step" in one.phases]
    lines = [
        f"{sum(kinds.values())} failures: " + ", ".join(f"{count} × {kind}" for kind, count in sorted(kinds.items())),
        f"{len(incidents)} replicas restarted, {len(whole)} of them took part again before the end or the next failure",
    ]
    for name in PHASES:
        times = [1000 * one.phases[name] for one in whole if name in one.phases]
        if times:
            lines.append(
                f"  {name.replace('_', ' '):20} median {statistics.median(times):6.0f} ms, longest {max(times):6.0f} ms"
            )
    steps = sum(run.settings.replicas * run.settings.steps for run in runs)
    lost = sum(run.report.lost_steps for run in runs)
    lines.append(f"  steps in syncs that did not count: {lost} of {steps}")
    return "\n".join(lines)


def verdict(failing: Sequence[Run], undisturbed: Sequence[Run]) -> tuple[str, bool]:
    """The final losses beside the spread between seeds, and whether failures made no more difference than a seed."""
    lines: list[str] = []
    passed = True
    losses: dict[str, tuple[list[float], list[float]]] = {
        "held-out": ([one.held_out for one in failing], [one.held_out for one in undisturbed]),
        "training": ([one.final_loss for one in failing], [one.final_loss for one in undisturbed]),
    }
    for what, (with_failures, without) in losses.items():
        spread = max(without) - min(without)
        difference = statistics.mean(with_failures) - statistics.mean(without)
        lines.append(
            f"final {what} loss: with failures {_listed(with_failures)}, without {_listed(without)}; "
            f"the failures made {difference:+.4f}" + (f", seeds lie {spread:.4f} apart" if len(without) > 1 else "")
        )
        passed = passed and abs(difference) <= spread
    if len(failing) > 1:
        lines.append("passed: no more than another seed makes" if passed else "failed: more than another seed makes")
    return "\n".join(lines), passed


def _listed(losses: list[float]) -> str:
    return " ".join(f"{loss:.4f}" for loss in losses)
