"""`Bell`: wakes tasks that wait for something new."""

from __future__ import annotations

import asyncio

__all__ = ["Bell"]


class Bell:
    """Any number of tasks wait; each ring wakes them all, and each looks by itself whether there is something for it."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        """Wake whoever waits."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Until the next ring."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            # Given up: what has rung has let go of it already.
            if waiter in self._waiters:
                self._waiters.remove(waiter)
