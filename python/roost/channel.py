"""Values outside calls: `Channel`, `Port`, `PortReceiver`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from roost import serialize
from roost._roost import INLINE_BYTES_MAX
from roost.errors import MessageTooLargeError
from roost.ids import new_id
from roost.reply import Reply, fail_reply
from roost.values import check_integer
from roost.waiting import Bell

if TYPE_CHECKING:
    from roost.errors import ActorDied
    from roost.ports import PortValue
    from roost.runtime import Runtime

__all__ = ["Channel", "Port", "PortReceiver"]

T = TypeVar("T")

VALUE, ERROR, CLOSE, HOLDS = range(4)


class Port(Generic[T]):
    """Where values are sent: an address that may be given to other actors."""

    __slots__ = ("_limit", "_port", "_proc", "_sender")

    def __init__(self, proc: int, port: int, limit: int) -> None:
        self._proc = proc
        self._port = port
        self._limit = limit
        self._sender: PortSender | None = None

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Port, (self._proc, self._port, self._limit)

    def _sending(self) -> PortSender:
        from roost.process import of_job

        # Asked each time: it refuses a forked child, a loop that is not this job's, and what a job that has ended left.
        runtime = of_job("the channel", self._proc)
        if self._sender is None:
            self._sender = runtime.ports.sender(self._proc, self._port, self._limit)
        return self._sender

    def send(self, value: T) -> Reply[None]:
        """Send a value. Awaiting it waits for room; not awaiting it buffers.

        Raises:
            ActorDied: the receiver has ended.
            TypeError: the value cannot be pickled.
            MessageTooLargeError: it passes the limit of a message.
        """
        return self._sending().send(VALUE, value)

    def error(self, error: BaseException) -> Reply[None]:
        """Send an exception: `recv` raises it."""
        return self._sending().send(ERROR, serialize.dump_exception(error))

    def close(self) -> Reply[None]:
        """Say that this sender sends no more."""
        return self._sending().send(CLOSE, b"")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Port) and (other._proc, other._port) == (self._proc, self._port)

    def __hash__(self) -> int:
        return hash((self._proc, self._port))

    def __repr__(self) -> str:
        return f"Port({self._port:x} of proc {self._proc:x})"


class PortReceiver(AsyncIterator[T]):
    """Where values arrive: `await receiver.recv()`, or `async for`. Dropping it closes it."""

    def __init__(self, runtime: Runtime, port: int, senders: int) -> None:
        self._runtime = runtime
        self._port = port
        self._senders = senders
        self._queue: deque[tuple[int, int, PortValue | ActorDied]] = deque()
        self._bell = Bell()
        # By the sender's proc: how many values were taken of it.
        self._taken: dict[int, int] = {}
        # Procs that sent something and have not closed.
        self._known: set[int] = set()
        self._closed = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PortReceiver stays where its channel was opened: send the Port, or open the channel there")

    def push(self, sender: int, what: int, value: PortValue | ActorDied) -> None:
        """Something arrived."""
        self._known.add(sender)
        self._queue.append((sender, what, value))
        self._bell.ring()

    def sender_died(self, proc: int, error: ActorDied) -> None:
        """A proc has ended: it will not close what it began to send."""
        if proc in self._known:
            self._runtime.hearing.carried(error.failure, self)
            # Each receiver raises an error of its own.
            self.push(proc, ERROR, type(error)(None, error.failure, maybe_executed=error.maybe_executed))
            self.push(proc, CLOSE, b"")
        # Its next incarnation counts from the start.
        self._taken.pop(proc, None)

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
                await self._bell.wait()
            sender, what, value = self._queue.popleft()
            if what == CLOSE:
                self._senders -= 1
                self._known.discard(sender)
                if self._senders <= 0:
                    self._bell.ring()
            if sender in self._known or what == CLOSE:
                taken = self._taken[sender] = self._taken.get(sender, 0) + 1
                self._runtime.ports.taken(self._port, sender, taken)
            if isinstance(value, BaseException):
                self._runtime.hearing.got(value)
                raise value
            if what == ERROR:
                assert isinstance(value, bytes)
                raise serialize.load_exception(value)
            if what == VALUE:
                loaded: T = (
                    serialize.loads(value) if isinstance(value, bytes) else serialize.loads(value[0], buffers=value[1])
                )
                return loaded

    def may_be_heard(self) -> bool:
        """Whether a death waits to be read."""
        return not self._closed

    def close(self) -> None:
        """Take no more values: senders get an error."""
        if not self._closed:
            self._closed = True
            self._runtime.ports.close(self._port, self._met())
            self._bell.ring()
            self._miss_deaths()

    def _met(self) -> set[int]:
        """Procs that live and have sent something, those that have closed too: each keeps an end of its own until it is told."""
        return self._known | self._taken.keys()

    def _miss_deaths(self) -> None:
        """What was not read is not read any more."""
        for _, _, value in self._queue:
            if isinstance(value, BaseException):
                self._runtime.hearing.missed(value)

    def __del__(self) -> None:
        self._miss_deaths()
        runtime = self._runtime
        if not self._closed and not runtime.closed and not runtime.loop.is_closed():
            senders = self._met()
            runtime.on_loop(lambda: runtime.ports.close(self._port, senders))

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

        Raises:
            TypeError, ValueError: a number that is not whole, or below 1.
        """
        from roost.process import current

        if limit is not None:
            check_integer("Channel.open()", "limit", limit, least=1, instead="a channel holds at least one value")
        check_integer("Channel.open()", "senders", senders, least=1, instead="a channel has at least one sender")
        runtime = current()
        limit = runtime.config.port_messages_max if limit is None else limit
        port = new_id()
        receiver: PortReceiver[T] = PortReceiver(runtime, port, senders)
        runtime.ports.open(port, receiver)
        return Port(runtime.proc, port, limit), receiver


class PortSender:
    """This process's side of a port: numbers what it sends and waits for room."""

    __slots__ = ("_limit", "_port", "_proc", "_runtime", "_sent", "_taken", "_waiting", "ended")

    def __init__(self, runtime: Runtime, proc: int, port: int, limit: int) -> None:
        self._runtime = runtime
        self._proc = proc
        self._port = port
        self._limit = limit
        self._sent = 0
        self._taken = 0
        self._waiting: deque[tuple[int, Reply[None]]] = deque()
        self.ended: BaseException | None = None

    def send(self, what: int, value: Any) -> Reply[None]:
        """Send; the reply is done when there is room for the next."""
        captured = self._captured(value) if what == VALUE else value
        reply: Reply[None] = Reply(loop=self._runtime.loop)
        self._runtime.on_loop(lambda: self._send(what, captured, reply))
        return reply

    def _captured(self, value: Any) -> PortValue:
        captured: PortValue = self._runtime.sharing.dump(value, self._proc)
        size, inline = self._runtime.sharing.sizes_of(captured)
        limit, what = self._runtime.config.message_bytes_max, "value for a port"
        if size > limit:
            raise MessageTooLargeError(size, limit, "message_bytes_max", what)
        if inline > INLINE_BYTES_MAX and self._runtime.node.is_near(self._proc):
            raise MessageTooLargeError(inline, INLINE_BYTES_MAX, "", what)
        return captured

    def _send(self, what: int, value: PortValue, reply: Reply[None]) -> None:
        if self.ended is None:
            self.ended = self._runtime.ports.end_of(self._proc, self._port)
        if self.ended is not None:
            fail_reply(reply, self.ended)
            return
        self._sent += 1
        self._runtime.ports.send(self._proc, self._port, what, value)
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


__all__ += ["PortSender"]
