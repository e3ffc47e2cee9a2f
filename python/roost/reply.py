"""`Reply`: the awaitable that every verb gives, and its relatives for streams and broadcasts.

A `Reply` is an `asyncio.Future` (so `asyncio.wait`, `gather` and `shield` take it as it is) and has a coroutine's methods (so
`TaskGroup.create_task` does too). Cancelling it cancels the work at the other end.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost import process
from roost.errors import BlockingWaitError, CallTimeoutError, MeshError, RemoteError
from roost.waiting import Bell

if TYPE_CHECKING:
    from roost.shape import Point, ValueMesh

__all__ = ["Broadcast", "Reply", "Stream", "as_completed"]

R = TypeVar("R")


# The base's methods, bound to names once: `super()` would cost every reply half as much as its value.
_await = asyncio.Future.__await__
_result = asyncio.Future.result
_exception = asyncio.Future.exception


if TYPE_CHECKING:

    class _Awaited(asyncio.Future[R], Coroutine[Any, Any, R]):
        """What type checkers see: a future that `create_task` takes as well."""

else:
    _Awaited = asyncio.Future


class Reply(_Awaited[R]):
    """The answer to come of one call.

    Await it, many times and from several tasks; cancel it, or the last task that awaits it, and the work at the other end is
    cancelled. Plain scripts and worker threads wait with `result(timeout)`.
    """

    __slots__ = ("_call", "_inners")

    # Set by whoever sends the call; absent on a reply that stands for local work.
    _call: int
    # Futures of the second and later tasks that await; absent while there are none.
    _inners: set[asyncio.Future[R]]

    def __await__(self) -> Generator[Any, None, R]:
        # The first to await gets the future itself, which is quicker; each later one a future of its own, so that a time-out
        # around one of them does not cancel the others.
        if not self._callbacks or self.done():
            return _await(self)
        return self._inner().__await__()

    __iter__ = __await__

    def _inner(self) -> asyncio.Future[R]:
        """A future of its own for one more waiter; the call is cancelled when the last waiter was."""
        inner: asyncio.Future[R] = self.get_loop().create_future()
        try:
            self._inners.add(inner)
        except AttributeError:
            self._inners = {inner}

        def outer_done(_: object) -> None:
            if inner.done():
                return
            if self.cancelled():
                inner.cancel()
                return
            error = asyncio.Future.exception(self)
            if error is None:
                inner.set_result(asyncio.Future.result(self))
            else:
                inner.set_exception(error)

        def inner_done(done: asyncio.Future[R]) -> None:
            self._inners.discard(done)
            if done.cancelled() and not self.done():
                self.remove_done_callback(outer_done)
                if not self._inners and not self._waiting_tasks():
                    self._cancel_all(None)

        self.add_done_callback(outer_done)
        inner.add_done_callback(inner_done)
        return inner

    def _waiting_tasks(self) -> list[tuple[asyncio.Task[Any], Any, Any]]:
        """Tasks that await the future itself: (task, its wake-up, context)."""
        found = []
        for callback, scope in self._callbacks or ():
            task = getattr(callback, "__self__", None)
            if isinstance(task, asyncio.Task):
                found.append((task, callback, scope))
        return found

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the call: a queued message is dropped, a running `async` endpoint is cancelled."""
        if self.done():
            return False
        if getattr(self, "_inners", None):
            for task, wake_up, scope in self._waiting_tasks():
                if task.cancelling():
                    # Only this task gives up; the others go on waiting.
                    self.remove_done_callback(wake_up)
                    given_up = self.get_loop().create_future()
                    given_up.cancel(msg)
                    self.get_loop().call_soon(wake_up, given_up, context=scope)
                    return True
        return self._cancel_all(msg)

    def _cancel_all(self, msg: Any | None) -> bool:
        runtime = process.running()
        if runtime is not None:
            runtime.cancel_call(self)
        return super().cancel(msg)

    def result(self, timeout: float | None = None) -> R:
        """The value, or the error raised.

        On the loop's own thread only a finished reply has one; on any other thread this waits.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            BlockingWaitError: on the loop's own thread while the reply is not there yet. The reply stays good.
            CallTimeoutError: the time is over. The call goes on.
        """
        if not self.done():
            self._block(timeout)
        return _result(self)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None; waits as `result` does."""
        if not self.done():
            self._block(timeout)
        return _exception(self)

    def _block(self, timeout: float | None) -> None:
        loop = self.get_loop()
        try:
            on_loop = asyncio.get_running_loop() is loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            raise BlockingWaitError(
                "result() would stop the event loop that has to bring the reply; write `await reply` here, "
                "or call result() in a worker thread"
            )
        finished = threading.Event()
        loop.call_soon_threadsafe(self.add_done_callback, lambda _: finished.set())
        if not finished.wait(timeout):
            raise CallTimeoutError(f"no reply within {timeout} s; the call goes on, cancel() ends it")

    # What a coroutine has, so that `TaskGroup.create_task(reply)` is accepted.
    def send(self, value: object) -> Any:
        """Step like a coroutine (for `asyncio.create_task`)."""
        return self._steps().send(value)  # type: ignore[arg-type]  # a coroutine takes what it is sent; ours takes None

    def throw(self, *error: Any) -> Any:
        """Raise inside like a coroutine (for `asyncio.create_task`)."""
        return self._steps().throw(*error)

    def close(self) -> None:
        """Close like a coroutine; the call itself goes on."""
        steps = _STEPS.pop(self, None)
        if steps is not None:
            steps.close()

    def _steps(self) -> Generator[Any, None, R]:
        steps = _STEPS.get(self)
        if steps is None:
            steps = _STEPS[self] = _await_whole(self)
            self.add_done_callback(lambda _: self.get_loop().call_soon(_STEPS.pop, self, None))
        return steps


# The coroutine side of replies that were given to `create_task`: a few at a time, so not a slot of each reply.
_STEPS: dict[Reply[Any], Generator[Any, None, Any]] = {}


def _await_whole(reply: Reply[R]) -> Generator[Any, None, R]:
    return (yield from reply.__await__())


class FailedReply(Reply[R]):
    """What a reply becomes when an error was set: it reports the error if it is dropped before anyone looked at it."""

    __slots__ = ()

    def __del__(self) -> None:
        # The future's own flag: true until someone took the exception.
        unheard = self._log_traceback
        if unheard:
            self._log_traceback = False
        runtime = process.running()
        if runtime is not None:
            error = asyncio.Future.exception(self)
            if error is not None:
                runtime.hearing.reply_dropped(error, heard=not unheard)


def fail_reply(reply: Reply[Any], error: BaseException) -> None:
    """Give a reply its error; from now on it watches whether somebody hears of it."""
    if reply.done():
        return
    if type(reply) is Reply:
        reply.__class__ = FailedReply
    reply.set_exception(error)


class GatheredReply(Reply[R]):
    """The reply of a call to a mesh: values by rank, or one `MeshError` as soon as the first rank fails."""

    __slots__ = ("_everything", "_failed", "_mesh", "_point", "_remaining", "_values", "_wrap")

    def begin(self, size: int, wrap: Callable[[list[Any]], Any], point: Callable[[int], Point], mesh: str) -> None:
        """Say what is awaited: how many ranks, what to make of their values, each rank's point, and the mesh's name."""
        self._mesh = mesh
        self._values: list[Any] = [None] * size
        self._remaining = size
        self._wrap = wrap
        self._point = point
        self._failed: MeshError | None = None
        self._everything: asyncio.Future[None] | None = None

    def rank_value(self, rank: int, value: object) -> None:
        """One rank answered."""
        self._values[rank] = value
        self._account()

    def rank_errors(self, errors: list[tuple[int, BaseException]]) -> None:
        """Some ranks failed, at the same moment; the first to fail decide, later ones are listed in `later`."""
        named = [(self._point(rank), error) for rank, error in errors]
        for rank, error in errors:
            self._values[rank] = error
        if self._failed is None:
            count = len(named)
            self._failed = MeshError(
                f"{count} of {len(self._values)} ranks of {self._mesh} failed"
                if len(self._values) > 1
                else f"{self._mesh} failed",
                [
                    error if isinstance(error, Exception) else RemoteError(type(error).__name__, str(error))
                    for _, error in named
                ],
                [point for point, _ in named],
            )
            fail_gathered(self, self._failed)
        else:
            self._failed.later.extend(error for _, error in named if isinstance(error, Exception))
        for _ in errors:
            self._account()

    def _account(self) -> None:
        self._remaining -= 1
        if self._remaining:
            return
        if self._failed is None and not self.done():
            self.set_result(self._wrap(self._values))
        if self._everything is not None and not self._everything.done():
            self._everything.set_result(None)

    async def outcomes(self) -> ValueMesh[Any]:
        """Values and errors by rank, once every rank is accounted for."""
        if self._remaining:
            if self._everything is None:
                self._everything = self.get_loop().create_future()
            try:
                await asyncio.shield(self._everything)
            except asyncio.CancelledError:
                if not self._everything.done():
                    self.cancel()
                raise
        if self.cancelled():
            raise asyncio.CancelledError
        self._log_traceback = False
        result: ValueMesh[Any] = self._wrap(self._values)
        return result

    def __del__(self) -> None:
        if getattr(self, "_failed", None) is None:
            return
        unheard = self._log_traceback
        if unheard:
            self._log_traceback = False
        runtime = process.running()
        if runtime is not None and self._failed is not None:
            runtime.hearing.reply_dropped(self._failed, heard=not unheard)


def fail_gathered(reply: GatheredReply[Any], error: BaseException) -> None:
    """Set the error of a gathered reply unless it was cancelled meanwhile."""
    if not reply.done():
        reply.set_exception(error)


class Broadcast:
    """What `broadcast` gives when there was no room at once: await it to wait for room, or ignore it."""

    __slots__ = ("_room",)

    def __init__(self, room: Callable[[], Awaitable[None]]) -> None:
        # Made when it is awaited: a coroutine that nobody awaits would warn.
        self._room = room

    def __await__(self) -> Generator[Any, None, None]:
        return self._room().__await__()


class StreamSink:
    """Where the data lane puts the answers of a stream; the `Stream` in the user's hands reads it."""

    __slots__ = ("_call", "bell", "closed", "live", "queue", "taken")

    def __init__(self, size: int) -> None:
        self.live = set(range(size))
        self.queue: deque[tuple[int, object, bool]] = deque()
        self.bell = Bell()
        self._call = 0
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

    def rank_errors(self, errors: list[tuple[int, BaseException]]) -> None:
        """Ranks that failed."""
        for rank, error in errors:
            self.live.discard(rank)
            self._push(rank, error, True)

    def _push(self, rank: int, value: object, failed: bool) -> None:
        if not self.closed:
            self.queue.append((rank, value, failed))
            self.bell.ring()


class Stream(AsyncIterator[tuple["Point", R]]):
    """Answers as they arrive: `async for point, value in mesh.step.stream(...)`.

    After a rank's error was raised, iterate the same object again and it goes on. Dropping it or `aclose()` cancels the rest.
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

    def __aiter__(self) -> Stream[R]:
        return self

    async def __anext__(self) -> tuple[Point, R]:
        sink = self._sink
        while not sink.queue:
            if not sink.live or sink.closed:
                raise StopAsyncIteration
            await sink.bell.wait()
        rank, value, failed = sink.queue.popleft()
        if rank in sink.live:
            # The other end goes on producing as this one takes.
            taken = sink.taken[rank] = sink.taken.get(rank, 0) + 1
            self._runtime.streams.taken(sink._call, rank, taken)
        if failed and not self._outcomes:
            assert isinstance(value, BaseException)
            raise value
        return self._point(rank), value  # type: ignore[return-value]

    async def aclose(self) -> None:
        """End the stream; ranks that have not finished are cancelled."""
        self._cancel()

    def _cancel(self) -> None:
        sink = self._sink
        if not sink.closed:
            sink.closed = True
            sink.queue.clear()
            if sink.live and sink._call:
                self._runtime.cancel(sink._call)
            sink.bell.ring()

    def __del__(self) -> None:
        self._cancel()


class as_completed(Generic[R]):  # noqa: N801 - named as asyncio's
    """Iterate replies as they finish, with `for` (worker threads, plain scripts) and `async for`.

    Args:
        replies: the replies to wait for.
        timeout: seconds for all of them together.

    Raises:
        CallTimeoutError: while iterating, when the time is over.
    """

    def __init__(self, replies: Iterable[Reply[R]], timeout: float | None = None) -> None:
        self._replies = list(replies)
        self._timeout = timeout

    def __iter__(self) -> Iterator[Reply[R]]:
        import queue
        import time

        done: queue.SimpleQueue[Reply[R]] = queue.SimpleQueue()
        end = None if self._timeout is None else time.monotonic() + self._timeout
        for reply in self._replies:
            try:
                running = asyncio.get_running_loop() is reply.get_loop()
            except RuntimeError:
                running = False
            if running:
                raise BlockingWaitError(
                    "`for` would stop the event loop; write `async for reply in as_completed(...)` here"
                )
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
