"""`ReplyPort`: the port that answers a call, here or from wherever it was sent to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost import serialize
from roost.channel import CLOSE, ERROR, HOLDS, VALUE, Port
from roost.errors import RoostError
from roost.ids import new_id
from roost.ports import ALL_TAKEN, STREAM_WINDOW
from roost.reply import Reply, fail_reply
from roost.stops import stopped_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost._roost import Message
    from roost.errors import ActorDied
    from roost.ports import MadeStream, PortValue

__all__ = ["ReplyPort"]

T = TypeVar("T")


class ReplyPort(Generic[T]):
    """The port that an endpoint with `reply="port"` is handed: answers its call, later, many times, or from elsewhere."""

    __slots__ = ("_elsewhere", "_message", "_runner")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._runner = message.runner
        # Where holders in other processes send to, once there are any.
        self._elsewhere: _FromElsewhere | None = None

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        if self._elsewhere is None:
            self._elsewhere = _FromElsewhere(self._runner, self._message)
        port = self._elsewhere
        return _held, (port.proc, port.port, port.limit)

    def send(self, value: T) -> Reply[None]:
        """Answer. A call takes one answer; a stream takes many, until `close()`.

        Awaiting it waits while the reader of a stream is too far behind; not awaiting it buffers.

        Raises:
            StoppedError: by the reply: the reader of the stream has let it go, or its process has ended.
            TypeError, MessageTooLargeError: by the reply: the value cannot travel.
        """
        message, runtime = self._message, self._runner.hosted.runtime
        done: Reply[None] = Reply(loop=runtime.loop)

        def answer() -> None:
            try:
                sent = _answer(message, value)
            except Exception as error:  # noqa: BLE001 - a value that cannot travel: whoever awaits the send hears of it
                fail_reply(done, error)
                return
            behind = runtime.streams.behind(message, sent) if sent else None
            if sent is None:
                fail_reply(done, _let_go_error(message))
            elif behind is not None:
                runtime.keep(_let_go_on(behind, message, sent, done))
            else:
                done.set_result(None)

        runtime.on_loop(answer)
        return done

    def error(self, error: BaseException) -> Reply[None]:
        """Answer with an exception."""
        runner, message = self._runner, self._message
        return self._said(lambda: runner.answer_error(message, error))

    def close(self) -> Reply[None]:
        """End a stream of answers."""
        runner, message = self._runner, self._message
        return self._said(lambda: _end(runner, message, "closed"))

    def _said(self, say: Callable[[], None]) -> Reply[None]:
        """What nobody has to wait for, to be awaited as of any port."""
        runtime = self._runner.hosted.runtime
        done: Reply[None] = Reply(loop=runtime.loop)

        def now() -> None:
            say()
            done.set_result(None)

        runtime.on_loop(now)
        return done

    def __del__(self) -> None:
        runner, message = self._runner, self._message
        if self._elsewhere is None and message.has_caller and not message.answered:
            runner.hosted.runtime.on_loop(lambda: _end(runner, message, "dropped"))


class _FromElsewhere:
    """The end of a reply port that was sent on: what its holders send is the answer, and their death its error."""

    def __init__(self, runner: Any, message: Message) -> None:
        self._runner = runner
        self._message = message
        runtime = self._runtime = runner.hosted.runtime
        self.proc: int = runtime.proc
        self.port = new_id()
        self.limit: int = STREAM_WINDOW if message.wants_stream else runtime.config.port_messages_max
        self._holders: set[int] = set()
        self._taken: dict[int, int] = {}
        runtime.on_loop(lambda: runtime.ports.keep(self.port, self))

    def push(self, sender: int, what: int, value: PortValue) -> None:
        """A holder answers, or says that it holds the port."""
        self._holders.add(sender)
        if what == HOLDS:
            return
        runner, message, sent = self._runner, self._message, None
        try:
            if what == VALUE:
                sent = _answer(
                    message,
                    serialize.loads(value) if isinstance(value, bytes) else serialize.loads(value[0], buffers=value[1]),
                )
                if sent is None:
                    self._runtime.ports.close(self.port, self._holders)
            elif what == ERROR:
                assert isinstance(value, bytes)
                runner.answer_error(message, serialize.load_exception(value))
            elif what == CLOSE:
                _end(runner, message, "closed")
        except Exception as error:  # noqa: BLE001 - a value that does not unpickle here, or cannot travel on
            runner.answer_error(message, error)
        behind = self._runtime.streams.behind(message, sent) if sent else None
        if behind is not None and sent is not None:
            # Whoever sends has as much room there as is on its way to the reader.
            self._runtime.keep(self._take_later(behind, sender, sent))
        else:
            self._took(sender)
        if message.answered:
            self._close()

    async def _take_later(self, behind: MadeStream, sender: int, sent: int) -> None:
        await behind.room(sent)
        self._took(sender)

    def _took(self, sender: int) -> None:
        taken = self._taken[sender] = self._taken.get(sender, 0) + 1
        self._runtime.ports.taken(self.port, sender, taken)

    def _close(self) -> None:
        """It was answered: who holds it needs no way here any more."""
        for holder in self._holders:
            self._runtime.ports.taken(self.port, holder, ALL_TAKEN)
        self._runtime.ports.close(self.port, ())

    def sender_died(self, proc: int, error: ActorDied) -> None:
        """A holder has ended; when it was the last one nobody can answer any more."""
        self._holders.discard(proc)
        if not self._holders and not self._message.answered:
            self._runner.answer_error(self._message, error)
            self._close()


def _held(proc: int, port: int, limit: int) -> Port[Any]:
    """A reply port in another process: it says that it is held, so that the death of its holder fails the call."""
    from roost.process import current

    held: Port[Any] = Port(proc, port, limit)
    runtime = current()
    runtime.on_loop(lambda: runtime.ports.send(proc, port, HOLDS, b""))
    return held


def _answer(message: Message, value: Any) -> int | None:
    """Answer a call, or give one more value to a stream: how many that has now, 0 for a call, None where nobody reads it."""
    if message.wants_stream:
        return None if message.cancelled else message.item(value)
    message.reply(value)
    return 0


async def _let_go_on(behind: MadeStream, message: Message, sent: int, done: Reply[None]) -> None:
    """Tell who sends when the reader is not too far behind any more."""
    has_room = await behind.room(sent)
    if done.done():
        return
    if has_room:
        done.set_result(None)
    else:
        fail_reply(done, _let_go_error(message))


def _let_go_error(message: Message) -> Exception:
    return stopped_error(f"the stream of {message.name}", "its reader takes no more")


def _end(runner: Any, message: Message, how: str) -> None:
    """No more answers come: right for a stream, wrong for a call that has none."""
    if message.answered:
        return
    if message.wants_stream:
        message.end()
        runner.hosted.runtime.streams.done(message)
    else:
        runner.answer_error(message, RoostError(f"the port of {message.name} was {how} without an answer"))
