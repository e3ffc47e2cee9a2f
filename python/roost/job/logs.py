"""What a job's hosts wrote, line by line."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from roost.replying import reply_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["FileLog", "LogLines", "last_lines"]

# How often a file that is followed is looked at, and how much of its end errors look at.
_LOOK_S = 0.2
_TAIL_BYTES = 8192
# What is read at once.
_READ_BYTES = 1 << 20


class FileLog:
    """A file; one that is not there yet has no lines."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 0

    def read(self) -> bytes:
        """What was written since it was read last, a part at a time."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                new = file.read(_READ_BYTES)
        except FileNotFoundError:
            return b""
        self._at += len(new)
        return new


class LogLines(AsyncIterator[str], Iterator[str]):
    """The lines of a log, without their ends: `async for line in …`, and `for` where no loop runs.

    Args:
        read: gives what was written since it was called last; on a thread where a loop runs.
        is_over: says whether nothing more will come; None to end where the log does.
    """

    def __init__(self, read: Callable[[], bytes], is_over: Callable[[], Awaitable[bool]] | None) -> None:
        self._read = read
        self._is_over = is_over
        self._begun = b""
        self._whole: deque[str] = deque()
        self._last = False

    def __aiter__(self) -> LogLines:
        return self

    def __iter__(self) -> LogLines:
        return self

    async def __anext__(self) -> str:
        while not self._whole and not self._take(await asyncio.to_thread(self._read)):
            if self._last:
                raise StopAsyncIteration
            if self._is_over is None or await self._is_over():
                self._last = True
            else:
                await asyncio.sleep(_LOOK_S)
        return self._whole.popleft()

    def __next__(self) -> str:
        while not self._whole and not self._take(self._read()):
            if self._last:
                raise StopIteration
            if self._is_over is None or reply_of(_awaited(self._is_over)).result():
                self._last = True
            else:
                time.sleep(_LOOK_S)
        return self._whole.popleft()

    def _take(self, new: bytes) -> bool:
        """Take what is new; gives whether there is a line that is whole, or at the very end what is left."""
        *whole, self._begun = (self._begun + new).split(b"\n")
        if self._last and not new and self._begun:
            whole, self._begun = [self._begun], b""
        self._whole.extend(line.decode(errors="replace") for line in whole)
        return bool(self._whole)


async def _awaited(ask: Callable[[], Awaitable[bool]]) -> bool:
    return await ask()


def last_lines(path: str, count: int) -> list[str]:
    """The last lines of a file; none of one that is not there."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []
