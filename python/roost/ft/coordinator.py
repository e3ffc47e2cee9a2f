"""`Coordinator`: the supervised actor around `Quorums`. It hears of deaths by calls that never end, and answers when it can.

When it dies its next life asks every replica what it knows, and goes on from there.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from roost.actor import Actor
from roost.context import context
from roost.endpoint import endpoint
from roost.errors import ActorDied
from roost.ft.companion import ALL_BEFORE
from roost.ft.ending import End
from roost.ft.following import Following
from roost.ft.quorum import Condemned, Decision, Ended, Formed, Grant, Member, Stopped, Verdict
from roost.ft.quorums import Quorums

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from roost.channel import Port
    from roost.ft.companion import Companion
    from roost.ft.ledger import Ledger
    from roost.ft.quorum import Ask, Output, Quorum, Report
    from roost.ft.service import Counts
    from roost.ft.stores import Stores

__all__ = ["Coordinator"]

_STORES_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class _Vote:
    """Who waits for a decision."""

    vote: Decision
    has_asked: bool
    """Whether it has asked for the next step, too."""
    port: Port[Verdict | Literal[True]]

    def send(self, granted: Grant | End) -> None:
        """Answer the vote and the ask that came with it."""
        self.port.send(Verdict(is_yes=True, next=granted))


class Coordinator(Actor):
    """Forms quorums of the replicas and decides steps.

    Args:
        companions: one beside each trainer, with the dimensions `replicas` and `procs`.
        stores: where quorums get their stores.
        ledger: what is told of incidents.
        counts: how many replicas there are.
    """

    def __init__(self, companions: Companion, stores: Stores, ledger: Ledger, counts: Counts) -> None:
        self._companions = companions
        self._stores = stores
        self._ledger = ledger
        self._epoch = context().incarnation
        self._machine = Quorums(self._epoch, counts.replicas, counts.procs, counts.min_replicas, counts.donors)
        # Whether this is a later life that has not heard all yet.
        self._is_recovering = self._epoch > 0
        self._counts = counts
        self._following = Following(companions, ledger, self._heard, self._died)
        self._asks: dict[Member, Port[Grant | End]] = {}
        self._votes: dict[Member, _Vote] = {}
        self._quorum: Quorum | None = None
        self._store = ""
        self._end: End | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __start__(self) -> None:
        self._following.begin(self._counts.replicas, self._counts.procs)

    async def __cleanup__(self, exc: BaseException | None) -> None:
        self._following.end()
        for task in self._tasks:
            task.cancel()

    async def __healthy__(self) -> bool:
        return True

    @endpoint(reply="port", concurrent=True)
    async def ask(self, port: Port[Grant | End], member: Member, ask: Ask) -> None:
        """Want to take the next step: answered with the quorum, once it is formed, or with the end."""
        self._following.hear_of(member)
        if self._end is not None:
            port.send(self._end)
            return
        self._asks = {one: waiting for one, waiting in self._asks.items() if _seat(one) != _seat(member)}
        self._asks[member] = port
        self._apply(self._machine.asked(member.replica, member.life, member.proc, ask))

    @endpoint(reply="port", concurrent=True)
    async def vote(
        self,
        port: Port[Verdict | Literal[True]],
        seat: tuple[int, int, int],
        vote: tuple[int, int, bool],
        idles: bool | None,
    ) -> None:
        """Say whether a step went well, and ask for the next one perhaps: answered with whether it counts, once all have said so.

        In a run without failures this is the one thing in each step that all wait for, so both ways are as short as can be.

        Args:
            port: True where it counts and the same quorum takes the next step.
            seat: the fields of a `Member`.
            vote: those of a `Decision`.
            idles: as for `Quorums.voted`.
        """
        member, decision = Member(*seat), Decision(*vote)
        self._following.hear_of(member)
        self._votes[member] = _Vote(decision, idles is not None, port)
        self._apply(self._machine.voted(member.replica, member.life, member.proc, decision, idles))

    @endpoint(concurrent=True)
    async def over(self, end: End) -> None:
        """Training has ended for one of them, as this life of the service may not know."""
        self._apply(self._machine.over(end))

    @endpoint(concurrent=True)
    async def lose(self, replica: int, reason: str) -> None:
        """The job's owner says that a replica does not come back."""
        self._apply(self._machine.lost(replica, reason))

    @endpoint(concurrent=True)
    async def finish(self, reason: str) -> None:
        """Whoever waits or asks is told that there is no next step."""
        if self._end is None:
            self._end_with(End(error=reason))

    def _heard(self, replica: int, proc: int, report: Report | None) -> None:
        self._apply(self._machine.heard(replica, proc, report))

    def _died(self, replica: int, life: int | None, reason: str) -> None:
        self._apply(self._machine.died(replica, reason, life))

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
                self._end_with(End(base=output.base, trained=output.trained))
            elif isinstance(output, Stopped):
                self._end_with(End(error=output.reason))
        for member, waiting in list(self._votes.items()):
            decision = self._decision(waiting)
            if decision is not None:
                del self._votes[member]
                waiting.port.send(Verdict(decision, self._end))

    def _decision(self, waiting: _Vote) -> bool | None:
        return self._machine.decision(waiting.vote.quorum_id, waiting.vote.step)

    def _grant(self, formed: Formed) -> None:
        before, self._quorum = self._quorum, formed.quorum
        if before is None or before.learners != formed.quorum.learners:
            self._ledger.formed.broadcast(formed.quorum.learners)
        ports = self._ports_of(formed.quorum)
        if self._end is not None:
            _send(ports, self._end)
        elif formed.is_new:
            self._do(self._open_store(formed.quorum, ports))
        else:
            grant = Grant(formed.quorum, self._store)
            is_same = before is not None and before.following == formed.quorum
            for port in ports:
                if is_same and isinstance(port, _Vote):
                    port.port.send(True)
                else:
                    port.send(grant)

    def _ports_of(self, quorum: Quorum) -> list[Port[Grant | End] | _Vote]:
        """Where members wait for a quorum: having asked, or having voted and asked at once."""
        asked = [one for one in self._asks if one.replica in quorum.members]
        voted = [
            one
            for one, waiting in self._votes.items()
            if one.replica in quorum.members and waiting.has_asked and self._decision(waiting)
        ]
        return [*(self._asks.pop(one) for one in asked), *(self._votes.pop(one) for one in voted)]

    async def _open_store(self, quorum: Quorum, ports: list[Port[Grant | End] | _Vote]) -> None:
        if len(quorum.members) == 1:
            store = ""
        else:
            store = await self._retried(lambda: self._stores.open.call_one(str(quorum.id)))
        self._store = store
        _send(ports, Grant(quorum, store))

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
        # A call to one that is dead may wait for its next life, which has nothing to be freed from.
        live = [replica for replica in condemned.members if replica in self._machine.live]
        calls = [
            self._companions.slice(replicas=replica).abort.call(condemned.quorum_id, condemned.reason)
            for replica in live
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


def _send(ports: list[Port[Grant | End] | _Vote], granted: Grant | End) -> None:
    for port in ports:
        port.send(granted)
