"""The driver: how the root of a job starts at first use, and how the job ends with its loop, its script or its interpreter."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from roost import config as _config
from roost import process
from roost._roost import Control
from roost.ids import new_id
from roost.process import left_unheard

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from roost.runtime import Runtime

__all__ = ["start"]

# The process's status after a failure that nobody heard.
_UNHEARD_EXIT_STATUS = 70


def start(preload: Sequence[str] | None) -> Runtime:
    """Start as the driver: on the running loop, or on one in a thread of our own.

    Args:
        preload: see `process.current`.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _start_in_background(preload)
    runtime = _driver(loop, preload)
    runtime.guard = _watch_loop_end(runtime)
    # Its first step waits for nothing; a task for it might be cancelled before it had its turn.
    with suppress(StopIteration):
        runtime.guard.asend(None).send(None)
    return runtime


def _driver(loop: asyncio.AbstractEventLoop, preload: Sequence[str] | None) -> Runtime:
    job, proc = os.urandom(16), new_id()
    host = new_id(), os.uname().nodename
    config = _config.current()
    limits = ("grace_s", "sigterm_s", "start_timeout_s", "stall_s", "lease_s", "beat_s", "verdict_s")
    control = Control.start_agent(
        job,
        proc,
        {"host": host[0], **{name: getattr(config, name) for name in limits}},
    )
    if preload is not None:
        # What is no name of a module is refused when the procs are asked for.
        with suppress(TypeError):
            control.prepare((list(preload), list(sys.path), dict(os.environ)))
    # Much is imported with it: by then the template does the same.
    from roost.runtime import Runtime

    runtime = Runtime(
        job=job, proc=proc, incarnation=0, name="driver", owner=proc, driver=proc, control=control, loop=loop,
        host=host,
    )  # fmt: skip
    process.install(runtime)
    runtime.open()
    runtime.node.be_root(config.tree_procs_min)
    return runtime


async def _watch_loop_end(runtime: Runtime) -> AsyncGenerator[None, None]:
    # `asyncio.run` closes its asynchronous generators last of all: then nothing of the job may remain.
    try:
        yield
    finally:
        await runtime.shut_down("the event loop ended")


def _start_in_background(preload: Sequence[str] | None) -> Runtime:
    """A plain script: a thread of ours drives the loop."""
    started: list[Runtime | BaseException] = []
    ready = threading.Event()

    async def live() -> None:
        runtime = _driver(asyncio.get_running_loop(), preload)
        ended = runtime.stopping = asyncio.Event()
        started.append(runtime)
        ready.set()
        await ended.wait()
        await runtime.shut_down("the script ended")

    def drive() -> None:
        import uvloop

        try:
            uvloop.run(live())
        except BaseException as error:
            if started:
                raise
            started.append(error)
            ready.set()

    thread = threading.Thread(target=drive, name="roost", daemon=True)
    thread.start()
    ready.wait()
    runtime = started[0]
    if isinstance(runtime, BaseException):
        raise runtime
    runtime.background = thread
    return runtime


def _at_exit() -> None:
    """The interpreter ends: so does the job, quietly; a failure that nobody heard gives status 70."""
    runtime = process.running()
    if runtime is not None:
        if runtime.pid != os.getpid() or not runtime.is_driver:
            return
        if runtime.background is not None and runtime.stopping is not None:
            runtime.loop.call_soon_threadsafe(runtime.stopping.set)
            runtime.background.join(runtime.config.grace_s + runtime.config.sigterm_s)
        runtime.close()
    if left_unheard:
        for error in left_unheard:
            print(f"roost: nobody heard of this failure: {error}", file=sys.stderr)  # noqa: T201 - the interpreter ends
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_UNHEARD_EXIT_STATUS)


def _before_fork() -> None:
    runtime = process.running()
    if runtime is not None:
        runtime.sharing.before_fork()


def _after_fork() -> None:
    runtime = process.running()
    if runtime is not None:
        runtime.node.mark_forked()
    left_unheard.clear()


atexit.register(_at_exit)
os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
