"""`Coordinator`: the supervised actor around `Quorums`. It hears of deaths by calls that never end, and answers when it can.

When it dies its next life asks every replica what it knows, and goes on from there.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roost.actor import Actor
from roost.context import context
from roost.endpoint import endpoint
from roost.errors import ActorDied
from roost.ft.companion import ALL_BEFORE
from roost.ft.ending import End
from roost.ft.quorum import Condemned, Decision, Ended, Formed, Output, Quorum, Quorums, Stopped

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from roost.channel import Port
    from roost.ft.companion import Companion
    from roost.ft.ledger import Ledger
    from roost.ft.quorum import Ask
    from roost.ft.stores import Stores

__all__ = ["Coordinator", "Grant", "Member"]

_STORES_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Member:
    """Who asks and votes: a proc in one life of its replica."""

    replica: int
    proc: int
    life: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A quorum, and where its members find each other."""

    quorum: Quorum
    store: str


@dataclass(slots=True)
class _Followed:
    """A proc whose death is to be heard, and the life that it is known by."""

    life: int | None
    task: asyncio.Task[None]


class Coordinator(Actor):
    """Forms quorums of the replicas and decides steps.

    Args:
        companions: one beside each trainer, with the dimensions `replicas` and `procs`.
        stores: where quorums get their stores.
        ledger: what is told of incidents.
        replicas: how many there are.
        procs: how many procs each has.
        min_replicas: the least that train.
    """

    def __init__(
        self, companions: Companion, stores: Stores, ledger: Ledger, replicas: int, procs: int, min_replicas: int
    ) -> None:
        self._companions = companions
        self._stores = stores
        self._ledger = ledger
        self._epoch = context().incarnation
        self._machine = Quorums(self._epoch, replicas, procs, min_replicas)
        # Whether this is a later life that has not heard all yet.
        self._is_recovering = self._epoch > 0
        self._seats = [(replica, proc) for replica in range(replicas) for proc in range(procs)]
        self._followed: dict[tuple[int, int], _Followed] = {}
        self._asks: dict[Member, Port[Grant | End]] = {}
        self._votes: dict[Member, tuple[Decision, Port[bool]]] = {}
        self._store = ""
        self._end: End | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __start__(self) -> None:
        for replica, proc in self._seats:
            self._follow(replica, proc, None)

    async def __cleanup__(self, exc: BaseException | None) -> None:
        for task in (*self._tasks, *(one.task for one in self._followed.values())):
            task.cancel()

    async def __healthy__(self) -> bool:
        return True

    @endpoint(reply="port", concurrent=True)
    async def ask(self, port: Port[Grant | End], member: Member, ask: Ask) -> None:
        """Want to take the next step: answered with the quorum, once it is formed, or with the end."""
        self._hear_of(member)
        if self._end is not None:
            port.send(self._end)
            return
        self._asks = {one: waiting for one, waiting in self._asks.items() if _seat(one) != _seat(member)}
        self._asks[member] = port
        self._apply(self._machine.asked(member.replica, member.life, member.proc, ask))

    @endpoint(reply="port", concurrent=True)
    async def vote(self, port: Port[bool], member: Member, vote: Decision) -> None:
        """Say whether a step went well: answered with whether it counts, once all have said so."""
        self._hear_of(member)
        self._votes[member] = vote, port
        self._apply(self._machine.voted(member.replica, member.life, member.proc, vote))

    @endpoint(concurrent=True)
    async def lose(self, replica: int, reason: str) -> None:
        """The job's owner says that a replica does not come back."""
        self._apply(self._machine.lost(replica, reason))

    @endpoint(concurrent=True)
    async def finish(self, reason: str) -> None:
        """Whoever waits or asks is told that there is no next step."""
        if self._end is None:
            self._end_with(End(error=reason))

    def _hear_of(self, member: Member) -> None:
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
            self._apply(self._machine.heard(replica, proc, report))
            await companion.outlive.call_one()
        except ActorDied as death:
            heard_at = time.time()
            del self._followed[replica, proc]
            self._ledger.heard.broadcast(replica, heard_at)
            self._apply(self._machine.died(replica, death.failure.summary))

    def _apply(self, outputs: list[Output]) -> None:
        if self._is_recovering and not self._machine.is_recovering:
            self._is_recovering = False
            # Whoever is still in a group of the coordinator before this one would wait there for nothing.
            why = "the quorum service was restarted"
            self._do(self._abort(Condemned(ALL_BEFORE, self._machine.live, why)))
        for output in outputs:
            if isinstance(output, Formed):
                self._grant(output)
            elif isinstance(output, Condemned):
                self._do(self._stores_end(output.quorum_id))
                self._do(self._abort(output))
            elif isinstance(output, Ended):
                self._end_with(End(output.step))
            elif isinstance(output, Stopped):
                self._end_with(End(error=output.reason))
        for member, (vote, port) in list(self._votes.items()):
            decision = self._machine.decision(vote.quorum_id, vote.step)
            if decision is not None:
                del self._votes[member]
                port.send(decision)

    def _grant(self, formed: Formed) -> None:
        ports = self._ports_of(formed.quorum)
        if formed.is_new:
            self._do(self._open_store(formed.quorum, ports))
        else:
            for port in ports:
                port.send(Grant(formed.quorum, self._store))

    def _ports_of(self, quorum: Quorum) -> list[Port[Grant | End]]:
        members = [one for one in self._asks if one.replica in quorum.members]
        return [self._asks.pop(one) for one in members]

    async def _open_store(self, quorum: Quorum, ports: list[Port[Grant | End]]) -> None:
        if len(quorum.members) == 1:
            store = ""
        else:
            store = await self._retried(lambda: self._stores.open.call_one(str(quorum.id)))
        self._store = store
        for port in ports:
            port.send(Grant(quorum, store))

    async def _stores_end(self, quorum_id: int) -> None:
        with suppress(ActorDied):
            # With the process all its stores have ended.
            await self._stores.end.call_one(str(quorum_id))

    async def _retried(self, call: Any) -> Any:
        while True:
            try:
                return await call()
            except ActorDied:
                await asyncio.sleep(_STORES_RETRY_S)

    async def _abort(self, condemned: Condemned) -> None:
        """End a group at all its members at once, and note when that was done."""
        calls = [
            self._companions.slice(replicas=replica).abort.call(condemned.quorum_id, condemned.reason)
            for replica in condemned.members
        ]
        times: list[float] = []
        for call in calls:
            outcomes = await call.outcomes()
            times += [one for one in outcomes.values() if isinstance(one, float)]
        if times:
            self._ledger.released.broadcast(max(times))

    def _end_with(self, end: End) -> None:
        self._end = end
        for port in self._asks.values():
            port.send(end)
        self._asks.clear()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _seat(member: Member) -> tuple[int, int]:
    return member.replica, member.proc
