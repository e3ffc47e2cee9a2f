"""The picture: both loss curves with the failures marked, how many replicas trained, and the phases of each incident."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from roost.ft.incidents import PHASES

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from runs import Run

_FAILING, _UNDISTURBED, _MARK = "#1f6feb", "#d0d7de", "#cf222e"


def draw(failing: Run, undisturbed: Run, path: Path) -> None:
    """Draw two runs of the same seed into a file; its ending says which kind."""
    mpl.use("agg")
    figure, (upper, middle, lower) = plt.subplots(
        3, 1, figsize=(9, 8), height_ratios=(4, 1.2, 2.5), layout="constrained"
    )
    _draw_losses(upper, failing, undisturbed)
    _draw_live(middle, failing)
    _draw_phases(lower, failing)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def smoothed(run: Run) -> list[float]:
    """By step, the mean loss over the last sync's worth of steps."""
    span, losses = max(20, run.settings.every), run.report.losses
    return [sum(losses[max(0, end - span) : end]) / min(span, end) for end in range(1, len(losses) + 1)]


def _draw_losses(axes: Axes, failing: Run, undisturbed: Run) -> None:
    # The one below is broad: the curves lie on each other.
    for run, color, width, label in (
        (undisturbed, _UNDISTURBED, 5, "without failures"),
        (failing, _FAILING, 1.2, "with failures"),
    ):
        curve = smoothed(run)
        axes.plot(range(1, len(curve) + 1), curve, color=color, linewidth=width, label=label)
    curve = smoothed(failing)
    steps = [
        min(len(curve), max(1, round(len(curve) * (at - failing.began_at) / failing.seconds)))
        for at, _ in failing.failures
    ]
    heights = [curve[step - 1] for step in steps]
    axes.plot(steps, heights, "x", color=_MARK, markersize=7, label=f"{len(steps)} failures")
    axes.set(
        xlabel="steps",
        ylabel="training loss, nats a character",
        title=f"{failing.settings.replicas} replicas on Python's standard library, a failure every few seconds",
        ylim=(min(curve) - 0.1, min(curve[0], 3.6)),
    )
    axes.legend(frameon=False)


def _draw_live(axes: Axes, failing: Run) -> None:
    times, counts = zip(*failing.live, strict=True)
    axes.fill_between(times, counts, step="post", color=_FAILING, alpha=0.25, linewidth=0)
    axes.step(times, counts, where="post", color=_FAILING, linewidth=1)
    axes.set(
        xlabel="seconds", ylabel="in training", xlim=(0, failing.seconds), ylim=(0, failing.settings.replicas + 0.4)
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_phases(axes: Axes, failing: Run) -> None:
    incidents = [one for one in failing.report.incidents if "first_step" in one.phases]
    names = [name for name in PHASES if name != "survivors_released"]
    colors = plt.colormaps["viridis"]
    for number, name in enumerate(names):
        before = names[number - 1] if number else None
        begins = [one.phases.get(before, 0.0) if before else 0.0 for one in incidents]
        widths = [max(0.0, one.phases.get(name, begin) - begin) for one, begin in zip(incidents, begins, strict=True)]
        color = colors(number / len(names))
        axes.bar(range(1, len(incidents) + 1), widths, bottom=begins, color=color, label=name.replace("_", " "))
    released = [one.phases.get("survivors_released") for one in incidents]
    axes.plot(range(1, len(incidents) + 1), released, "_", color=_MARK, markersize=9, label="survivors released")
    axes.set(xlabel="incident", ylabel="seconds after the failure")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0.4, len(incidents) + 0.6)
    axes.legend(frameon=False, fontsize="small", ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))
