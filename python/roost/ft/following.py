"""`Following`: hears of the end of each trainer's proc, by a call to it that never ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roost.errors import ActorDied

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.ft.companion import Companion
    from roost.ft.ledger import Ledger
    from roost.ft.quorum import Member, Report

__all__ = ["Following"]


@dataclass(slots=True)
class _Followed:
    """A proc whose death is to be heard, and the life that it is known by."""

    life: int | None
    task: asyncio.Task[None]


class Following:
    """Follows all procs of a job's trainers, on the loop of a quorum service.

    Args:
        companions: one beside each trainer, with the dimensions `replicas` and `procs`.
        ledger: what is told of each death.
        heard: told once of each proc what it knows, or None.
        died: told of each death: the replica, its life where that is known, and why.
    """

    def __init__(
        self,
        companions: Companion,
        ledger: Ledger,
        heard: Callable[[int, int, Report | None], None],
        died: Callable[[int, int | None, str], None],
    ) -> None:
        self._companions = companions
        self._ledger = ledger
        self._heard = heard
        self._died = died
        self._followed: dict[tuple[int, int], _Followed] = {}

    def begin(self, replicas: int, procs: int) -> None:
        """Follow all that there are."""
        for replica in range(replicas):
            for proc in range(procs):
                self._follow(replica, proc, None)

    def end(self) -> None:
        """Hear of nothing more."""
        for one in self._followed.values():
            one.task.cancel()

    def hear_of(self, member: Member) -> None:
        """Hear of the death of who speaks, in the life in which it speaks."""
        known = self._followed.get((member.replica, member.proc))
        if known is None or known.life not in (None, member.life):
            if known is not None:
                known.task.cancel()
            self._follow(member.replica, member.proc, member.life)
        else:
            known.life = member.life

    def _follow(self, replica: int, proc: int, life: int | None) -> None:
        task = asyncio.create_task(self._hear_end(replica, proc))
        self._followed[replica, proc] = _Followed(life, task)

    async def _hear_end(self, replica: int, proc: int) -> None:
        """Ask a proc what it knows, and wait for its end."""
        companion = self._companions.slice(replicas=replica, procs=proc)
        try:
            report = await companion.report.call_one()
            if report is not None and self._followed[replica, proc].life is None:
                self._followed[replica, proc].life = report.life
            self._heard(replica, proc, report)
            await companion.outlive.call_one()
        except ActorDied as death:
            heard_at = time.time()
            life = self._followed.pop((replica, proc)).life
            self._ledger.heard.broadcast(replica, heard_at)
            self._died(replica, life, death.failure.summary)
