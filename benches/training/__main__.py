"""Prints, side by side: steps a second without failures; after a kill, when the survivor goes on and the dead one is back."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RUST_LOG", "warn")

from benches.training.peers import Plain, Torchft
from benches.training.work import Work

import roost
from roost import Restart, this_host
from roost.ft import DiLoCo, EveryStep, FaultTolerantJob, LocalSGD
from roost.ft.incidents import PHASES
from roost.testing import Failures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost.ft.incidents import Incident
    from roost.ft.sync import Sync

REPLICAS = 2
EVERY = 10
INNER = 20
_LIMIT_S = 300
PRELOAD = ("torch", "torch.distributed", "torchft")
_ALWAYS = Restart(limit=1_000_000, within_s=60, backoff_s=(0.0, 0.0), while_down="wait")


async def handled(_: object) -> bool:
    """Who dies is meant to."""
    return True


def lighthouse() -> Any:
    """torchft's, as it comes."""
    from torchft.coordination import LighthouseServer

    return LighthouseServer(bind="127.0.0.1:0", min_replicas=1)


async def steps_ours(steps: int, pace_s: float, sync: Sync | None = None) -> float:
    """Steps a second with roost.ft, as its replicas see it."""
    async with FaultTolerantJob(
        partial(Work, pace_s), replicas=REPLICAS, steps=steps + INNER, sync=sync or EveryStep()
    ) as job:
        await job.run()
        return min((await job.trainers.rate.call(INNER)).values())


async def steps_plain(steps: int, pace_s: float, every: int = 1) -> float:
    """Steps a second with torch's data-parallel class; or with parameters that are averaged every so many steps."""
    async with this_host().spawn_procs({"replicas": REPLICAS}, preload=PRELOAD) as procs:
        actors = await procs.spawn("plain", Plain)
        port = await actors.slice(replicas=0).store.call_one()
        if every == 1:
            rates = await actors.train.call(port, REPLICAS, steps, pace_s)
        else:
            rates = await actors.train_averaging.call(port, REPLICAS, steps, pace_s, every)
        return min(rates.values())


async def steps_alone(steps: int, pace_s: float) -> float:
    """Steps a second of replicas that keep together in no way: the floor of those that do now and then."""
    async with this_host().spawn_procs({"replicas": REPLICAS}, preload=PRELOAD) as procs:
        actors = await procs.spawn("plain", Plain)
        return min((await actors.train_alone.call(steps, pace_s)).values())


async def steps_torchft(steps: int, pace_s: float, every: int = 1) -> float:
    """Steps a second with torchft: averaging gradients, or by its DiLoCo every so many steps."""
    server = lighthouse()
    try:
        async with this_host().spawn_procs({"replicas": REPLICAS}, preload=PRELOAD) as procs:
            actors = await procs.spawn("torchft", Torchft)
            return min((await actors.train.call(server.address(), steps, pace_s, every, "")).values())
    finally:
        server.shutdown()


async def kills_ours(kills: int, pace_s: float, replicas: int) -> tuple[Incident, ...]:
    """What each of some kills came to: one replica at a time, when all are well."""
    job = FaultTolerantJob(
        partial(Work, pace_s), replicas=replicas, data=iter(int, 1), sync=DiLoCo(EVERY), restart=_ALWAYS, detect_within_s=5
    )  # fmt: skip
    async with job:
        running = asyncio.create_task(job.run())
        async with Failures(job) as failures:
            for number in range(kills):
                while len(job.trained) < replicas:
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.1)
                failures.inject("kill", replica=number % replicas)
            while len(job.trained) < replicas:
                await asyncio.sleep(0.005)
            found = job.incidents
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return found


async def kills_torchft(kills: int, pace_s: float) -> list[tuple[float, float]]:
    """The same with torchft, whose processes are started by exec, as a launcher does.

    Returns:
        For each kill, seconds to the survivor's next commit, and to the first of the one that was killed.
    """
    server, found = lighthouse(), list[tuple[float, float]]()
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        log = Path(folder) / "commits"
        log.touch()
        procs = this_host().spawn_procs(
            {"replicas": REPLICAS}, start="exec", restart=_ALWAYS, supervise=handled, logs=False
        )
        async with procs:
            actors = await procs.spawn("torchft", Torchft)
            lives = [
                asyncio.create_task(_live(actors.slice(replicas=one), server.address(), pace_s, log))
                for one in range(REPLICAS)
            ]
            for number in range(kills):
                victim, survivor = number % REPLICAS, 1 - number % REPLICAS
                await _commit(log, victim, time.time(), REPLICAS)
                killed_at = time.time()
                roost.testing.kill(procs.slice(replicas=victim))
                goes_on = await _commit(log, survivor, killed_at, 1)
                found.append((goes_on - killed_at, await _commit(log, victim, killed_at, 1) - killed_at))
            for one in lives:
                one.cancel()
            await procs.stop()
        server.shutdown()
    return found


async def _live(actor: Any, address: str, pace_s: float, log: Path) -> None:
    while True:
        try:
            await actor.train.call_one(address, 0, pace_s, EVERY, str(log))
        except roost.ActorDied:
            await asyncio.sleep(0.01)


async def _commit(log: Path, replica: int, after: float, least: int) -> float:
    """When a replica first commits after a time, with at least so many."""
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        for line in log.read_text().splitlines():
            at, who, _, count = line.split()
            if int(who) == replica and float(at) > after and int(count) >= least:
                return float(at)
        await asyncio.sleep(0.01)
    raise TimeoutError(f"replica {replica} does not commit within {_LIMIT_S} s")


def shown(seconds: list[float]) -> str:
    """Median and 95th percentile."""
    p95 = sorted(seconds)[int(0.95 * (len(seconds) - 1))]
    return f"median {statistics.median(seconds):.3f} s, p95 {p95:.3f} s"


async def overhead(floor: str, ways: dict[str, Any], rounds: int, steps: int, pace_s: float) -> None:
    """Measure several ways by turns, and print each beside the floor of the same round."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            rates[name].append(await way(steps, pace_s))
    for name, found in rates.items():
        of_floor = [one / other for one, other in zip(found, rates[floor], strict=True)]
        best = max(found) / max(rates[floor])
        print(
            f"{name}: {1000 / max(found):.2f} ms a step at best of {rounds}; of the rate of {floor} {best:.3f} by their best, "
            f"{statistics.median(of_floor):.3f} ({min(of_floor):.3f} to {max(of_floor):.3f}) round by round",
            flush=True,
        )


async def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, {REPLICAS} replicas")
    print(f"kills come between syncs by DiLoCo every {EVERY} steps", flush=True)
    if options.only != "kills":
        await overheads(options)
    if options.only != "overhead":
        await kills(options)


async def overheads(options: argparse.Namespace) -> None:
    """Measure what there is to pay without failures, and print."""
    for pace_s in options.pace:
        steps = min(options.steps, int(options.seconds / pace_s))
        each = {"plain": steps_plain, "torchft": steps_torchft, "roost.ft": steps_ours}
        await overhead("plain", each, options.rounds, steps, pace_s)
        averaging = f"averaging every {INNER}"
        now_and_then = {
            averaging: partial(steps_plain, every=INNER),
            "alone": steps_alone,
            "torchft, DiLoCo": partial(steps_torchft, every=INNER),
            "roost.ft, DiLoCo": partial(steps_ours, sync=DiLoCo(INNER)),
            "roost.ft, LocalSGD": partial(steps_ours, sync=LocalSGD(INNER)),
        }
        await overhead(averaging, now_and_then, options.rounds, steps // INNER * INNER, pace_s)


async def kills(options: argparse.Namespace) -> None:
    """Measure what kills come to, and print: with some numbers of replicas, and with torchft beside two."""
    pace_s = options.pace[0]
    for replicas in options.replicas:
        found = await kills_ours(options.kills, pace_s, replicas)
        survivors = [one.survivors_committed for one in found if one.survivors_committed is not None]
        # On a machine that is too busy one may fail on its way back, too.
        back = [one.phases["first_step"] for one in found if "first_step" in one.phases]
        print(
            f"roost.ft, {replicas} replicas, {len(found)} incidents, of which {len(found) - len(back)} on the way back: "
            f"survivors commit after {shown(survivors)};", end=" "
        )  # fmt: skip
        print(f"the killed one after {shown(back)}")
        print("  " + ", ".join(f"{name} {_median(found, name):.3f}" for name in PHASES), flush=True)
    if not options.kills_torchft:
        return
    times = await kills_torchft(options.kills_torchft, pace_s)
    print(
        f"torchft, HTTP, exec, {len(times)} kills: survivor commits after {shown([one for one, _ in times])};", end=" "
    )
    print(f"the killed one after {shown([one for _, one in times])}", flush=True)


def _median(incidents: Sequence[Incident], phase: str) -> float:
    return statistics.median(one.phases[phase] for one in incidents if phase in one.phases)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benches.training", description=__doc__)
    parser.add_argument("--only", choices=["overhead", "kills"], help="one half of it")
    parser.add_argument("--rounds", type=int, default=3, help="how often steps are counted; the best counts")
    parser.add_argument("--steps", type=int, default=300, help="at most so many each time")
    parser.add_argument("--seconds", type=float, default=10, help="at most so long each time, about")
    parser.add_argument(
        "--pace", type=float, nargs="+", default=[0.01, 0.2], help="seconds of a step in which the processor is free"
    )
    parser.add_argument("--kills", type=int, default=100, help="with roost.ft, for each number of replicas")
    parser.add_argument("--kills-torchft", type=int, default=6, help="with torchft, of 2 replicas")
    parser.add_argument(
        "--replicas", type=int, nargs="+", default=[2, 5, 8], help="how many replicas there are when one is killed"
    )
    roost.run(main(parser.parse_args()))
