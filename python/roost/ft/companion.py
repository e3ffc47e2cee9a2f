"""`Companion`: the second actor of each trainer's proc. It answers on the loop while the training loop holds the trainer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NoReturn

from roost.actor import Actor
from roost.context import context
from roost.endpoint import endpoint
from roost.ft.ending import End, TrainingOver
from roost.ft.seat import take_seat
from roost.ft.staging import FINAL_ID
from roost.last_resort import end_process

if TYPE_CHECKING:
    from roost.ft.quorum import Report
    from roost.ft.staging import Staged
    from roost.ft.timeouts import Timeouts

__all__ = ["ALL_BEFORE", "Companion"]

ALL_BEFORE = -1
"""In place of a quorum's id: whatever group there is."""


class Companion(Actor):
    """What the coordinator talks to in a trainer's proc.

    Args:
        timeouts: the job's.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        point = context().point
        self._seat = take_seat(point["replicas"], point["procs"])
        self._timeouts = timeouts
        self._watching: asyncio.Task[None] | None = None
        self._staging: asyncio.Task[None] | None = None

    async def __start__(self) -> None:
        self._watching = asyncio.create_task(self._watch_training())

    async def __cleanup__(self, exc: BaseException | None) -> None:
        for task in (self._watching, self._staging):
            if task is not None:
                task.cancel()

    async def __healthy__(self) -> bool:
        return True

    @endpoint(concurrent=True)
    async def report(self) -> Report | None:
        """What this proc knows, for a coordinator that knows nothing."""
        return self._seat.report()

    @endpoint(concurrent=True)
    async def outlive(self) -> None:
        """Never answer: who calls hears at once when this proc ends."""
        await asyncio.get_running_loop().create_future()

    @endpoint(concurrent=True)
    async def abort(self, quorum_id: int, reason: str) -> float:
        """End what this proc's group is doing where that is a quorum's up to this one; the time when it was ended."""
        group = self._seat.group
        if group is not None:
            group.abort(reason, None if quorum_id == ALL_BEFORE else quorum_id)
        return time.time()

    @endpoint(concurrent=True)
    async def renew(self, reason: str) -> None:
        """The quorum service was restarted, or will not answer: who waits for it begins anew."""
        renew = self._seat.renew
        if renew is not None:
            await asyncio.to_thread(renew, reason)

    @endpoint(concurrent=True)
    async def staged(self, quorum_id: int, step: int) -> Staged:
        """What this member has staged for those that heal from it in a quorum, once it has."""
        return await self._seat.shelf.get(quorum_id, step)

    @endpoint(concurrent=True)
    async def final(self) -> Staged:
        """What this member's training has ended with, staged when it is first asked for."""
        if self._staging is None:
            self._staging = asyncio.create_task(self._stage_final())
        await asyncio.shield(self._staging)
        return await self._seat.shelf.get(FINAL_ID, 0)

    @endpoint(concurrent=True)
    async def quit(self, reason: str) -> None:
        """Have the training thread end at its next step: a stop does not reach it."""

        def over() -> NoReturn:
            raise TrainingOver(End(error=reason))

        self._seat.fault = over

    @endpoint(concurrent=True)
    async def suffer(self, kind: str, seconds: float) -> None:
        """Have a failure, for tests."""
        from roost.ft.suffering import suffer

        suffer(self._seat, kind, seconds)

    @endpoint(concurrent=True)
    async def cut_off(self, seconds: float, network: str) -> None:
        """Have this host cut off for a while, for tests."""
        from roost.ft.suffering import cut_off

        cut_off(seconds, network)

    async def _stage_final(self) -> None:
        stage = await asyncio.wrap_future(self._seat.ended)
        await asyncio.to_thread(stage)

    async def _watch_training(self) -> None:
        """End this process when its training thread stands still: only its end frees what the thread holds."""
        progress = self._seat.progress
        while True:
            await asyncio.sleep(self._timeouts.look_s)
            overdue = progress.overdue()
            if overdue is not None:
                end_process("roost.ft", f"training stands still in {overdue!r}, for more than it is allowed")
