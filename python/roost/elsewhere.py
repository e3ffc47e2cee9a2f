"""Verbs that are used on other threads than the loop's: packed there, sent by the loop, in each thread's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roost.context import handling
from roost.reply import Broadcast, Reply, fail_reply

if TYPE_CHECKING:
    from roost.context import Handling
    from roost.hooks import Sink
    from roost.runtime import Runtime

__all__ = ["Elsewhere"]


class Elsewhere:
    """The way from other threads to the loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By the mesh and its procs: the broadcasts that wait for room on the way there.
        self._waiting: dict[tuple[int, ...], list[Reply[None]]] = {}

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
            sent = verb.send_packed(None, packed)
        except Exception as error:
            fail_reply(done, error)
            return
        if not isinstance(sent, Broadcast):
            _end([done])
            return
        way = (verb.mesh._id, *verb.procs)
        waiting = self._waiting.setdefault(way, [])
        waiting.append(done)
        if len(waiting) == 1:
            self._runtime.keep(self._wait_for_room(way, sent))

    async def _wait_for_room(self, way: tuple[int, ...], sent: Broadcast) -> None:
        """One waits for all that do: most broadcasts are ignored, and a flood is many."""
        try:
            await sent
        finally:
            _end(self._waiting.pop(way))


def _end(broadcasts: list[Reply[None]]) -> None:
    for done in broadcasts:
        if not done.done():
            done.set_result(None)
