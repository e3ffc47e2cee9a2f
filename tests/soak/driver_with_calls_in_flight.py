"""A driver that leaves `main` with 200 calls in flight and stops nothing."""

import asyncio
import os
import signal
import sys

from roost import Actor, endpoint, this_host


class Slow(Actor):
    @endpoint(concurrent=True)
    async def nap(self, number):
        await asyncio.sleep(60)
        return number

    @endpoint
    async def pid(self):
        return os.getpid()


async def main(how):
    slow = this_host().spawn_procs({"ranks": 2}).spawn("slow", Slow)
    await slow.pid.call()
    kept = [slow.nap.call(number) for number in range(100)]
    kept += [slow.slice(ranks=0).nap.call_one(number) for number in range(100)]
    await asyncio.sleep(0.02)
    if how == "raises":
        raise LookupError("the program's own error")
    if how == "exits":
        sys.exit(3)
    if how == "is interrupted":
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
    return len(kept)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
