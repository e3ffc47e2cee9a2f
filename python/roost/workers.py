"""`Workers`: the tasks that handle the messages of this process's actors.

A worker goes from actor to actor, so that an idle actor costs no task, and short messages to many actors are one step of
one task. While a worker waits inside an endpoint, that task is this endpoint's alone, and another worker takes over; so
`asyncio.timeout` and `TaskGroup` work in endpoints. Who has something to do is known to the node (work.rs).
"""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, cast

from roost.context import handling

if TYPE_CHECKING:
    from roost.runtime import Runtime

__all__ = ["Workers"]

# Workers that wait for something to do; more than these end instead.
_IDLE_MAX = 32


class Workers:
    """The workers of this process: as many as endpoints wait for something, and a few that wait for messages."""

    __slots__ = ("_idle", "_runtime", "_tasks", "ending")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = 0
        self.ending = False

    def start(self) -> None:
        """Start one more worker, with a clean context."""
        task = self._runtime.loop.create_task(self._work(), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """This process ends: workers go when there is nothing to do for them."""
        self.ending = True
        self._runtime.node.end_workers()

    def abandon(self) -> None:
        """This proc is gone, and its process goes on (`roost.testing`)."""
        self.ending = True
        for task in self._tasks:
            task.cancel()

    async def _work(self) -> None:  # noqa: C901 - one loop, each branch of which is a rule
        node = self._runtime.node
        take = node.take
        set_handling = handling.set
        task = cast("asyncio.Task[None]", asyncio.current_task())
        at = None
        while True:
            work = take(at)
            if work is None:
                # Nothing of what was done is kept alive.
                at = runner = message = args = kwargs = None
                set_handling(None)
                if not await self._wait():
                    return
                continue
            runner, message, function, args, kwargs = work
            at = runner.cell
            runner.task = task
            if message is None:
                await runner.begin()
            else:
                set_handling(message)
                runner.serial = message
                try:
                    if runner.concurrent:
                        await runner.until_alone(message)
                    if function is None or args is None:
                        await runner.handle_slowly(message)
                    elif kwargs is None:
                        message.reply(await function(runner.instance, *args))
                    else:
                        message.reply(await function(runner.instance, *args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - whatever an endpoint raises has its answer
                    runner.raised(message, error)
                runner.serial = None
            runner.task = None
            if runner.stopping is not None:
                await runner.finish()
                # Its place may have another runner by now.
                at = None
            if runner.cancelled or len(copy_context()) != 1 or task.cancelling():
                # A cancel that came late, or context variables besides our own that the endpoint left set, must not reach
                # the next message.
                runner.cancelled = False
                node.leave(at)
                return

    async def _wait(self) -> bool:
        """Whether there may be something to do; else this worker is not needed any more."""
        if self.ending or self._idle >= _IDLE_MAX:
            return False
        node = self._runtime.node
        waiting = node.wait()
        self._idle += 1
        try:
            await waiting
        except asyncio.CancelledError:
            # Not by us: its loop ends, and cancels all tasks.
            node.quit(waiting)
            return False
        finally:
            self._idle -= 1
        return True
