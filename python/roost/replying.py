"""`reply_of`: a coroutine as a reply, for programs with and without a loop of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from roost import process
from roost.reply import Reply, fail_reply

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

__all__ = ["reply_of"]

R = TypeVar("R")


def reply_of(work: Coroutine[Any, Any, R]) -> Reply[R]:
    """Do it on Roost's loop; cancelling the reply cancels it."""
    runtime = process.current()
    reply: Reply[R] = Reply(loop=runtime.loop)

    def begin() -> None:
        task = runtime.keep(work)
        task.add_done_callback(settle)
        reply.add_done_callback(lambda _: task.cancel() if reply.cancelled() else None)

    def settle(task: asyncio.Task[R]) -> None:
        if reply.done():
            return
        if task.cancelled():
            reply.cancel()
            return
        error = task.exception()
        if error is None:
            reply.set_result(task.result())
        else:
            fail_reply(reply, error)

    runtime.on_loop(begin)
    return reply
