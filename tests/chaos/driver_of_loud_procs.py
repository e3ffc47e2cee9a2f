"""A driver whose procs print far more than its own output takes; it notes in a file how the work went on meanwhile."""

import asyncio
import logging
import sys
import threading
import time
from pathlib import Path

from roost import Actor, Config, endpoint, run, this_host


class Loud(Actor):
    def __init__(self):
        self.printed = 0

    @endpoint
    async def shout(self):
        """Print without end, to both streams, and log, on a thread of its own."""

        def print_on():
            while True:
                print(f"{self.printed:09} {'x' * 200}")
                print(f"{self.printed:09} {'x' * 200}", file=sys.stderr)
                logging.getLogger("loud").warning("%09d %s", self.printed, "x" * 200)
                self.printed += 3

        threading.Thread(target=print_on, daemon=True).start()

    @endpoint
    async def count(self):
        return self.printed


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def main(path, seconds):
    waits, begin = [], time.monotonic()
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        loud = procs.spawn("loud", Loud)
        await loud.shout.call()
        before, most = resident_bytes(), 0
        while time.monotonic() - begin < seconds or min(await loud.count.call()) < 10_000:
            asked = time.perf_counter()
            await loud.count.call()
            waits.append(time.perf_counter() - asked)
            most = max(most, resident_bytes() - before)
            await asyncio.sleep(0.01)
        printed = sum(await loud.count.call())
        stopping = time.perf_counter()
    Path(path).write_text(repr((waits, printed, most, time.perf_counter() - stopping)))


if __name__ == "__main__":
    run(main(sys.argv[1], float(sys.argv[2])), config=Config(grace_s=1.0))
