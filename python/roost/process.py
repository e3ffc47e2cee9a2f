"""The runtime of this process, if it has one: started, and imported, at first use.

A program that only defines actors, as everything does that a proc imports, pays for none of it.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from roost.runtime import Runtime

__all__ = [
    "NoRankYetError", "choose_by", "current", "install", "job_ended", "left_unheard", "of_job", "running", "wait_for_rank",
]  # fmt: skip

# What nobody had heard of when its job ended: the process ends with a status of its own.
left_unheard: list[Exception] = []

_current: Runtime | None = None
# Where procs share the process (`roost.testing`): the runtime of the proc whose code runs now, None for the process's own.
_choose: Callable[[], Runtime | None] | None = None
# The drivers of the jobs that have ended in this process, and the procs that those spawned.
_ended: set[int] = set()
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


def job_ended(makers: Iterable[int]) -> None:
    """What these have made is of no use any more, also in a later job."""
    _ended.update(makers)


def current(preload: Sequence[str] | None = None) -> Runtime:
    """The runtime of this process; started at first use.

    Args:
        preload: what procs that are about to be spawned preload; None when there are none.
    """
    runtime = _living()
    if runtime is not None:
        return _checked(runtime)
    from roost.driving import start

    return start(preload)


def of_job(name: str, *makers: int) -> Runtime:
    """The runtime of this process, for what can only be of a job's making: never started for that.

    Args:
        name: what is used, for people.
        makers: the procs that made it, and what it stands on.

    Raises:
        StoppedError: that job has ended.
    """
    runtime = _living()
    if runtime is None or not _ended.isdisjoint(makers):
        from roost.stops import stopped_error

        raise stopped_error(name, "its job has ended, with its event loop or its script", advice="; make a new one")
    return _checked(runtime)


def _living() -> Runtime | None:
    runtime = _current if _choose is None else running()
    if runtime is not None:
        if os.getpid() != runtime.pid:
            runtime.check_usable()
        if not runtime.loop.is_closed():
            return runtime
        runtime.close()
    if _is_spare:
        raise NoRankYetError("this process is a spare: it has no rank, and no part in the job, before it takes a place")
    return None


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
