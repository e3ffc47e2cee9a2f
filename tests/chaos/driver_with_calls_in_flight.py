"""A driver that leaves `main` with 200 calls in flight and stops nothing, or with a death that nobody heard of."""

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


def with_a_dead_proc():
    """In a plain script."""
    procs = this_host().spawn_procs({"ranks": 2})
    pids = procs.spawn("slow", Slow).pid.call().result(60)
    os.kill(pids[1], signal.SIGKILL)
    procs.slice(ranks=1).wait().result(60)
    print("the program is done")


async def with_a_dead_proc_on_a_loop():
    procs = this_host().spawn_procs({"ranks": 2})
    pids = await procs.spawn("slow", Slow).pid.call()
    os.kill(pids[1], signal.SIGKILL)
    await procs.slice(ranks=1).wait()
    print("the program is done")


if __name__ == "__main__":
    # Tests that run in the background of a shell have it ignored, and so would this program.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1] != "has a dead proc":
        asyncio.run(main(sys.argv[1]))
    elif sys.argv[2] == "a loop":
        asyncio.run(with_a_dead_proc_on_a_loop())
    else:
        with_a_dead_proc()
