"""`as_completed`: replies as they finish."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from roost.errors import CallTimeoutError
from roost.reply import Reply, refuse_blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

__all__ = ["as_completed"]

R = TypeVar("R")


class as_completed(Generic[R]):  # noqa: N801 - named as asyncio's
    """Iterate replies as they finish, with `for` (worker threads, plain scripts) and `async for`.

    Args:
        replies: the replies to wait for.
        timeout: seconds for all of them together.

    Raises:
        CallTimeoutError: while iterating, when the time is over.
    """

    def __init__(self, replies: Iterable[Reply[R]], timeout: float | None = None) -> None:
        try:
            given = iter(replies)
        except TypeError:
            raise TypeError(f"as_completed({replies!r}): give a list of replies") from None
        self._replies = list(given)
        self._timeout = timeout

    def __iter__(self) -> Iterator[Reply[R]]:
        import queue
        import time

        done: queue.SimpleQueue[Reply[R]] = queue.SimpleQueue()
        end = None if self._timeout is None else time.monotonic() + self._timeout
        for reply in self._replies:
            refuse_blocking(reply.get_loop(), "`for`", "async for reply in as_completed(...)")
            reply.get_loop().call_soon_threadsafe(reply.add_done_callback, done.put)
        for _ in self._replies:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                yield done.get(timeout=left)
            except queue.Empty:
                raise CallTimeoutError(f"not all replies came within {self._timeout} s") from None

    async def __aiter__(self) -> AsyncIterator[Reply[R]]:
        done: asyncio.Queue[Reply[R]] = asyncio.Queue()
        for reply in self._replies:
            reply.add_done_callback(done.put_nowait)
        try:
            async with asyncio.timeout(self._timeout):
                for _ in self._replies:
                    yield await done.get()
        except TimeoutError:
            raise CallTimeoutError(f"not all replies came within {self._timeout} s") from None
