"""`EventStream`: what `mesh.events()` gives."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from roost.failure import Event, Failure
from roost.point import Point
from roost.waiting import Bell

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["EventStream", "now"]


def now() -> datetime:
    """The time, as events carry it."""
    # Not at import: a program that never has an event does not pay for it.
    from datetime import UTC, datetime

    return datetime.now(UTC)


class EventStream(AsyncIterator[Event]):
    """Events from the moment of subscription on; bounded: a slow reader finds one `gap` where the oldest were dropped."""

    def __init__(
        self, limit: int, wants: Callable[[Event], bool] | None = None, closed: Callable[[Any], None] | None = None
    ) -> None:
        self._events: deque[Event] = deque()
        self._limit = limit
        self._wants = wants
        self._closed = closed
        self._ended = False
        self._bell = Bell()

    def push(self, event: Event) -> None:
        """Add an event; the oldest make way when the reader is slow."""
        if self._ended or (self._wants is not None and not self._wants(event)):
            return
        if len(self._events) >= self._limit:
            gap = self._events.popleft()
            if self._events and self._events[0].kind != "gap":
                gap = self._events.popleft()
            if gap.kind != "gap":
                gap = Event(
                    "gap", gap.mesh, gap.mesh, Point({}), 0, gap.at, "events were dropped: the reader is slow", None
                )
            self._events.appendleft(gap)
        self._events.append(event)
        self._bell.ring()

    def end(self) -> None:
        """No more events come."""
        self._ended = True
        self._bell.ring()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            await self._bell.wait()
        return self._events.popleft()

    def __del__(self) -> None:
        if self._closed is not None:
            self._closed(self)


def event(
    kind: Any, mesh: str, name: str, point: Point, incarnation: int, reason: str, failure: Failure | None
) -> Event:
    """An event that happens now."""
    return Event(kind, mesh, name, point, incarnation, now(), reason, failure)


__all__ += ["event"]
