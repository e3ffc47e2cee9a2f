"""`Meetings`: where the members of a group find each other, at the process of the first of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roost.ids import new_id
from roost.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Hashable

    from roost.desk import Desk

__all__ = ["Arrival", "Meetings", "Met", "Missing"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a member says of itself."""

    rank: int
    proc: int
    backend: str
    """The library that it wants."""
    card: Any
    """What that library has to know of it."""


@dataclass(frozen=True, slots=True)
class Met:
    """All have come."""

    id: int
    """What they call the group from now on."""
    members: tuple[Arrival, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """They have not come in time."""

    ranks: tuple[int, ...]


class _Meeting:
    def __init__(self) -> None:
        self.arrived: dict[int, tuple[Arrival, Reply[Met]]] = {}


class Meetings:
    """The meetings that this process gives room to."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        # A member that comes twice, because it wants two groups, waits for the next meeting.
        self._open: dict[Hashable, list[_Meeting]] = {}

    async def meet(self, key: Hashable, size: int, arrival: Arrival, timeout_s: float) -> Met | Missing:
        """Wait until all have come.

        Args:
            key: what they call the group until they have met.
            size: how many they are.
            arrival: who comes.
            timeout_s: how long it waits.
        """
        runtime = self._desk.runtime
        reply: Reply[Met] = Reply(loop=runtime.loop)
        meetings = self._open.setdefault(key, [])
        meeting = next((one for one in meetings if arrival.rank not in one.arrived), None)
        if meeting is None:
            meeting = _Meeting()
            meetings.append(meeting)
        meeting.arrived[arrival.rank] = arrival, reply
        if len(meeting.arrived) == size:
            self._leave(key, meeting)
            members = tuple(meeting.arrived[rank][0] for rank in range(size))
            met = Met(new_id(), members)
            for _, waiting in meeting.arrived.values():
                waiting.set_result(met)
        missing: list[int] = []
        timer = runtime.loop.call_later(timeout_s, self._give_up, meeting, size, reply, missing)
        try:
            # Until its process ends, if that comes first.
            return await self._desk.until(reply)
        except TimeoutError:
            return Missing(tuple(missing))
        finally:
            timer.cancel()
            if meeting.arrived.get(arrival.rank, (None, None))[1] is reply and meeting in self._open.get(key, ()):
                del meeting.arrived[arrival.rank]
                if not meeting.arrived:
                    self._leave(key, meeting)

    def _leave(self, key: Hashable, meeting: _Meeting) -> None:
        self._open[key].remove(meeting)
        if not self._open[key]:
            del self._open[key]

    def _give_up(self, meeting: _Meeting, size: int, reply: Reply[Met], missing: list[int]) -> None:
        if not reply.done():
            missing += [rank for rank in range(size) if rank not in meeting.arrived]
            reply.set_exception(TimeoutError())
