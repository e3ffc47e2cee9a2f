"""Ports and streams on their way: which receiver a value is for, and how far its reader has come."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from roost.errors import StoppedError

if TYPE_CHECKING:
    import asyncio

    from roost.channel import PortReceiver, PortSender
    from roost.runtime import Runtime

__all__ = ["Ports", "Streams"]

# Items of a stream on their way before its generator waits.
STREAM_WINDOW = 64
# What a receiver that is closed says that it took.
_CLOSED = (1 << 64) - 1


class Ports:
    """The channels that end in this process, and its ways to those of others."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._receivers: dict[int, PortReceiver[Any]] = {}
        self._senders: dict[tuple[int, int], PortSender] = {}

    def open(self, port: int, receiver: PortReceiver[Any]) -> None:
        """A channel ends here."""
        self._receivers[port] = receiver

    def close(self, port: int) -> None:
        """A channel's receiver takes no more."""
        self._receivers.pop(port, None)

    def sender(self, proc: int, port: int, limit: int) -> PortSender:
        """This process's way to a port."""
        from roost.channel import PortSender

        key = (proc, port)
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = PortSender(self._runtime, proc, port, limit)
        return sender

    def send(self, proc: int, port: int, what: int, payload: bytes) -> None:
        """Send to a port, here or elsewhere."""
        if proc == self._runtime.proc:
            self._runtime.loop.call_soon(self.came, port, proc, what, payload)
        else:
            self._runtime.node.send_port_item(proc, port, what, payload)

    def came(self, port: int, sender: int, what: int, payload: bytes) -> None:
        """A value for a port of this process."""
        receiver = self._receivers.get(port)
        if receiver is not None:
            receiver.push(sender, what, payload)
        elif sender == self._runtime.proc:
            self.took(port, sender, -1)
        else:
            self._runtime.node.port_taken(sender, port, _CLOSED)

    def taken(self, port: int, sender: int, total: int) -> None:
        """A receiver of this process took values."""
        if sender == self._runtime.proc:
            self.took(port, sender, total)
        else:
            self._runtime.node.port_taken(sender, port, total)

    def took(self, port: int, receiver: int, total: int) -> None:
        """The receiver of a port that we send to took values."""
        sender = self._senders.get((receiver, port))
        if sender is not None:
            if total < 0 or total == _CLOSED:
                sender.end(StoppedError("the channel's receiver is closed"))
            else:
                sender.taken(total)

    def peer_gone(self, proc: int, error: BaseException) -> None:
        """A process has ended: so have its ports, and receivers hear that it sends no more."""
        for (receiver, port), sender in list(self._senders.items()):
            if receiver == proc:
                sender.end(error)
                del self._senders[receiver, port]
        for one in list(self._receivers.values()):
            one.sender_died(proc, error)


class Streams:
    """How far the readers of streams have come, so that generators wait for slow ones."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By (the reader's proc, call, rank).
        self._taken: dict[tuple[int, int, int], int] = {}
        self._waiters: dict[tuple[int, int, int], asyncio.Future[None]] = {}

    def taken(self, call: int, rank: int, total: int) -> None:
        """The reader of a stream of ours took values; the generator hears of it now and then."""
        if total % (STREAM_WINDOW // 4) == 0:
            proc = self._runtime.node.proc_of(call, rank)
            if proc is not None:
                payload = pickle.dumps((call, rank, total), 5)
                if proc == self._runtime.proc:
                    self.took(0, proc, [], payload)
                else:
                    self._runtime.send_system(proc, 1, ".streamed", payload, [])

    def took(self, _mesh: int, sender: int, _ranks: list[tuple[int, int]], payload: bytes) -> None:
        """The reader of a stream that is made here took values."""
        call, rank, total = pickle.loads(payload)
        key = (sender, call, rank)
        self._taken[key] = total
        waiter = self._waiters.pop(key, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def room(self, message: Any, sent: int) -> None:
        """Wait until the reader of a stream is not too far behind."""
        key = (message.sender, message.call, message.rank)
        while sent - self._taken.get(key, 0) >= STREAM_WINDOW:
            waiter = self._waiters[key] = self._runtime.loop.create_future()
            await waiter

    def done(self, message: Any) -> None:
        """A stream ended here."""
        key = (message.sender, message.call, message.rank)
        self._taken.pop(key, None)
        self._waiters.pop(key, None)
