"""A proc's life: from its spawn message to its end in order."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvloop

from roost import config as _config
from roost import process

# What every proc needs is imported by its template, so that a forked proc imports nothing.
from roost import hosting, workers  # noqa: F401 isort: skip # pyright: ignore[reportUnusedImport]
from roost.runtime import Runtime
from roost.shape import Shape
from roost.spare import bind, set_up, setup_failed, wait_for_rank

if TYPE_CHECKING:
    from roost._roost import Control

__all__ = ["begin", "end", "open_proc", "run_proc"]

# Raised by the control thread, in itself alone: a number that nothing else is known to use.
_STACK_SIGNAL = signal.SIGRTMAX - 7
# How often the end of a process looks whether its last words are written.
_FLUSH_S = 0.005
# How long the control thread may take to say why this process does not start.
_SAID_S = 1.0


def run_proc(spec: dict[str, Any], control: Control, data_fd: int | None, started_page_fd: int) -> int:
    """Be a proc until asked to stop; called by `roost._proc` in a fresh process."""
    _config.use(_config.Config.from_builtins(spec["config"]))
    try:
        bind(spec)
    except ValueError as error:
        control.start_failed(str(error))
        control.close(_SAID_S)
        return 1
    _tell_stacks(control)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            code = runner.run(_live(spec, control, data_fd, started_page_fd))
        except (SystemExit, KeyboardInterrupt):
            # Raised in a task or a callback of the user's, it ends the loop, and with it all that runs there: of that
            # the death of this process tells.
            runtime = process.running()
            if runtime is not None:
                runtime.exit_code = 1
            raise
    process.install(None)
    return code


def _tell_stacks(control: Control) -> None:
    """Have this process say where it is stuck: to its output when SIGTERM ends it, to its owner when its loop stands still."""
    faulthandler.register(signal.SIGTERM, sys.__stderr__ or sys.stderr, chain=True)
    file = control.stack_fd
    if file is not None:
        faulthandler.register(_STACK_SIGNAL, file)
    os.register_at_fork(after_in_child=_tell_no_stacks)


def _tell_no_stacks() -> None:
    """A forked child is the user's: nobody asks where it was when its pool, say, ended it."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # Else a handler of the user's has taken the place of ours.
        faulthandler.unregister(signal.SIGTERM)
    faulthandler.unregister(_STACK_SIGNAL)


async def _live(spec: dict[str, Any], control: Control, data_fd: int | None, started_page_fd: int) -> int:
    notices: list[tuple[Any, ...]] = []
    if spec["rank"] is None:
        given = await wait_for_rank(spec, control)
        if isinstance(given, int):
            if given:
                control.close(_SAID_S)
            return given
        spec, notices = given
    runtime = Runtime(
        job=spec["job"], proc=spec["proc"], incarnation=spec["incarnation"], name=spec["name"], owner=spec["owner"],
        driver=spec["driver"], control=control, loop=asyncio.get_running_loop(), host=(spec["host"], spec["host_name"]),
    )  # fmt: skip
    process.install(runtime)
    stopping = open_proc(runtime, spec, started_page_fd)
    control.watch_loop(runtime.config.stall_s, _STACK_SIGNAL)
    control.expect_silence(runtime.config.verdict_s)
    control.show(runtime.node)
    runtime.members.hear(notices)
    if not await begin(runtime, spec, data_fd):
        # Why not is said before this process ends.
        control.close(_SAID_S)
        return 1
    await stopping.wait()
    if runtime.exit_code is not None:
        # Nobody else sees to it that this process ends when a thread does not.
        _end_anyway(runtime.exit_code, runtime.config.grace_s)
    await end(runtime)
    return runtime.exit_code or 0


def open_proc(runtime: Runtime, spec: dict[str, Any], started_page_fd: int) -> asyncio.Event:
    """Have a new proc join its loop; gives what is set when it is to stop."""
    stopping = runtime.stopping = asyncio.Event()
    runtime.members.note_self(spec["mesh_name"], Shape(spec["sizes"]), spec["rank"])
    runtime.open()
    runtime.node.set_started_page(started_page_fd)
    return stopping


async def begin(runtime: Runtime, spec: dict[str, Any], data_fd: int | None) -> bool:
    """Run `setup` and make the actors that were there before; False when `setup` raised."""
    if spec["setup"] is not None:
        try:
            await set_up(spec)
        except BaseException as error:
            setup_failed(runtime.control, error)
            return False
    if data_fd is None:
        # From another host, it comes over the network.
        runtime.node.expect(spec["owner"])
    else:
        runtime.node.adopt(spec["owner"], spec["owner_incarnation"], data_fd, 0)
    for recorded in spec["actors"]:
        runtime.hosting.spawn(0, 0, [], recorded)
    runtime.control.up()
    return True


def _end_anyway(code: int, grace_s: float) -> None:
    """End the process after a while, whatever still runs in it."""

    def exit_late() -> None:
        time.sleep(grace_s)
        os._exit(code)

    threading.Thread(target=exit_late, name="roost-exit", daemon=True).start()


async def end(runtime: Runtime) -> None:
    """End in order: actors in reverse order of their start, then what is still to be written."""
    reason = runtime.stop_reason or "its proc ended"
    for hosted in reversed(list(runtime.hosting.meshes.values())):
        with suppress(TimeoutError):
            await asyncio.wait_for(hosted.stop(reason), runtime.grace_left_s())
    # What the actors said last is sent in the next turn of the loop.
    await asyncio.sleep(0)
    runtime.node.flush()
    by = runtime.loop.time() + runtime.grace_left_s()
    while runtime.node.has_unsent() and runtime.loop.time() < by:  # noqa: ASYNC110 - the socket tells nobody that it is empty
        await asyncio.sleep(_FLUSH_S)
    runtime.close_proc()
