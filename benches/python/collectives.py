"""`python -m benches.python.collectives`: small and large all-reduces over gloo, beside plain torch.distributed.

Two procs, in turn: `blocking` is torch's own call, which holds its thread; `awaited` is torch's with `async_op=True`, awaited in asyncio by
its future, as a user could at best; `roost` is `await comm.all_reduce(t)`. Times are rank 0's, in microseconds: the median, and what one
in ten is below.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import roost
from roost import Actor, context, endpoint, this_host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

torch.set_num_threads(1)

RANKS = 2
# Numbers of four bytes each, and how often.
CASES = [(1, 300), (1024, 300), (100_000, 100), (4_000_000, 10)]
WARM_UP = 5


class Member(Actor):
    """One rank, with a group of torch's and one of Roost's."""

    comm: roost.collectives.Communicator

    @endpoint
    async def join(self, path: str) -> None:
        """Make both groups; torch's meets in a file."""
        self.comm = await context().mesh.communicator()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        arguments = {"init_method": f"file://{path}", "rank": self.comm.rank, "world_size": self.comm.size}
        await asyncio.to_thread(dist.init_process_group, "gloo", **arguments)

    @endpoint
    async def times(self, way: str) -> list[tuple[float, float]]:
        """Of each case, in microseconds."""
        return [await self._times(getattr(self, f"_{way}"), *case) for case in CASES]

    async def _times(
        self, all_reduce: Callable[[Any], Awaitable[None]], numbers: int, rounds: int
    ) -> tuple[float, float]:
        tensor, taken = torch.ones(numbers), []
        for _ in range(WARM_UP + rounds):
            began = time.perf_counter()
            await all_reduce(tensor)
            taken.append(1e6 * (time.perf_counter() - began))
            tensor.fill_(1)
        taken = sorted(taken[WARM_UP:])
        return taken[len(taken) // 2], taken[len(taken) // 10]

    async def _blocking(self, tensor: Any) -> None:
        dist.all_reduce(tensor)

    async def _awaited(self, tensor: Any) -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        future = dist.all_reduce(tensor, async_op=True).get_future()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set_result, None))
        await done

    async def _roost(self, tensor: Any) -> None:
        await self.comm.all_reduce(tensor)


async def main() -> None:
    """Take the times and show them."""
    with tempfile.TemporaryDirectory() as folder:
        async with this_host().spawn_procs({"gpus": RANKS}, preload=["torch", __spec__.name]) as procs:
            members = procs.spawn("members", Member)
            await members.join.call(os.path.join(folder, "store"))
            ways = {way: (await members.times.call(way)).item(gpus=0) for way in ("blocking", "awaited", "roost")}
    print("| bytes | blocking | awaited | roost | roost / blocking | roost / awaited |\n|---|---|---|---|---|---|")
    for number, (numbers, _) in enumerate(CASES):
        cells = [f"{ways[way][number][0]:.0f} ({ways[way][number][1]:.0f})" for way in ways]
        medians = [ways[way][number][0] for way in ways]
        ratios = [f"{medians[2] / other:.2f}" for other in medians[:2]]
        print("|", " | ".join([str(4 * numbers), *cells, *ratios]), "|")


if __name__ == "__main__":
    roost.run(main())
