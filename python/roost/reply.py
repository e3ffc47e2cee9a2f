"""`Reply`: the awaitable that every verb gives, and what a broadcast gives.

A `Reply` is an `asyncio.Future` (so `asyncio.wait`, `gather` and `shield` take it as it is) and has a coroutine's methods (so
`TaskGroup.create_task` does too). Cancelling it cancels the work at the other end.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from roost import process
from roost._roost import quicken
from roost._tasks import let_tasks_take
from roost.errors import BlockingWaitError, CallTimeoutError

__all__ = ["Broadcast", "Reply", "fail_reply", "refuse_blocking"]

R = TypeVar("R")


# The base's methods, bound to names once: `super()` would cost every reply half as much as its value.
_await = asyncio.Future.__await__
_result = asyncio.Future.result
_exception = asyncio.Future.exception


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence

    from roost.value_mesh import ValueMesh

    A = TypeVar("A")

    class _Awaited(asyncio.Future[R], Coroutine[Any, Any, R]):
        """What type checkers see: a future that `create_task` takes as well."""

        def send(self, value: None, /) -> Any: ...
        def throw(self, *error: Any) -> Any: ...
        def close(self) -> None: ...

else:

    class _HidesSteps(type):
        """Leaves `_Steps` out of what a class says of its bases.

        `asyncio.wait` refuses whatever has all methods of a coroutine, and looks for them there. Hidden by `__getattr__`
        instead, they would make each use of a reply's other attributes several times as slow.
        """

        @property
        def __mro__(cls) -> tuple[type, ...]:
            return tuple(base for base in type.__dict__["__mro__"].__get__(cls) if base is not _Steps)

    class _Steps:
        """What a task that `create_task(reply)` made steps it by."""

        __slots__ = ()

        def send(self, value: None, /) -> Any:
            return _steps(self).send(value)

        def throw(self, *error: Any) -> Any:
            return _steps(self).throw(*error)

        def close(self) -> None:
            _steps(self).close()

    class _Awaited(_Steps, asyncio.Future, metaclass=_HidesSteps):
        __slots__ = ()


class Reply(_Awaited[R]):
    """The answer to come of one call.

    Await it, many times and from several tasks; cancel it, or the last task that awaits it, and the work at the other end is
    cancelled. Plain scripts and worker threads wait with `result(timeout)`.
    """

    __slots__ = ("_bounded", "_call", "_inners")

    # Set by whoever sends the call; absent on a reply that stands for local work.
    _call: int
    # Set where the call has a deadline: one callback is that of its timer.
    _bounded: bool
    # Futures of the second and later tasks that await; absent while there are none.
    _inners: set[asyncio.Future[R]]

    def __await__(self) -> Generator[Any, None, R]:
        # The first to await gets the future itself, which is quicker; each later one a future of its own, so that a time-out
        # around one of them does not cancel the others.
        callbacks = self._callbacks
        if not callbacks or self.done() or (len(callbacks) == 1 and hasattr(self, "_bounded")):
            return _await(self)
        return self._inner().__await__()

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a reply is awaited, and what it gives is iterated: `for value in await mesh.endpoint.call(...)`"
        )

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
                if not self._is_awaited_beside() and not self._waiting_tasks():
                    self._cancel_all(None)

        self.add_done_callback(outer_done)
        inner.add_done_callback(inner_done)
        return inner

    def _is_awaited_beside(self) -> bool:
        """Whether tasks wait for it that do not await the future itself."""
        return bool(getattr(self, "_inners", None))

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
        loop = self.get_loop()
        if _is_elsewhere(loop):
            loop.call_soon_threadsafe(self.cancel, msg)
            return True
        if self._is_awaited_beside():
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
            runtime.calls.cancel_call(self)
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

    if TYPE_CHECKING:

        async def outcomes(self: Reply[ValueMesh[A]]) -> ValueMesh[A | BaseException]:
            """Of a `call` to a mesh: values and errors by rank, once every rank is accounted for."""
            ...

    def may_be_heard(self) -> bool:
        """Whether it has an error, or may get one, that nobody has looked at."""
        # The future's own flag: true until someone took the exception.
        return not self.done() or self._log_traceback

    def open_ranks(self) -> Sequence[int]:
        """The one rank, until it was answered."""
        return () if self.done() else (0,)

    def fail_ranks(self, errors: Sequence[tuple[int, BaseException]]) -> None:
        """The one rank failed."""
        fail_reply(self, errors[0][1])

    def refuse(self, error: BaseException) -> None:
        """The call cannot be sent."""
        fail_reply(self, error)

    def _block(self, timeout: float | None) -> None:
        loop = self.get_loop()
        refuse_blocking(loop, "result()", "await reply")
        finished = threading.Event()

        def finish(_: object) -> None:
            finished.set()

        loop.call_soon_threadsafe(self.add_done_callback, finish)
        if not finished.wait(timeout):
            # It may be asked for again and again. A loop that is closed by now calls nobody anyway.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self.remove_done_callback, finish)
            raise CallTimeoutError(f"no reply within {timeout} s; the call goes on, cancel() ends it")


# The coroutine side of replies that were given to `create_task`: a few at a time, so not a slot of each reply.
_STEPS: dict[Reply[Any], Generator[Any, None, Any]] = {}


def _steps(reply: Reply[R]) -> Generator[Any, None, R]:
    steps = _STEPS.get(reply)
    if steps is None:
        steps = _STEPS[reply] = _await_whole(reply)
        reply.add_done_callback(lambda _: reply.get_loop().call_soon(_STEPS.pop, reply, None))
    return steps


def _await_whole(reply: Reply[R]) -> Generator[Any, None, R]:
    return (yield from reply.__await__())


def _is_elsewhere(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is another thread than that of the runtime, whose loop this is."""
    runtime = process.running()
    return runtime is not None and runtime.loop is loop and runtime.thread != threading.get_ident()


def refuse_blocking(loop: asyncio.AbstractEventLoop, what: str, instead: str) -> None:
    """Refuse to wait where that would stop a loop, or for one that brings nothing any more.

    Raises:
        BlockingWaitError: A loop runs in this thread, or this is the thread of the loop that has to bring the reply.
        RuntimeError: That loop is closed.
    """
    if loop.is_closed():
        raise RuntimeError(f"{what}: the event loop that had to bring the reply is closed, so it never comes")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        runtime = process.running()
        if runtime is None or runtime.thread != threading.get_ident():
            return
        raise BlockingWaitError(
            f"{what} waits for an event loop that belongs to this thread and does not run now; "
            f"write `{instead}` in a coroutine, or run the loop in a thread of its own"
        ) from None
    raise BlockingWaitError(
        f"{what} would stop the event loop of this thread, which may have to bring the reply; "
        f"write `{instead}` here, or call it in a worker thread"
    )


class FailedReply(Reply[R]):
    """What a reply becomes when an error was set: it reports the error if it is dropped before anyone looked at it."""

    __slots__ = ()

    def __del__(self) -> None:
        unheard = self._log_traceback
        if unheard:
            self._log_traceback = False
        runtime = process.running()
        if runtime is not None:
            error = asyncio.Future.exception(self)
            if error is not None:
                runtime.hearing.reply_dropped(error, heard=not unheard)


# `result()` and `exception()` of a reply that is there do not come as far as Python any more.
quicken(Reply)
let_tasks_take(Reply)
let_tasks_take(FailedReply)


def fail_reply(reply: Reply[Any], error: BaseException) -> None:
    """Give a reply its error; from now on it watches whether somebody hears of it."""
    if reply.done():
        return
    if type(reply) is Reply:
        reply.__class__ = FailedReply
    reply.set_exception(error)


class Broadcast:
    """What `broadcast` gives when there was no room at once: await it to wait for room, or ignore it."""

    __slots__ = ("_room",)

    def __init__(self, room: Callable[[], Awaitable[None]]) -> None:
        # Made when it is awaited: a coroutine that nobody awaits would warn.
        self._room = room

    def __await__(self) -> Generator[Any, None, None]:
        return self._room().__await__()
