"""`Watch`: who in this process is to hear of the end of other processes. One call to each of them, which never ends, tells."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING
from weakref import WeakSet

from roost.desk import desk_of
from roost.errors import ActorDied
from roost.shape import SCALAR

if TYPE_CHECKING:
    import asyncio

    from roost.collectives.group import Group
    from roost.runtime import Runtime

__all__ = ["Watch"]


class Watch:
    """The processes that the groups of this one have members in."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._followed: dict[int, tuple[WeakSet[Group], asyncio.Task[None]]] = {}

    def follow(self, group: Group) -> None:
        """Have a group hear, once, of the end of each process that it has members in."""
        for proc in {member.proc for member in group.members} - {self._runtime.proc}:
            if proc not in self._followed:
                self._followed[proc] = WeakSet(), self._runtime.keep(self._hear_end(proc), Context())
            self._followed[proc][0].add(group)

    def leave(self, group: Group) -> None:
        """It is to hear of nothing any more."""
        for proc, (listening, task) in list(self._followed.items()):
            listening.discard(group)
            if not listening:
                del self._followed[proc]
                task.cancel()

    async def _hear_end(self, proc: int) -> None:
        try:
            await desk_of(self._runtime, proc).ended.call_one(proc, SCALAR)
        except ActorDied as death:
            listening, _ = self._followed.pop(proc)
            for group in list(listening):
                group.member_died(proc, death.failure)
