"""`python -m benches.python.collectives [RANKS]`: small and large all-reduces on the CPU, beside plain torch.distributed.

`plain` is torch's own blocking call over gloo, in processes that know nothing of Roost; `awaited` the same with `async_op=True` in
procs of Roost's, awaited in asyncio by its future, as a user could at best; `roost` is `await comm.all_reduce(t)` in the same procs. The
ways take turns, round by round, and a rank has the same CPU in each. Times are rank 0's, in microseconds: the median of all rounds, and
what one in ten is below.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import roost
from roost import Actor, context, endpoint, this_host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

torch.set_num_threads(1)

# Numbers of four bytes each, and how often in a round.
CASES = [(1, 300), (1024, 300), (100_000, 100), (4_000_000, 10)]
ROUNDS = 10
WARM_UP = 5


def pin(rank: int) -> None:
    """Ranks share the CPUs evenly."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})


def join(path: str, rank: int, ranks: int) -> None:
    """Torch's group, which meets in a file."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)


def timed(numbers: int, repeats: int) -> Iterator[tuple[Any, Callable[[], None]]]:
    """A tensor for each time, and what is called when it is reduced."""
    tensor = torch.ones(numbers)
    for number in range(WARM_UP + repeats):
        began = time.perf_counter()

        def done(number: int = number, began: float = began) -> None:
            if number >= WARM_UP:
                taken.append(1e6 * (time.perf_counter() - began))

        yield tensor, done
        tensor.fill_(1)


taken: list[float] = []


class Member(Actor):
    """One rank, with a group of torch's and one of Roost's."""

    comm: roost.collectives.Communicator

    @endpoint
    async def join(self, path: str) -> None:
        """Make both groups."""
        self.comm = await context().mesh.communicator()
        await asyncio.to_thread(join, path, self.comm.rank, self.comm.size)
        pin(self.comm.rank)

    @endpoint
    async def times(self, way: str, case: tuple[int, int]) -> list[float]:
        """One round, in microseconds."""
        all_reduce: Callable[[Any], Awaitable[None]] = getattr(self, f"_{way}")
        taken.clear()
        for tensor, done in timed(*case):
            await all_reduce(tensor)
            done()
        return taken[:]

    async def _awaited(self, tensor: Any) -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        future = dist.all_reduce(tensor, async_op=True).get_future()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set_result, None))
        await done

    async def _roost(self, tensor: Any) -> None:
        await self.comm.all_reduce(tensor)


class Plain:
    """Processes with torch alone, which do a round when they are told to."""

    def __init__(self, path: str, ranks: int) -> None:
        self._stack = ExitStack()
        commands = [
            [sys.executable, "-m", __spec__.name, "plain", path, str(rank), str(ranks)] for rank in range(ranks)
        ]
        pipe = subprocess.PIPE
        self._all = [
            self._stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            for command in commands
        ]

    def times(self, case: tuple[int, int]) -> list[float]:
        """One round, of rank 0."""
        for process in self._all:
            print(json.dumps(case), file=process.stdin, flush=True)
        answers = [json.loads(process.stdout.readline()) for process in self._all if process.stdout]
        return list(answers[0])

    def close(self) -> None:
        """They end with what tells them."""
        self._stack.close()


def plain(path: str, rank: int, ranks: int) -> None:
    """Such a process."""
    join(path, rank, ranks)
    pin(rank)
    for line in sys.stdin:
        taken.clear()
        for tensor, done in timed(*json.loads(line)):
            dist.all_reduce(tensor)
            done()
        print(json.dumps(taken), flush=True)


async def main(ranks: int) -> None:
    """Take the times and show them."""
    found: dict[tuple[str, tuple[int, int]], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        beside = Plain(os.path.join(folder, "plain"), ranks)
        stack.callback(beside.close)
        async with this_host().spawn_procs({"gpus": ranks}, preload=["torch", __spec__.name]) as procs:
            members = procs.spawn("members", Member)
            await members.join.call(os.path.join(folder, "store"))
            for case in CASES * ROUNDS:
                found.setdefault(("plain", case), []).extend(await asyncio.to_thread(beside.times, case))
                for way in ("awaited", "roost"):
                    told = await members.times.call(way, case)
                    found.setdefault((way, case), []).extend(told.item(gpus=0))
    show(ranks, found)


def show(ranks: int, found: dict[tuple[str, tuple[int, int]], list[float]]) -> None:
    """A table."""
    print(f"{ranks} ranks on {os.cpu_count()} CPUs, {ROUNDS} rounds\n")
    print("| bytes | plain | awaited | roost | roost / plain | roost / awaited |\n|---|---|---|---|---|---|")
    for case in CASES:
        all_times = [sorted(found[way, case]) for way in ("plain", "awaited", "roost")]
        medians = [times[len(times) // 2] for times in all_times]
        cells = [f"{times[len(times) // 2]:.0f} ({times[len(times) // 10]:.0f})" for times in all_times]
        ratios = [f"{medians[2] / other:.2f}" for other in medians[:2]]
        print("|", " | ".join([str(4 * case[0]), *cells, *ratios]), "|")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["plain", path, rank, ranks]:
            plain(path, int(rank), int(ranks))
        case [ranks]:
            roost.run(main(int(ranks)))
        case _:
            roost.run(main(2))
