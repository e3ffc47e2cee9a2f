"""A driver with four procs, each with descendants of its own; it says when it is up and then works until it is killed."""

import asyncio
import ctypes
import os
import subprocess
import sys

import numpy as np

from roost import Actor, endpoint, this_host


class Parent(Actor):
    """Has a child in its group, one in a session of its own, and one that was forked."""

    def __init__(self):
        sleep = [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
        self.children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
        if os.fork() == 0:
            os.setsid()
            ctypes.CDLL(None).sleep(1000)
            os._exit(0)

    @endpoint
    async def total(self, array):
        return int(array.sum())


async def main():
    procs = this_host().spawn_procs({"ranks": 4})
    parents = await procs.spawn("parents", Parent)
    # Large enough for shared memory.
    array = np.ones(2 << 20, np.uint8)
    while True:
        await parents.total.call(array)
        print("up", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
