"""`Prober`: asks actors whether they are healthy, from where a stuck event loop cannot keep it from asking: their owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.failure import Probe
    from roost.owned_actors import OwnedActors

__all__ = ["Prober", "UnhealthyError"]


class UnhealthyError(RuntimeError):
    """What an actor fails with that missed too many of its probe's questions."""


class _Asked:
    """One life of one rank, as its answers show it."""

    __slots__ = ("incarnation", "is_failing", "is_open", "is_proven", "misses", "since")

    def __init__(self, incarnation: int, since: float) -> None:
        self.incarnation = incarnation
        self.since = since
        # Whether it ever said yes; misses in a row; whether the last question has no answer; whether it was told to fail.
        self.is_proven = False
        self.misses = 0
        self.is_open = False
        self.is_failing = False


class Prober:
    """The probe of one mesh."""

    def __init__(self, mesh: OwnedActors, probe: Probe) -> None:
        self._mesh = mesh
        self._probe = probe
        self._asked: dict[int, _Asked] = {}
        self._loop = mesh.runtime.loop
        self._loop.call_later(probe.period_s, self._ask)

    def _ask(self) -> None:
        mesh = self._mesh
        if mesh.runtime.closed or mesh.mesh_stopped is not None or mesh.is_over:
            return
        self._loop.call_later(self._probe.period_s, self._ask)
        ranks = [rank for rank in range(len(mesh.whole)) if self._is_asked(rank)]
        mesh.ask_procs(".probe", ranks)

    def _is_asked(self, rank: int) -> bool:
        """Judge the time since the last question; whether there is another."""
        if self._mesh.state(rank) != "up":
            return False
        incarnation = self._mesh.incarnation(rank)
        known = self._asked.get(rank)
        if known is None or known.incarnation != incarnation:
            known = self._asked[rank] = _Asked(incarnation, self._loop.time())
        elif known.is_open:
            self._miss(rank, known, f"no answer within {self._probe.period_s:g} s")
        known.is_open = not known.is_failing
        return known.is_open

    def answered(self, rank: int, incarnation: int, wrong: str) -> None:
        """An answer came; `wrong` is empty when it was yes."""
        known = self._asked.get(rank)
        if known is None or known.incarnation != incarnation:
            return
        known.is_open = False
        if wrong:
            self._miss(rank, known, wrong)
        else:
            known.is_proven = True
            known.misses = 0

    def _miss(self, rank: int, known: _Asked, why: str) -> None:
        probe = self._probe
        if not known.is_proven and self._loop.time() - known.since < probe.grace_s:
            return
        known.misses += 1
        if known.misses <= probe.failures_max or known.is_failing:
            return
        what = "unhealthy" if known.is_proven else "not ready yet"
        times = "once" if known.misses == 1 else f"{known.misses} times in a row"
        reason = f"{what}: {why} ({times})"
        known.is_failing = True
        self._mesh.ask_procs(".unhealthy", [rank], reason)
        self._loop.call_later(probe.grace_s, self._end, rank, known.incarnation, reason)

    def _end(self, rank: int, incarnation: int, reason: str) -> None:
        """Its process does not even end the actor: only its own end does."""
        mesh = self._mesh
        if mesh.state(rank) == "up" and mesh.incarnation(rank) == incarnation and not mesh.runtime.closed:
            proc = mesh.procs[rank // mesh.per]
            if proc != mesh.runtime.proc:
                mesh.runtime.control.kill([proc], f"{mesh.rank_name(rank)} is {reason}, and did not end")
