"""The runtime of this process, if it has one: started, and imported, at first use.

A program that only defines actors, as everything does that a proc imports, pays for none of it.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roost.runtime import Runtime

__all__ = ["NoRankYetError", "choose_by", "current", "install", "left_unheard", "running", "wait_for_rank"]

# What nobody had heard of when its job ended: the process ends with a status of its own.
left_unheard: list[Exception] = []

_current: Runtime | None = None
# Where procs share the process (`roost.testing`): the runtime of the proc whose code runs now, None for the process's own.
_choose: Callable[[], Runtime | None] | None = None
# Whether this process is a spare, which has no rank, and so no runtime, yet.
_is_spare = False


class NoRankYetError(RuntimeError):
    """A spare was asked who it is."""


def wait_for_rank(*, waits: bool) -> None:
    """This process is a spare, or is one no longer."""
    global _is_spare  # noqa: PLW0603 - a process is one
    _is_spare = waits


def running() -> Runtime | None:
    """The runtime of this process, if it has one."""
    return _current if _choose is None else _choose() or _current


def install(runtime: Runtime | None) -> None:
    """Make a runtime this process's own."""
    global _current  # noqa: PLW0603 - a process has one
    _current = runtime


def choose_by(choose: Callable[[], Runtime | None] | None) -> None:
    """Have procs share this process, or no more: `choose` says to which of them the code belongs that runs now."""
    global _choose  # noqa: PLW0603 - a process has one
    _choose = choose


def current(preload: Sequence[str] | None = None) -> Runtime:
    """The runtime of this process; started at first use.

    Args:
        preload: what procs that are about to be spawned preload; None when there are none.
    """
    runtime = _current if _choose is None else running()
    if runtime is not None:
        if os.getpid() != runtime.pid:
            runtime.check_usable()
        if not runtime.loop.is_closed():
            return _checked(runtime)
        runtime.close()
    if _is_spare:
        raise NoRankYetError("this process is a spare: it has no rank, and no part in the job, before it takes a place")
    from roost.driving import start

    return start(preload)


def _checked(runtime: Runtime) -> Runtime:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return runtime
    if loop is not runtime.loop:
        raise RuntimeError(
            "roost runs on another event loop, which still lives; use it from there, or from a thread without a loop, "
            "or close that loop first"
        )
    return runtime
