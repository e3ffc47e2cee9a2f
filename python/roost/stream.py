"""`Stream`: answers as they arrive, and where the data lane puts them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from roost.waiting import Bell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roost.point import Point

__all__ = ["Stream", "StreamSink"]

R = TypeVar("R")


class StreamSink:
    """Where the data lane puts the answers of a stream; the `Stream` in the user's hands reads it."""

    __slots__ = ("__weakref__", "_call", "bell", "closed", "live", "queue", "readers", "taken")

    def __init__(self, size: int) -> None:
        self.live = set(range(size))
        self.queue: deque[tuple[int, object, bool]] = deque()
        self.bell = Bell()
        self._call = 0
        self.readers = 0
        self.taken: dict[int, int] = {}
        self.closed = False

    def item(self, rank: int, value: object) -> None:
        """A value of one rank; more may follow."""
        self._push(rank, value, False)

    def end(self, rank: int) -> None:
        """This rank gives no more."""
        self.live.discard(rank)
        if not self.live:
            self.bell.ring()

    def rank_value(self, rank: int, value: object) -> None:
        """The only value of one rank."""
        self.live.discard(rank)
        self._push(rank, value, False)

    def open_ranks(self) -> list[int]:
        """The ranks that have not ended."""
        return sorted(self.live)

    def refuse(self, error: BaseException) -> None:
        """The call cannot be sent: every rank failed."""
        self.fail_ranks([(rank, error) for rank in self.open_ranks()])

    def fail_ranks(self, errors: Sequence[tuple[int, BaseException]]) -> None:
        """Ranks that failed."""
        for rank, error in errors:
            self.live.discard(rank)
            self._push(rank, error, True)

    def may_be_heard(self) -> bool:
        """Whether an error waits to be read, or may come."""
        return not self.closed

    def _push(self, rank: int, value: object, failed: bool) -> None:
        if not self.closed:
            self.queue.append((rank, value, failed))
            self.bell.ring()


class Stream(AsyncIterator[tuple["Point", R]]):
    """Answers as they arrive: `async for point, value in mesh.step.stream(...)`.

    After a rank's error was raised, iterate the same object again and it goes on. The end of `async with stream:`, `aclose()`,
    dropping it, and giving up the wait for the next answer (its last reader is cancelled, or out of time) cancel the rest.
    """

    __slots__ = ("_outcomes", "_point", "_runtime", "_sink")

    def __init__(self, runtime: Any, sink: StreamSink, point: Callable[[int], Point]) -> None:
        self._runtime = runtime
        self._sink = sink
        self._point = point
        self._outcomes = False

    def outcomes(self) -> Stream[R | BaseException]:
        """The same stream, giving (Point, value or exception) and never raising a rank's error."""
        self._outcomes = True
        return self  # type: ignore[return-value]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a stream is read by whoever made the call: it is not copied, and does not travel; send a Port")

    def __aiter__(self) -> Stream[R]:
        return self

    async def __anext__(self) -> tuple[Point, R]:
        sink = self._sink
        while not sink.queue:
            if not sink.live or sink.closed:
                raise StopAsyncIteration
            sink.readers += 1
            try:
                await sink.bell.wait()
            except asyncio.CancelledError:
                # As of a reply, the last of its readers to give up cancels.
                if sink.readers == 1:
                    self._cancel()
                raise
            finally:
                sink.readers -= 1
        rank, value, failed = sink.queue.popleft()
        if rank in sink.live:
            # The other end goes on producing as this one takes.
            taken = sink.taken[rank] = sink.taken.get(rank, 0) + 1
            self._runtime.streams.taken(sink._call, rank, taken)
        if failed:
            assert isinstance(value, BaseException)
            self._runtime.hearing.got(value)
            if not self._outcomes:
                raise value
        return self._point(rank), value  # type: ignore[return-value]

    async def __aenter__(self) -> Stream[R]:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        self._cancel()

    async def aclose(self) -> None:
        """End the stream; ranks that have not finished are cancelled."""
        self._cancel()

    def _cancel(self) -> None:
        sink = self._sink
        if not sink.closed:
            sink.closed = True
            unread = [value for _, value, failed in sink.queue if failed]
            sink.queue.clear()
            for error in unread:
                self._runtime.hearing.missed(error)
            if sink.live and sink._call:
                self._runtime.calls.cancel(sink._call)
            sink.bell.ring()

    def __del__(self) -> None:
        self._cancel()
