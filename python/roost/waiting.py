"""What waits: `Bell`, for tasks that wait for something new, and `RankWaiter`, for ranks of a mesh."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.reply import Reply
    from roost.shape import Shape

__all__ = ["Bell", "RankWaiter"]


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


class RankWaiter:
    """Who waits until ranks are up, have ended, or have gone."""

    __slots__ = ("behind", "ranks", "reply", "shape", "value", "what")

    def __init__(self, what: str, reply: Reply[Any], shape: Shape, value: Any) -> None:
        self.what = what
        self.reply = reply
        self.shape = shape
        self.value = value
        self.ranks = tuple(shape.ranks())
        # The place in `ranks` of one that was not so far when it was last looked.
        self.behind = 0

    def all_are(self, there: Callable[[int], bool]) -> bool:
        """Whether all ranks are there.

        The look begins with one that was not, and goes around: where many come one after the other, each is looked at some
        few times in all.
        """
        size = len(self.ranks)
        for step in range(size):
            place = (self.behind + step) % size
            if not there(self.ranks[place]):
                self.behind = place
                return False
        return True
