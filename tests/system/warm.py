"""What spares prepare, for the tests of them. Imported by procs: no pytest here."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from mortal import Mortal

from roost import context, endpoint, this_host, this_proc


class SetUp:
    """A `setup` that takes its time, and writes down who ran it."""

    def __init__(self, file, seconds=0.0, asks="nothing", fails_in_spares=False):
        self.file = str(file)
        self.seconds = seconds
        self.asks = asks
        self.fails_in_spares = fails_in_spares

    def __call__(self):
        with open(self.file, "a") as file:
            file.write(f"{os.getpid()}\n")
        if self.fails_in_spares and is_spare():
            raise RuntimeError("no more of us")
        if self.asks == "proc":
            os.environ["SEEN_BY_SETUP"] = str(context().proc)
        elif self.asks == "rank":
            os.environ["SEEN_BY_SETUP"] = os.environ["RANK"]
        time.sleep(self.seconds)
        with open(f"{self.file}.done", "a") as file:
            file.write(f"{os.getpid()}\n")


def is_spare():
    try:
        return context().proc == 0
    except RuntimeError:
        return True


def ran(file):
    """The processes that ran it, in that order; each as often as it did."""
    path = Path(file)
    return [int(line) for line in path.read_text().split()] if path.exists() else []


class Warm(Mortal):
    @endpoint
    async def leave_an_orphan(self):
        """A process of this proc's whose parent has ended."""
        shell = subprocess.run(
            ["sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True
        )
        return int(shell.stdout)

    @endpoint
    async def place(self):
        return dict(context().point), context().actor_name, this_proc() is not None, os.sched_getaffinity(0), sys.argv


class Owner(Mortal):
    """Owns procs of its own, with spares."""

    @endpoint
    async def own_procs(self, file, restart):
        procs = this_host().spawn_procs({"inner": 1}, name="inner", restart=restart, spares=2, setup=SetUp(file))
        await procs.spawn("warm", Warm)
        while len(ran(file)) < 3:
            await asyncio.sleep(0.01)
