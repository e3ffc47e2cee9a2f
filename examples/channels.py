"""Values outside calls: workers send what they find into a channel of the driver, which bounds how far they get ahead.

Run it with: python examples/channels.py
"""

import asyncio
import random

from roost import Actor, Channel, Port, context, endpoint, this_host

WORKERS = 3


class Worker(Actor):
    """Throws darts, and reports to whoever gave it a port."""

    @endpoint
    async def throw(self, port: Port[tuple[int, int]], reports: int, darts: int) -> int:
        """Send how many of `darts` hit the circle, `reports` times."""
        dice = random.Random(context().point.rank)
        for _ in range(reports):
            hits = sum(dice.random() ** 2 + dice.random() ** 2 <= 1 for _ in range(darts))
            await port.send((hits, darts))  # waits while the channel is full
        await port.close()
        return reports


async def main() -> None:
    """Collect until every worker has closed the channel."""
    async with this_host().spawn_procs({"workers": WORKERS}) as procs:
        workers = procs.spawn("workers", Worker)
        port, receiver = Channel[tuple[int, int]].open(limit=8, senders=WORKERS)
        reply = workers.throw.call(port, reports=20, darts=2_000)
        hits = darts = reports = 0
        async for hit, thrown in receiver:
            hits, darts, reports = hits + hit, darts + thrown, reports + 1
        print(f"{reports} reports of {darts} darts; each worker sent {sorted(set(await reply))}")
        print(f"pi is about {4 * hits / darts:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
