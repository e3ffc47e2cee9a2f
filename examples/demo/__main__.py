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

import torch
from chaos import Killer, plan
from model import held_out_loss
from settings import Settings
from text import Windows, write_text
from train import History, Training

import report
import roost

SEEDS = (1, 2, 3)
QUICK = Settings(rounds=12, steps_per_round=10, evaluated_rounds=2)
HELD_OUT_WINDOWS = 1024


class Demo:
    """All runs of the demo.

    Args:
        folder: where the text may be written.
    """

    def __init__(self, folder: Path) -> None:
        self.text, self.held_out = write_text(folder)

    async def run(self, label: str, settings: Settings, killer: Killer) -> History:
        """Train once, with a bar."""
        progress = report.Progress(label)
        history = await Training(settings, self.text, killer, progress.show).run()
        progress.end()
        return history

    async def final_loss(self, history: History) -> float:
        """The mean loss of the last averages on the held-out text."""
        settings = history.settings
        windows = Windows(self.held_out, settings.context)

        def evaluate() -> float:
            losses = [held_out_loss(settings, weights, windows, HELD_OUT_WINDOWS) for weights in history.averages]
            return sum(losses) / len(losses)

        return await asyncio.to_thread(evaluate)


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
        with_kills = await demo.run(f"seed {first}, with kills   ", settings, Killer(kills))
        killed_loss = await demo.final_loss(with_kills)
        without: dict[int, History] = {}
        losses: dict[int, float] = {}
        for seed in (first, *more):
            without[seed] = await demo.run(f"seed {seed}, without kills", replace(settings, seed=seed), Killer([]))
            losses[seed] = await demo.final_loss(without[seed])
    print("\nincidents; times in ms after the kill:", report.table(with_kills.incidents), sep="\n")
    print("\n" + report.summary(with_kills))
    print(f"training took {with_kills.seconds:.1f} s with kills, {without[first].seconds:.1f} s without\n")
    text, passed = report.verdict(killed_loss, losses, first)
    print(text)
    draw(with_kills, without[first], options.out)
    print(f"{options.out} shows both runs; all of this took {time.monotonic() - began:.0f} s")
    return 0 if passed or options.quick else 1


def draw(with_kills: History, without: History, path: Path) -> None:
    """Draw the picture, if matplotlib is there."""
    import picture

    picture.draw(with_kills, without, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python examples/demo", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a small form: fewer steps and kills, one seed, no verdict"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo.png"), help="where the picture goes (default: %(default)s)"
    )
    sys.exit(roost.run(main(parser.parse_args())))
