"""Replicas of a small language model train while something fails every few seconds; the loss ends where it would without.

Each replica is a process of its own. They train a character-level transformer on the source of Python's standard library, and
sync by DiLoCo every 20 steps. Meanwhile processes are killed, crash, raise and hang, collectives fail, and so do the services
that hold the replicas together; a line that begins with "on purpose" says which, and what Roost makes of it comes below. Whatever dies is
restarted in place and takes its state from a healthy peer by one-sided reads; the others go on.

Run it with `make demo`, or `python examples/demo`. It ends with a table of the incidents and a picture, and with exit status 1
when the failures made more difference to the final loss than the choice of the seed does.

With `--slurm` the replicas have a node each of a Slurm cluster; those of the small one of `make demo-slurm` lose their power, too. What
was there moves to a node that stands by, and a node that is back is taken in. With `--kubernetes` they have a pod each of the small cluster
of `make demo-kubernetes`; pods are deleted, and Kubernetes makes them anew.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

# Of all processes, before torch is loaded in any: replicas share the processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import picture
import runs
from nodes import Pods, SlurmNodes
from settings import NODES_WANTED, REPLICAS_WANTED, Settings, nodes_here, replicas_here
from text import library_sources, write_text

import report
import roost
from roost.ft.incidents import table

SEEDS = (1, 2, 3)
QUICK_STEPS = 120


def chosen(options: argparse.Namespace) -> tuple[Settings, tuple[int, ...]]:
    """The settings of the first run, and the seeds of all."""
    count, wanted = (nodes_here(), NODES_WANTED) if options.cluster else (replicas_here(), REPLICAS_WANTED)
    settings = Settings(replicas=options.replicas or count, every=1 if options.every_step else Settings.every)
    if options.cluster:
        # Many replicas share these processors: each step of one takes its time, and so does its next life.
        settings = replace(settings, failure_every_s=12.0, detect_within_s=15.0)
    seeds = SEEDS
    if options.quick:
        few_replicas = options.replicas or min(3, count)
        settings = replace(
            settings, steps=QUICK_STEPS, last_steps=QUICK_STEPS // 4, replicas=few_replicas, host_loss_every_s=4.0
        )
        seeds = SEEDS[:1]
    how = "averaging gradients at every step" if options.every_step else f"a DiLoCo sync every {settings.every} steps"
    few = (
        ""
        if options.quick or options.replicas or count == wanted
        else f" ({os.cpu_count()} processors and their memory take no more)"
    )
    print(
        f"{settings.replicas} replicas{few}, {how}, a failure every {settings.failure_every_s:g} s on average",
        flush=True,
    )
    return settings, seeds


async def train(settings: Settings, seeds: tuple[int, ...], options: argparse.Namespace) -> bool:
    """Run everything, and tell of it; whether the failures made no more difference than a seed."""
    failing: list[runs.Run] = []
    undisturbed: list[runs.Run] = []
    sources = library_sources()
    async with AsyncExitStack() as stack:
        nodes = None
        if options.cluster is not None:
            nodes = await stack.enter_async_context(options.cluster(settings.replicas))
        shared = None if nodes is None else nodes.folder
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roost-demo-", dir=shared)))
        for seed in seeds:
            own = replace(settings, seed=seed)
            files = await asyncio.to_thread(write_text, sources, folder, seed)
            for fails, into in ((True, failing), (False, undisturbed)):
                bar = report.Progress(f"seed {seed}, {'with' if fails else 'without'} failures".ljust(24), own.steps)
                into.append(await runs.train(own, files, fails, bar, nodes))
                bar.end()
        print(
            "\nincidents of the first run; times in ms after the failure:", table(failing[0].report.incidents), sep="\n"
        )
        print("\n" + report.summary(failing))
        seconds = [sum(run.seconds for run in kind) for kind in (failing, undisturbed)]
        print(f"training took {seconds[0]:.1f} s with failures, {seconds[1]:.1f} s without\n")
        text, passed = report.verdict(failing, undisturbed)
        print(text)
        picture.draw(failing[0], undisturbed[0], options.out)
        print(f"{options.out} shows both runs of seed {seeds[0]}", flush=True)
    return passed


async def main(options: argparse.Namespace) -> int:
    """Run everything; the exit status."""
    began = time.monotonic()
    passed = await train(*chosen(options), options)
    print(f"all of this took {time.monotonic() - began:.0f} s")
    return 0 if passed or options.quick else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python examples/demo", description="Training that outlives failures.")
    parser.add_argument("--quick", action="store_true", help="a small form: fewer steps, one seed, no verdict")
    parser.add_argument("--every-step", action="store_true", help="average gradients at every step instead of DiLoCo")
    parser.add_argument(
        "--replicas", type=int, help="how many (default: as many as this machine takes, 8 at most; 16 on a cluster)"
    )
    parser.set_defaults(cluster=None)
    for option, kind, helps in (
        ("--slurm", SlurmNodes, "a node of the Slurm cluster here for each replica"),
        ("--kubernetes", Pods, "a pod of the small Kubernetes cluster here for each replica"),
    ):
        parser.add_argument(option, dest="cluster", action="store_const", const=kind, help=helps)
    parser.add_argument(
        "--out", type=Path, default=Path("demo.png"), help="where the picture goes (default: %(default)s)"
    )
    sys.exit(roost.run(main(parser.parse_args())))
