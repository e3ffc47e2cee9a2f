"""Replicas of a small language model train while they are killed over and over; the loss ends where it would without.

Four actors, each in a process of its own, train a character-level transformer on the source of Python's standard
library, and average their weights every few steps. Meanwhile processes are killed with SIGKILL. Each is restarted in
place, takes model, optimizer and data position from a healthy replica, and goes on; the others never wait for it.

Run it with `make demo`, or `python examples/demo`. It ends with a table of the incidents and a picture, and with exit
status 1 when the kills made more difference to the final loss than the choice of the seed does.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import picture
import torch
from model import held_out_loss
from settings import Settings
from text import Windows, library_sources, write_text
from train import History, Training

import report
import roost
from chaos import Kill, Killer, plan

SEEDS = (1, 2, 3)
QUICK = Settings(rounds=12, steps_per_round=10, evaluated_rounds=2)
HELD_OUT_WINDOWS = 1024


class Demo:
    """All runs of the demo.

    Args:
        folder: where the text may be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = library_sources()

    async def run(self, label: str, settings: Settings, kills: list[Kill]) -> tuple[History, float]:
        """Train once, with a bar: what happened, and the mean loss of the last averages on the held-out text."""
        text, held_out = write_text(self.sources, self.folder, settings.seed)
        progress = report.Progress(label)
        history = await Training(settings, text, Killer(kills), progress.show).run()
        progress.end()
        windows = Windows(held_out, settings.context, settings.seed)

        def evaluate() -> float:
            losses = [held_out_loss(settings, weights, windows, HELD_OUT_WINDOWS) for weights in history.averages]
            return sum(losses) / len(losses)

        return history, await asyncio.to_thread(evaluate)


async def main(options: argparse.Namespace) -> int:
    """Run everything; the exit status."""
    began = time.monotonic()
    torch.set_num_threads(1)
    settings = QUICK if options.quick else Settings()
    first, *more = (SEEDS[0],) if options.quick else SEEDS
    settings = replace(settings, seed=first)
    kills = plan(settings, singles=0, pairs=1, handing_in=1, taking=0) if options.quick else plan(settings, 6, 1, 1, 1)
    print(f"the plan of seed {first}, to be carried out with SIGKILL:", *kills, sep="\n  ", flush=True)
    with tempfile.TemporaryDirectory(prefix="roost-demo-") as folder:
        demo = Demo(Path(folder))
        with_kills, killed_loss = await demo.run(f"seed {first}, with kills   ", settings, kills)
        without: dict[int, History] = {}
        losses: dict[int, float] = {}
        for seed in (first, *more):
            label = f"seed {seed}, without kills"
            without[seed], losses[seed] = await demo.run(label, replace(settings, seed=seed), [])
    print("\nincidents; times in ms after the kill:", report.table(with_kills.incidents), sep="\n")
    print("\n" + report.summary(with_kills))
    print(f"training took {with_kills.seconds:.1f} s with kills, {without[first].seconds:.1f} s without\n")
    text, passed = report.verdict(killed_loss, losses, first)
    print(text)
    picture.draw(with_kills, without[first], options.out)
    print(f"{options.out} shows both runs; all of this took {time.monotonic() - began:.0f} s")
    return 0 if passed or options.quick else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python examples/demo", description="Training that outlives kills.")
    parser.add_argument(
        "--quick", action="store_true", help="a small form: fewer steps and kills, one seed, no verdict"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo.png"), help="where the picture goes (default: %(default)s)"
    )
    sys.exit(roost.run(main(parser.parse_args())))
