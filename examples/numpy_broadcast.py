"""A large array to many processes: it is written into shared memory once, and each process maps it without a copy.

Run it with: python examples/numpy_broadcast.py
"""

import asyncio

import numpy as np

from roost import Actor, context, each, endpoint, this_host


class Holder(Actor):
    """Holds an array, and computes with it."""

    def __init__(self) -> None:
        self.array = np.zeros(0)

    @endpoint
    async def keep(self, array: np.ndarray) -> None:
        """Hold an array: it is this actor's own, and may be written to."""
        self.array = array
        self.array[0] = context().point.rank

    @endpoint
    async def dot(self, weights: np.ndarray) -> float:
        """Multiply it with weights."""
        return float(self.array[: len(weights)] @ weights)

    @endpoint
    async def first(self) -> float:
        """Give the first element."""
        return float(self.array[0])


async def main() -> None:
    """Broadcast 64 MiB, then give each rank a part of something else."""
    array = np.ones(8 << 20)
    async with this_host().spawn_procs({"ranks": 4}) as procs:
        holders = procs.spawn("holders", Holder)
        await holders.keep.broadcast(array)
        print(f"{array.nbytes >> 20} MiB sent to {len(holders)} processes")
        print("each wrote to its own:", list(await holders.first.call()), "- the sender's is as it was:", array[0])
        parts = np.arange(8.0).reshape(4, 2)
        print("products:", list(await holders.dot.call(each(list(parts)))))


if __name__ == "__main__":
    asyncio.run(main())
