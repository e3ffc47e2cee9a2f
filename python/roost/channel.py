"""Values outside calls: `Channel`, `Port`, `PortReceiver`, the port that answers a call, and `Accumulator`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost import serialize
from roost.errors import RoostError
from roost.ids import new_id
from roost.reply import Reply, fail_reply

if TYPE_CHECKING:
    from roost._roost import Message

__all__ = ["Accumulator", "Channel", "Port", "PortReceiver"]

T = TypeVar("T")
A = TypeVar("A")

VALUE, ERROR, CLOSE = range(3)


class Port(Generic[T]):
    """Where values are sent: an address that may be given to other actors."""

    __slots__ = ("_limit", "_port", "_proc", "_sender")

    def __init__(self, proc: int, port: int, limit: int) -> None:
        self._proc = proc
        self._port = port
        self._limit = limit
        self._sender: Any = None

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Port, (self._proc, self._port, self._limit)

    def _sending(self) -> Any:
        if self._sender is None:
            from roost.process import current

            self._sender = current().ports.sender(self._proc, self._port, self._limit)
        return self._sender

    def send(self, value: T) -> Reply[None]:
        """Send a value. Awaiting it waits for room; not awaiting it buffers.

        Raises:
            ActorDied: the receiver has ended.
        """
        return self._sending().send(VALUE, serialize.dumps_alone(value))  # type: ignore[no-any-return]

    def error(self, error: BaseException) -> Reply[None]:
        """Send an exception: `recv` raises it."""
        return self._sending().send(ERROR, serialize.dump_exception(error))  # type: ignore[no-any-return]

    def close(self) -> Reply[None]:
        """Say that this sender sends no more."""
        return self._sending().send(CLOSE, b"")  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Port({self._port:x} of proc {self._proc:x})"


class PortReceiver(AsyncIterator[T]):
    """Where values arrive: `await receiver.recv()`, or `async for`."""

    def __init__(self, runtime: Any, port: int, limit: int, senders: int) -> None:
        self._runtime = runtime
        self._port = port
        self._limit = limit
        self._senders = senders
        self._queue: deque[tuple[int, int, bytes]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._taken: dict[int, int] = {}
        self._known: set[int] = set()
        self._closed = False

    def push(self, sender: int, what: int, payload: bytes) -> None:
        """Something arrived."""
        self._known.add(sender)
        self._queue.append((sender, what, payload))
        self._wake()

    def sender_died(self, proc: int, error: BaseException) -> None:
        """A proc that had sent something has ended without closing."""
        if proc in self._known:
            self._known.discard(proc)
            self.push(proc, ERROR, serialize.dump_exception(error))
            self._known.discard(proc)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def recv(self) -> T:
        """The next value.

        Raises:
            ActorDied: a sender has ended.
            StopAsyncIteration: every sender has closed the channel (as `async for` ends).
        """
        while True:
            while not self._queue:
                if self._senders <= 0 or self._closed:
                    raise StopAsyncIteration
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            sender, what, payload = self._queue.popleft()
            taken = self._taken[sender] = self._taken.get(sender, 0) + 1
            self._runtime.ports.taken(self._port, sender, taken)
            if what == CLOSE:
                self._senders -= 1
                self._known.discard(sender)
                continue
            if what == ERROR:
                raise serialize.load_exception(payload)
            return serialize.loads(payload)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Take no more values: senders get an error."""
        if not self._closed:
            self._closed = True
            self._runtime.ports.close(self._port)
            self._wake()

    def __aiter__(self) -> PortReceiver[T]:
        return self

    async def __anext__(self) -> T:
        return await self.recv()


class Channel(Generic[T]):
    """`Channel[int].open()`: a port and its receiver."""

    @classmethod
    def open(cls, *, limit: int | None = None, senders: int = 1) -> tuple[Port[T], PortReceiver[T]]:
        """Open a channel that ends in this process.

        Args:
            limit: values that may wait, for each sender, before `await port.send(...)` waits.
            senders: how many `close()` calls end the receiver's iteration.
        """
        from roost.process import current

        runtime = current()
        limit = runtime.config.port_messages_max if limit is None else limit
        if limit < 1:
            raise ValueError(f"limit={limit}: a channel holds at least one value")
        if senders < 1:
            raise ValueError(f"senders={senders}: a channel has at least one sender")
        port = new_id()
        receiver: PortReceiver[T] = PortReceiver(runtime, port, limit, senders)
        runtime.ports.open(port, receiver)
        return Port(runtime.proc, port, limit), receiver


class PortSender:
    """This process's side of a port: numbers what it sends and waits for room."""

    __slots__ = ("_limit", "_port", "_proc", "_runtime", "_sent", "_taken", "_waiting", "ended")

    def __init__(self, runtime: Any, proc: int, port: int, limit: int) -> None:
        self._runtime = runtime
        self._proc = proc
        self._port = port
        self._limit = limit
        self._sent = 0
        self._taken = 0
        self._waiting: deque[tuple[int, Reply[None]]] = deque()
        self.ended: BaseException | None = None

    def send(self, what: int, payload: bytes) -> Reply[None]:
        """Send; the reply is done when there is room for the next."""
        reply: Reply[None] = Reply(loop=self._runtime.loop)
        self._runtime.on_loop(lambda: self._send(what, payload, reply))
        return reply

    def _send(self, what: int, payload: bytes, reply: Reply[None]) -> None:
        if self.ended is None:
            self.ended = self._runtime.members.error_of(self._proc)
        if self.ended is not None:
            fail_reply(reply, self.ended)
            return
        self._sent += 1
        self._runtime.ports.send(self._proc, self._port, what, payload)
        if self._sent - self._taken <= self._limit:
            reply.set_result(None)
        else:
            self._waiting.append((self._sent, reply))

    def taken(self, total: int) -> None:
        """The receiver took so many in all."""
        self._taken = max(self._taken, total)
        while self._waiting and self._waiting[0][0] - self._taken <= self._limit:
            _, reply = self._waiting.popleft()
            if not reply.done():
                reply.set_result(None)

    def end(self, error: BaseException) -> None:
        """The receiver is gone."""
        self.ended = error
        while self._waiting:
            _, reply = self._waiting.popleft()
            fail_reply(reply, error)


class ReplyPort(Generic[T]):
    """The port that an endpoint with `reply="port"` is handed: answers its call, later, many times, or from elsewhere."""

    __slots__ = ("_message", "_runner")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._runner = message.runner

    def send(self, value: T) -> Reply[None]:
        """Answer. A call takes one answer; a stream takes many, until `close()`."""
        runtime = self._runner.hosted.runtime
        done: Reply[None] = Reply(loop=runtime.loop)

        def answer() -> None:
            try:
                if self._message.wants_stream:
                    self._message.item(value)
                else:
                    self._message.reply(value)
            except Exception as error:
                fail_reply(done, error)
            else:
                done.set_result(None)

        runtime.on_loop(answer)
        return done

    def error(self, error: BaseException) -> None:
        """Answer with an exception."""
        runner, message = self._runner, self._message
        runner.hosted.runtime.on_loop(lambda: runner.answer_error(message, error))

    def close(self) -> None:
        """End a stream of answers."""
        message = self._message
        self._runner.hosted.runtime.on_loop(lambda: message.end() if message.wants_stream else self._dropped())

    def _dropped(self) -> None:
        if not self._message.answered:
            self._runner.answer_error(
                self._message, RoostError(f"the port of {self._message.name} was closed without an answer")
            )

    def __del__(self) -> None:
        message = self._message
        if message.answered or not message.has_caller:
            return
        if message.wants_stream:
            self.close()
        else:
            text = f"the port of {message.name} was dropped without an answer"
            self._runner.hosted.runtime.on_loop(lambda: self._runner.answer_error(message, RoostError(text)))


class Accumulator(Generic[A]):
    """Folds the answers of a mesh as they come.

    Args:
        endpoint: an endpoint on a mesh, as `mesh.score`.
        identity: what the fold begins with.
        combine: `combine(so_far, answer)`.
    """

    def __init__(self, endpoint: Any, identity: A, combine: Callable[[A, Any], A]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: Any, **kwargs: Any) -> Reply[A]:
        """Call every rank with these arguments, and fold the answers."""
        from roost.process import current

        runtime = current()
        stream = self._endpoint.stream(*args, **kwargs)
        reply: Reply[A] = Reply(loop=runtime.loop)

        async def fold() -> None:
            result = self._identity
            try:
                async for _, value in stream:
                    result = self._combine(result, value)
            except BaseException as error:
                fail_reply(reply, error)
                await stream.aclose()
            else:
                if not reply.done():
                    reply.set_result(result)

        def begin() -> None:
            task = runtime.keep(fold())
            reply.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)

        runtime.on_loop(begin)
        return reply


__all__ += ["PortSender", "ReplyPort"]
