"""Ports and streams on their way: which receiver a value is for, and how far its reader has come."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from roost.stops import stopped_error
from roost.waiting import Bell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from roost.channel import PortReceiver, PortSender
    from roost.errors import ActorDied, StoppedError
    from roost.runtime import Runtime

__all__ = ["ALL_TAKEN", "STREAM_WINDOW", "MadeStream", "PortValue", "Ports", "Streams"]

# A value on its way: its pickle, with its large parts when it has any.
PortValue: TypeAlias = "bytes | tuple[bytes, Sequence[Any]]"

# What the end of a port says that it took when it is answered: nothing more is counted.
ALL_TAKEN = (1 << 64) - 1
# Ports that take nothing more, and are remembered for whoever sends to them all the same.
_ENDED_MAX = 1000
# Items of a stream on their way before its generator waits.
STREAM_WINDOW = 64
# What the reader of a stream says: the call, the rank, and how many values it took.
_TAKEN = struct.Struct("<QIQ")


class Ports:
    """The channels that end in this process, and its ways to those of others."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # A receiver that its user dropped takes nothing more.
        self._receivers: WeakValueDictionary[int, PortReceiver[Any]] = WeakValueDictionary()
        self._kept: dict[int, Any] = {}
        self._senders: dict[tuple[int, int], PortSender] = {}
        self._ended: deque[tuple[int, int]] = deque()

    def open(self, port: int, receiver: PortReceiver[Any]) -> None:
        """A channel ends here."""
        self._receivers[port] = receiver

    def keep(self, port: int, end: Any) -> None:
        """The same for an end that nobody else holds."""
        self._kept[port] = end

    def close(self, port: int, senders: Iterable[int]) -> None:
        """A channel's receiver takes no more: whoever waits for room hears of it."""
        self._receivers.pop(port, None)
        self._kept.pop(port, None)
        for sender in senders:
            self._closed(port, sender)

    def sender(self, proc: int, port: int, limit: int) -> PortSender:
        """This process's way to a port."""
        from roost.channel import PortSender

        key = (proc, port)
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = PortSender(self._runtime, proc, port, limit)
        return sender

    def end_of(self, proc: int, port: int) -> ActorDied | None:
        """The error for whoever sends to a port that takes nothing any more, as far as is known here."""
        if proc == self._runtime.proc and port not in self._receivers and port not in self._kept:
            return self._closed_error()
        return self._runtime.members.error_of(proc)

    def _closed_error(self) -> StoppedError:
        return stopped_error("the channel", "its receiver is closed")

    def send(self, proc: int, port: int, what: int, value: PortValue) -> None:
        """Send to a port, here or elsewhere."""
        if proc == self._runtime.proc:
            payload, buffers = (value, None) if isinstance(value, bytes) else value
            self._runtime.loop.call_soon(self.came, port, proc, what, payload, buffers)
        elif not self._runtime.closed:
            self._runtime.node.send_port_item(proc, port, what, value)

    def came(self, port: int, sender: int, what: int, payload: bytes, buffers: Sequence[Any] | None) -> None:
        """A value for a port of this process."""
        receiver = self._receivers.get(port) or self._kept.get(port)
        if receiver is not None:
            receiver.push(sender, what, payload if buffers is None else (payload, buffers))
        else:
            self._closed(port, sender)

    def taken(self, port: int, sender: int, total: int) -> None:
        """A receiver of this process took values."""
        if sender == self._runtime.proc:
            self.took(port, sender, total)
        elif not self._runtime.closed:
            self._runtime.node.port_taken(sender, port, total)

    def took(self, port: int, receiver: int, total: int) -> None:
        """The receiver of a port that we send to took values."""
        sender = self._senders.get((receiver, port))
        if sender is not None:
            sender.taken(total)
            if total == ALL_TAKEN:
                del self._senders[receiver, port]

    def _closed(self, port: int, sender: int) -> None:
        if sender == self._runtime.proc:
            self.ended(port, sender)
        elif not self._runtime.closed:
            self._runtime.node.port_closed(sender, port)

    def ended(self, port: int, receiver: int) -> None:
        """The receiver of a port that we send to takes no more."""
        sender = self._senders.get((receiver, port))
        if sender is None or sender.ended is not None:
            return
        sender.end(self._closed_error())
        self._ended.append((receiver, port))
        if len(self._ended) > _ENDED_MAX:
            self._senders.pop(self._ended.popleft(), None)

    def peer_gone(self, proc: int, error: ActorDied) -> None:
        """A process has ended: so have its ports, and receivers hear that it sends no more."""
        for (receiver, port), sender in list(self._senders.items()):
            if receiver == proc:
                sender.end(error)
                del self._senders[receiver, port]
        for one in [*self._receivers.values(), *self._kept.values()]:
            one.sender_died(proc, error)


class Streams:
    """How far the readers of streams have come, so that generators wait for slow ones."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # Streams that are made here, by (the reader's proc, call, rank): what their readers took, and a bell for their generators.
        self._made: dict[tuple[int, int, int], MadeStream] = {}

    def taken(self, call: int, rank: int, total: int) -> None:
        """The reader of a stream of ours took values; the generator hears of it now and then."""
        if total % (STREAM_WINDOW // 4) == 0:
            proc = self._runtime.node.proc_of(call, rank)
            if proc is not None:
                payload = _TAKEN.pack(call, rank, total)
                if proc == self._runtime.proc:
                    self.took(0, proc, [], payload)
                else:
                    self._runtime.send_system(proc, 1, ".streamed", payload, [])

    def took(self, _mesh: int, sender: int, _ranks: list[tuple[int, int]], payload: bytes) -> None:
        """The reader of a stream that is made here took values."""
        call, rank, total = _TAKEN.unpack(payload)
        made = self._made.get((sender, call, rank))
        if made is not None:
            made.taken = total
            made.bell.ring()

    def behind(self, message: Any, sent: int) -> MadeStream | None:
        """Where to wait for the reader of a stream after so many values; None when it is not too far behind."""
        key = (message.sender, message.call, message.rank)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = MadeStream()
        return made if sent - made.taken >= STREAM_WINDOW else None

    def peer_gone(self, proc: int) -> None:
        """A process has ended: it reads no more, and its next life numbers its calls anew."""
        for key in [key for key in self._made if key[0] == proc]:
            self._made.pop(key).end()

    def done(self, message: Any) -> None:
        """A stream has ended, here or with its reader: whoever waits to go on with it does not."""
        made = self._made.pop((message.sender, message.call, message.rank), None)
        if made is not None:
            made.end()


class MadeStream:
    """How far the reader of one stream has come."""

    __slots__ = ("bell", "is_over", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self.is_over = False
        self.bell = Bell()

    async def room(self, sent: int) -> bool:
        """Wait until it is not too far behind; False when it never will be: it takes no more, or its process has ended."""
        while sent - self.taken >= STREAM_WINDOW and not self.is_over:
            await self.bell.wait()
        return not self.is_over

    def end(self) -> None:
        """Nothing more is taken."""
        self.is_over = True
        self.bell.ring()
