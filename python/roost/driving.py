"""The driver: how the root of a job starts at first use, and how the job ends with its loop, its script or its interpreter."""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import sys
import threading
from typing import TYPE_CHECKING, Any

from roost import config as _config
from roost import runtime as _runtime
from roost._roost import Control

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from roost.runtime import Runtime

__all__ = ["start"]

# The process's status after a failure that nobody heard.
UNHEARD_EXIT_STATUS = 70


def start() -> Runtime:
    """Start as the driver: on the running loop, or on one in a thread of our own."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _start_in_background()
    runtime = _driver(loop)
    runtime.keep(_guard(runtime))
    return runtime


def _driver(loop: asyncio.AbstractEventLoop) -> Runtime:
    job, proc = os.urandom(16), random.getrandbits(63) | 1
    config = _config.current()
    control = Control.start_agent(job, proc, {"grace_s": config.grace_s, "sigterm_s": config.sigterm_s})
    runtime = _runtime.Runtime(job=job, proc=proc, incarnation=0, name="driver", owner=proc, control=control, loop=loop)
    _runtime.install(runtime)
    runtime.open()
    return runtime


async def _guard(runtime: Runtime) -> None:
    """Have the job end with the loop."""
    runtime.guard = _watch_loop_end(runtime)
    await runtime.guard.asend(None)


async def _watch_loop_end(runtime: Runtime) -> AsyncGenerator[None, None]:
    # `asyncio.run` closes its asynchronous generators last of all: then nothing of the job may remain.
    try:
        yield
    finally:
        await runtime.shut_down("the event loop ended")


def _start_in_background() -> Runtime:
    """A plain script: a thread of ours drives the loop."""
    started: list[Runtime] = []
    ready = threading.Event()

    def drive() -> None:
        import uvloop

        async def live() -> None:
            runtime = _driver(asyncio.get_running_loop())
            started.append(runtime)
            ended = runtime.stopping = asyncio.Event()
            ready.set()
            await ended.wait()
            await runtime.shut_down("the script ended")

        uvloop.run(live())

    thread = threading.Thread(target=drive, name="roost", daemon=True)
    thread.start()
    ready.wait()
    started[0].background = thread
    return started[0]


def _at_exit() -> None:
    """The interpreter ends: so does the job, quietly; a failure that nobody heard gives status 70."""
    runtime = _runtime.running()
    if runtime is None or runtime.pid != os.getpid() or not runtime.is_driver:
        return
    unheard: list[Any] = [*runtime.hearing.dropped, *runtime.hearing.unheard()]
    if runtime.background is not None and runtime.stopping is not None:
        runtime.loop.call_soon_threadsafe(runtime.stopping.set)
        runtime.background.join(runtime.config.grace_s + runtime.config.sigterm_s)
    runtime.close()
    if unheard:
        for failure in unheard:
            print(f"roost: a failure that nobody heard: {failure}", file=sys.stderr)  # noqa: T201 - the interpreter ends
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(UNHEARD_EXIT_STATUS)


def _before_fork() -> None:
    runtime = _runtime.running()
    if runtime is not None:
        runtime.sharing.before_fork()


def _after_fork() -> None:
    runtime = _runtime.running()
    if runtime is not None:
        runtime.node.mark_forked()


atexit.register(_at_exit)
os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
