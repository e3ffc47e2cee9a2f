"""Verbs that are used on other threads than the loop's: packed there, sent by the loop, in each thread's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roost.context import handling
from roost.reply import Reply, fail_reply

if TYPE_CHECKING:
    from roost.context import Handling
    from roost.hooks import Sink
    from roost.runtime import Runtime

__all__ = ["Elsewhere"]


class Elsewhere:
    """The way from other threads to the loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def call(self, verb: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send from another thread."""
        loop = self._runtime.loop
        packed = self._runtime.calls.pack(verb, args if not verb.is_stream else args[1:], kwargs)
        if verb.is_broadcast:
            done: Reply[None] = Reply(loop=loop)
            loop.call_soon_threadsafe(self._broadcast, verb, packed, done)
            return done
        sink: Sink = args[0] if verb.is_stream else verb.new_sink()
        loop.call_soon_threadsafe(self._send, verb, sink, packed, handling.get())
        return sink

    def _send(self, verb: Any, sink: Sink, packed: Any, scope: Handling | None) -> None:
        if not sink.open_ranks():
            return
        token = handling.set(scope)
        try:
            verb.send_packed(sink, packed)
        except Exception as error:
            sink.refuse(error)
        finally:
            handling.reset(token)

    def _broadcast(self, verb: Any, packed: Any, done: Reply[None]) -> None:
        try:
            verb.send_packed(None, packed)
        except Exception as error:
            fail_reply(done, error)
        else:
            done.set_result(None)
