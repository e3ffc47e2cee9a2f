"""How tests drive a program of their own: a whole event loop each, so that the job ends inside the test."""

import asyncio
import functools
import os
import time
from pathlib import Path

import uvloop

if "ROOST_PROC" not in os.environ:
    # The first of its loops opens a pipe that stays; a proc that imports this has one already.
    uvloop.run(asyncio.sleep(0))


def on_a_loop(test):
    """Run an async test by `asyncio.run`: when it returns, nothing of the job may remain."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        return asyncio.run(test(*args, **kwargs))

    return run


class Job:
    """The loop that the tests of one module share, and with it the procs that they spawned."""

    runner = None


def in_the_job(test):
    """Run an async test on the loop of the `job` fixture, with what its fixtures spawned there."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        return Job.runner.run(test(*args, **kwargs))

    return run


async def handled(_failure):
    """A supervise hook for tests that are not about hearing."""
    return True


async def next_of(events, *kinds):
    """The next event of these kinds; what comes before it is passed over."""
    async for event in events:
        if event.kind in kinds:
            return event
    raise AssertionError(f"no event of {kinds} came")


def process_state(pid):
    """The letter of a process's state; "X" when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def wait_until_gone(pid, within_s=10.0):
    """Block until a process has ended."""
    end = time.monotonic() + within_s
    while process_state(pid) not in "ZX":
        assert time.monotonic() < end, f"process {pid} does not end"
        time.sleep(0.001)


def wait_until_idle(pid, within_s=10.0):
    """Block until a process, which had work, waits for more: it used no processor between two looks."""
    end, before = time.monotonic() + within_s, None
    while time.monotonic() < end:
        state, *_, user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:13]
        if state == "S" and (user, system) == before:
            return
        before = user, system
        time.sleep(0.05)
    raise AssertionError(f"process {pid} does not rest")


async def until(condition, within_s=10.0):
    """Look, turn by turn of the loop, until it is true."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.001)
