"""A process is killed: its caller hears of it at once, it comes back in its place, and a neighbour gives it its state.

Run it with: python examples/restart.py
"""

import asyncio
import os
import signal

from roost import Actor, ActorDied, Restart, context, endpoint, this_host


class Counter(Actor):
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    @endpoint
    async def add(self, number: int) -> int:
        """Count on, and tell how far."""
        self.count += number
        return self.count

    @endpoint
    async def copy(self, other: "Counter") -> str:
        """Take the count of another."""
        self.count = await other.add.call_one(0)
        return f"incarnation {context().incarnation} has {self.count}"

    @endpoint
    async def crash(self) -> None:
        """Die as the out-of-memory killer would have it."""
        os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    """Count, crash, and count on."""
    restart = Restart(limit=3, within_s=60, backoff_s=(0, 1))
    async with this_host().spawn_procs({"ranks": 2}, name="procs", restart=restart) as procs:
        counters = procs.spawn("counters", Counter)
        print("counts:", list(await counters.add.call(5)))
        first, second = counters
        try:
            await second.crash.call_one()
        except ActorDied as death:
            print("seen:", str(death).partition(" on host")[0])
        await counters.ready()
        print("back:", await second.copy.call_one(first))
        print("counts:", list(await counters.add.call(1)))
        print("incarnations:", [state.incarnation for state in await procs.states()])


if __name__ == "__main__":
    asyncio.run(main())
