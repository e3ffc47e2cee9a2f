"""Four processes, an actor on each: one awaited call reaches them all, and answers can be taken as they come.

Run it with: python examples/hello.py
"""

import asyncio
import os

from roost import Actor, context, endpoint, this_host


class Greeter(Actor):
    """Says hello from its place in the mesh.

    Args:
        greeting: what it says first.
    """

    def __init__(self, greeting: str) -> None:
        self.greeting = greeting

    @endpoint
    async def greet(self, name: str) -> str:
        """Greet somebody."""
        return f"{self.greeting}, {name}, from rank {context().point.rank}"

    @endpoint
    async def pid(self) -> int:
        """Tell which process this is."""
        return os.getpid()


async def main() -> None:
    """Spawn, call, and leave: the processes end with the block."""
    async with this_host().spawn_procs({"rows": 2, "columns": 2}) as procs:
        greeters = procs.spawn("greeters", Greeter, "Hello")
        greetings = await greeters.greet.call("world")
        for point, text in greetings.items():
            print(f"{point['rows']},{point['columns']}: {text}")
        print(await greeters.slice(rows=1, columns=0).greet.call_one("Roost"))
        pids = {pid async for _, pid in greeters.pid.stream()}
        print(f"{len(pids)} processes, none of them the driver: {os.getpid() not in pids}")


if __name__ == "__main__":
    asyncio.run(main())
