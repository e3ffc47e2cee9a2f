"""What Python lends to the data lane: `roost.hooks` says what each is called with."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from roost._roost import Done
from roost.context import handling
from roost.gathered import GatheredReply
from roost.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost._roost import Message
    from roost.runner import Runner
    from roost.runtime import Runtime

__all__ = ["Lent"]


class Lent:
    """The hooks of a runtime: each is a method of one of its rooms."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        calls, sharing, ports = runtime.calls, runtime.sharing, runtime.ports
        self.dumps, self.loads = pickle.dumps, pickle.loads
        self.dumps_parts = sharing.dump
        self.loads_parts = _loads_parts
        self.map, self.offer, self.released = sharing.map, sharing.offer, sharing.release_soon
        self.reply, self.gathered_reply = Reply, GatheredReply
        self.begin, self.bounded, self.refused = calls.begin, calls.bounded, calls.refused
        self.errored, self.dropped, self.unloadable = calls.errored, calls.dropped, calls.unloadable
        self.pack, self.elsewhere, self.too_large = calls.pack, calls.elsewhere, calls.too_large
        self.unsendable, self.unsent = calls.unsendable, calls.unsent
        self.handling = handling.get
        self.stopped, self.room, self.sent = calls.stopped, calls.room, Done()
        self.loop, self.connect, self.broken = runtime.loop, runtime.connect, runtime.broken
        self.redial, self.post = runtime.redial, runtime.post
        self.session_lost = runtime.members.session_lost
        self.system = runtime.system
        self.say_news = runtime.news.say
        self.work = runtime.workers.start
        self.cancelled = _cancelled
        self.undelivered = runtime.letters.bounced
        self.port_item, self.port_taken, self.port_closed = ports.came, ports.took, ports.ended

    def suspect(self, *message: Any) -> None:
        """A message has to wait for an endpoint that waits for it, as it seems: of a room that is made at first use."""
        self._runtime.deadlocks.suspect(*message)


def _loads_parts(payload: bytes, buffers: Sequence[Any]) -> Any:
    return pickle.loads(payload, buffers=buffers)


def _cancelled(runner: Runner, message: Message) -> None:
    runner.cancel(message)
