"""L4, L6. What is only slow, stuck or confused about the time is not dead."""

import asyncio
import ctypes
import gc
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mortal import Mortal

from roost import Config, endpoint, run, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

SYSTEM = Path(__file__).parents[1] / "system"


class Busy(Mortal):
    """Is busy in ways that keep its own loop, or all of its Python, from running."""

    @endpoint
    async def collect(self, seconds):
        """One collection after the other, over many objects: each holds the GIL for long."""
        many = [[number] for number in range(1_000_000)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            gc.collect()
        return len(many)

    @endpoint
    async def compute(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    @endpoint
    async def hold(self, seconds):
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


def test_l4_a_held_gil_is_a_stall_and_no_death(rounds, figures, promised):
    """Nor is a long collection, or a loop that computes; and nobody else is disturbed."""
    stall_s, seconds = rounds((0.6, 2), (30.0, 60))

    async def main():
        async with this_host().spawn_procs({"ranks": 4}) as procs:
            busy = procs.spawn("busy", Busy)
            pids = list(await busy.pid.call())
            events, begin = procs.events(), time.time()
            stuck = [
                busy.slice(ranks=0).hold.call_one(seconds),
                busy.slice(ranks=1).collect.call_one(seconds),
                busy.slice(ranks=2).compute.call_one(seconds),
            ]
            waiting = asyncio.gather(*stuck)
            while not waiting.done():
                assert await busy.slice(ranks=3).echo.call_one("hello") == "hello"
                await asyncio.sleep(0.1)
            await waiting
            # Each of them is there again, and the same.
            assert list(await busy.pid.call()) == pids
            assert [state.state for state in await procs.states()] == ["up"] * 4
        return begin, [event async for event in events]

    begin, told = run(main(), config=Config(stall_s=stall_s))
    told = [event for event in told if event.kind != "stopped"]
    assert [event for event in told if event.kind not in ("stalled", "recovered")] == []
    stalled = [event for event in told if event.kind == "stalled"]
    assert {event.point.rank for event in stalled} == {0, 1, 2}, "and not who answers"
    figures(f"busy for {seconds} s: 0 verdicts, {len(stalled)} stalls")
    late = [event.at.timestamp() - begin - stall_s for event in stalled]
    promised(f"a stall told of, beyond {stall_s:g} s", late, 100, 1.0)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: a clock that leaps cannot be made")
def test_l6_a_wall_clock_that_leaps_changes_nothing(rounds, figures, tmp_path):
    clock = tmp_path / "leaping_clock.so"
    source = Path(__file__).with_name("leaping_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", clock, source], check=True)
    program = Path(__file__).with_name("driver_on_a_leaping_clock.py")
    environ = {**os.environ, "LD_PRELOAD": str(clock), "PYTHONPATH": str(SYSTEM)}
    command = [sys.executable, program, str(rounds(3, 120))]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    figures(f"an hour ahead and back ten times a second: {done.stdout.strip()}, nothing else happened")
