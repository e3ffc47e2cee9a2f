"""`Lighthouse`: the supervised actor around torchft's lighthouse, which forms quorums by heartbeats.

What can be known by supervision it adds: who died is aborted out of the others' groups at once. When it dies, its next life has
another address, and managers are made anew: a lighthouse counts its quorums from 1 again, and an old manager would take a new quorum
for one that it is in already.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roost import libraries
from roost.actor import Actor
from roost.collectives.gloo import served_store
from roost.context import context
from roost.endpoint import endpoint
from roost.ft.companion import ALL_BEFORE
from roost.ft.ending import End
from roost.ft.following import Following

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from roost.ft.companion import Companion
    from roost.ft.ledger import Ledger
    from roost.ft.quorum import Member, Report
    from roost.ft.service import Counts
    from roost.ft.timeouts import Timeouts

__all__ = ["Entry", "Lighthouse"]

NEVER_S = 3600
"""Whoever hangs is ended by supervision, so all who are alive are waited for: no newcomers go off without them."""
_TICK_MS = 20


@dataclass(frozen=True, slots=True)
class Entry:
    """What a manager is made with."""

    lighthouse: str
    epoch: int
    """Which life of the lighthouse it is."""
    store: str


class Lighthouse(Actor):
    """Has torchft's lighthouse, and a store for each life of each replica.

    Args:
        companions: one beside each trainer, with the dimensions `replicas` and `procs`.
        ledger: what is told of incidents.
        home: the numeric address that all of it listens on.
        timeouts: the job's.
        counts: how many replicas there are.
    """

    def __init__(
        self,
        companions: Companion,
        ledger: Ledger,
        home: str,
        timeouts: Timeouts,
        counts: Counts,
    ) -> None:
        self._companions = companions
        self._ledger = ledger
        self._home = home
        self._timeouts = timeouts
        self._counts = counts
        self._epoch = context().incarnation
        self._server: Any = None
        self._address = ""
        self._stores: dict[tuple[int, int], tuple[Any, str]] = {}
        self._following = Following(companions, ledger, self._heard, self._died)
        # Replicas that managers wait for before they ask for the first time, and those that have one.
        self._awaited = set(range(counts.replicas))
        self._there: set[int] = set()
        self._unheard = {(replica, proc) for replica in range(counts.replicas) for proc in range(counts.procs)}
        self._all_there = asyncio.Event()
        self._gone: set[int] = set()
        self._end: End | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __start__(self) -> None:
        await asyncio.to_thread(self._serve)
        self._following.begin(self._counts.replicas, self._counts.procs)
        if self._epoch:
            self._renew("the lighthouse was restarted")

    async def __cleanup__(self, exc: BaseException | None) -> None:
        self._following.end()
        for task in self._tasks:
            task.cancel()

    async def __healthy__(self) -> bool:
        return True

    @endpoint(concurrent=True)
    async def enter(self, member: Member) -> Entry | End:
        """Where the lighthouse is, and the store of this life of a replica; or the end."""
        self._following.hear_of(member)
        if self._end is not None:
            return self._end
        self._gone.discard(member.replica)
        key = member.replica, member.life
        if any(replica == member.replica and life < member.life for replica, life in self._stores):
            # It speaks before the end of its last life was heard of.
            self._died(member.replica, None, "was restarted")
        if key not in self._stores:
            self._stores[key] = served_store(self._home)
        return Entry(self._address, self._epoch, self._stores[key][1])

    @endpoint(concurrent=True)
    async def arrive(self, member: Member) -> End | None:
        """A manager is made and sends heartbeats: answered when all are that are to train, or with the end."""
        self._there.add(member.replica)
        self._look()
        await self._all_there.wait()
        return self._end

    @endpoint(concurrent=True)
    async def failed(self, replica: int, quorum_id: int, reason: str) -> None:
        """A member has left a quorum: the others are not to wait there, nor in one before it."""
        self._do(self._abort(replica, quorum_id, reason))

    @endpoint(concurrent=True)
    async def ended(self) -> End | None:
        """How training has ended, if it has."""
        return self._end

    @endpoint(concurrent=True)
    async def over(self, end: End) -> None:
        """Training has ended somewhere: it has everywhere, and who comes back takes what it has ended with."""
        self._know_end(end)

    @endpoint(concurrent=True)
    async def lose(self, replica: int, reason: str) -> None:
        """The job's owner says that a replica does not come back."""
        self._gone.add(replica)
        self._died(replica, None, reason)
        counts = self._counts
        left = counts.replicas - len(self._gone)
        if left < counts.min_replicas:
            self._end_with(f"{left} of {counts.replicas} replicas are left, and min_replicas is {counts.min_replicas}")

    @endpoint(concurrent=True)
    async def finish(self, reason: str) -> None:
        """Whoever waits or asks is told that there is no next step."""
        self._end_with(reason)

    def _end_with(self, reason: str) -> None:
        if self._end is None:
            self._know_end(End(error=reason))
            self._renew(reason)

    def _know_end(self, end: End) -> None:
        """Nobody waits for others any more."""
        self._end = self._end or end
        self._all_there.set()

    def _serve(self) -> None:
        """Start the lighthouse, on a port of its own in each life."""
        heartbeat_ms = round(1000 * self._timeouts.heartbeat_s)
        self._server = libraries.coordination().LighthouseServer(
            bind=f"{self._home}:0", min_replicas=self._counts.min_replicas, join_timeout_ms=1000 * NEVER_S,
            quorum_tick_ms=_TICK_MS, heartbeat_timeout_ms=heartbeat_ms,
        )  # fmt: skip
        # It says the name of its host, which need not resolve anywhere.
        port = self._server.address().rpartition(":")[2]
        self._address = f"http://{self._home}:{port}"

    def _heard(self, replica: int, proc: int, report: Report | None) -> None:
        """A proc said what it knows: in a later life of the lighthouse only those that train already are waited for."""
        self._unheard.discard((replica, proc))
        if self._epoch and (report is None or report.end is not None):
            self._awaited.discard(replica)
        if report is not None and report.end is not None:
            self._know_end(report.end)
        self._look()

    def _died(self, replica: int, life: int | None, reason: str) -> None:
        if life is not None and any(one == replica and later > life for one, later in self._stores):
            # Heard late: its next life has spoken already.
            return
        for proc in range(self._counts.procs):
            self._unheard.discard((replica, proc))
        self._awaited.discard(replica)
        self._there.discard(replica)
        # Whoever looks for the dead in its store is freed with it.
        for key in [one for one in self._stores if one[0] == replica]:
            del self._stores[key]
        self._look()
        self._do(self._abort(replica, ALL_BEFORE, f"replica {replica} {reason}"))

    def _look(self) -> None:
        """Whether all that are waited for are there."""
        is_heard = not self._epoch or not self._unheard
        if is_heard and self._there and self._awaited <= self._there:
            self._all_there.set()

    async def _abort(self, but: int, quorum_id: int, reason: str) -> None:
        """Free all from their group but one, and note when that was done."""
        others = [one for one in range(self._counts.replicas) if one != but]
        calls = [self._companions.slice(replicas=one).abort.call(quorum_id, reason) for one in others]
        times: list[float] = []
        for call in calls:
            outcomes = await call.outcomes()
            times += [one for one in outcomes.values() if isinstance(one, float)]
        if times and quorum_id == ALL_BEFORE:
            self._ledger.released.broadcast(max(times))

    def _renew(self, reason: str) -> None:
        """Have all managers made anew: they wait for a lighthouse that is gone, or that will not answer."""
        self._companions.renew.broadcast(reason)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
