"""A program that works until it is interrupted; its actors tell how they end."""

import asyncio
import os
import signal
import sys

from roost import Actor, endpoint, run, this_host


class Working(Actor):
    """Cleans up for a while; tells of it in a file."""

    def __init__(self, path, cleanup_s):
        self.path, self.cleanup_s = path, cleanup_s

    def tell(self, text):
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{text}\n".encode())
        os.close(file)

    @endpoint
    async def work(self):
        self.tell(f"process {os.getpid()}")
        await asyncio.sleep(600)

    async def __cleanup__(self, exc):
        self.tell("cleaning")
        await asyncio.sleep(self.cleanup_s)
        self.tell("clean")


async def main(path, cleanup_s):
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        working = procs.options(cleanup_timeout_s=cleanup_s + 1).spawn("working", Working, path, cleanup_s)
        await working.work.call()


if __name__ == "__main__":
    # Tests that run in the background of a shell have it ignored, and so would this program.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    how, path, cleanup_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
    begin = run if how == "roost.run" else asyncio.run
    begin(main(path, cleanup_s))
