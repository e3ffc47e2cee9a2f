"""Endpoints that yield: values come as they are made, from all ranks, and a slow reader holds the makers back.

Run it with: python examples/streams.py
"""

import asyncio
from collections.abc import AsyncIterator

from roost import Accumulator, Actor, context, endpoint, this_host


class Searcher(Actor):
    """Looks for primes in a part of the numbers: each rank in its own."""

    def __init__(self) -> None:
        self.made = 0

    @endpoint
    async def primes(self, count: int) -> AsyncIterator[int]:
        """Yield `count` primes of this rank's part."""
        number = 1000 * (context().point.rank + 1)
        for _ in range(count):
            number += 1
            while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
                number += 1
            self.made += 1
            yield number

    @endpoint
    async def total(self) -> int:
        """Tell how many were made."""
        return self.made


async def main() -> None:
    """Stream to the end; stream and stop early; fold answers as they come."""
    async with this_host().spawn_procs({"ranks": 3}) as procs:
        searchers = procs.spawn("searchers", Searcher)
        found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        async for point, prime in searchers.primes.stream(3):
            found[point.rank].append(prime)
        for rank, primes in found.items():
            print(f"rank {rank}: {primes}")

        endless = searchers.slice(ranks=0).primes.stream(1_000_000)
        async for _, prime in endless:
            if prime > 1050:
                print("first above 1050:", prime)
                break
        await endless.aclose()

        made = await Accumulator(searchers.total, 0, lambda so_far, answer: so_far + answer).accumulate()
        print("far fewer than a million were made:", made < 10_000)


if __name__ == "__main__":
    asyncio.run(main())
