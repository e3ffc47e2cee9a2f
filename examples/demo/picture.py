"""The picture: both loss curves with the kills marked, and how many replicas were alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from train import History

_KILLED, _UNDISTURBED, _MARK = "#1f6feb", "#d0d7de", "#cf222e"


def draw(with_kills: History, without: History, path: Path) -> None:
    """Draw two runs of the same seed into a file; its ending says which kind."""
    mpl.use("agg")
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(9, 5), height_ratios=(4, 1), layout="constrained")
    _draw_losses(upper, with_kills, without)
    settings = with_kills.settings
    steps, counts = zip(*with_kills.alive, (settings.steps, with_kills.alive[-1][1]), strict=True)
    lower.fill_between(steps, counts, step="post", color=_KILLED, alpha=0.25, linewidth=0)
    lower.step(steps, counts, where="post", color=_KILLED, linewidth=1)
    lower.set(
        xlabel="steps of each replica",
        ylabel="live replicas",
        xlim=(0, settings.steps),
        ylim=(0, settings.replicas + 0.4),
    )
    lower.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_losses(axes: Axes, with_kills: History, without: History) -> None:
    # The one below is broad: the curves lie on each other.
    for history, color, width, label in (
        (without, _UNDISTURBED, 5, "without kills"),
        (with_kills, _KILLED, 1.2, "with kills"),
    ):
        curve = smoothed(history)
        axes.plot(range(1, len(curve) + 1), curve, color=color, linewidth=width, label=label)
    curve = smoothed(with_kills)
    steps = [max(1, incident.step) for incident in with_kills.incidents]
    for step in steps:
        axes.axvline(step, color=_MARK, linewidth=0.6, alpha=0.4, zorder=0)
    heights = [curve[step - 1] for step in steps]
    axes.plot(steps, heights, "x", color=_MARK, markersize=7, label=f"{len(steps)} SIGKILLs")
    settings = with_kills.settings
    axes.set(
        ylabel="training loss, nats a character",
        title=f"{settings.replicas} replicas on Python's standard library, killed and restarted in place",
        ylim=(min(curve) - 0.1, min(curve[0], 3.6)),
    )
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def smoothed(history: History) -> list[float]:
    """By step, the mean loss of all replicas over the last round's worth of steps."""
    span = history.settings.steps_per_round
    means: list[float] = []
    for step in range(len(history.losses)):
        window = [loss for losses in history.losses[max(0, step - span + 1) : step + 1] for loss in losses]
        means.append(sum(window) / len(window))
    return means
