"""`Quorums`: who trains together, and whether a step counts. A state machine without sockets and without a clock.

It is told who asked, who voted and who died, all by supervision and never by a time-out, and says what follows. Around it stands
`coordinator.py`; when that dies, a new machine is built from what the replicas know (`heard`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roost.ft.quorum import Ask, Condemned, Decided, Decision, Ended, Formed, Output, Quorum, Report, Stopped, id_of

if TYPE_CHECKING:
    from roost.ft.ending import End

__all__ = ["Quorums"]

_DECISIONS_KEPT = 64


@dataclass(slots=True)
class _Replica:
    """One live replica, as its procs show it."""

    life: int
    has_state: bool = False
    asks: dict[int, Ask] = field(default_factory=dict[int, Ask])


@dataclass(slots=True)
class _Round:
    """The last quorum, and how its members voted."""

    quorum: Quorum
    # Whether each has nothing to add to the next step, if it said so.
    yes: dict[tuple[int, int], bool | None] = field(default_factory=dict[tuple[int, int], "bool | None"])
    is_decided: bool = False
    is_condemned: bool = False


class Quorums:
    """Forms quorums and decides steps.

    Each method returns what follows from what it is told, in order.

    Args:
        epoch: which life of the coordinator this is, from its owner.
        replicas: how many replicas there are.
        procs: how many procs each has.
        min_replicas: a quorum of fewer members is never formed.
        donors: from how many members a newcomer takes its state at once, where there are as many.
    """

    def __init__(self, epoch: int, replicas: int, procs: int = 1, min_replicas: int = 1, donors: int = 1) -> None:
        self._epoch = epoch
        self._replicas = replicas
        self._procs = procs
        self._min_replicas = min_replicas
        self._donors = donors
        self._counter = 0
        self._live: dict[int, _Replica] = {}
        # The last life of each replica that is known to have ended.
        self._fenced: dict[int, int] = {}
        # Those that do not come back.
        self._gone: set[int] = set()
        # Seats (replica, proc) that have not said yet what they know.
        self._unheard = {(replica, proc) for replica in range(replicas) for proc in range(procs)}
        self._decisions: OrderedDict[tuple[int, int], bool] = OrderedDict()
        self._round: _Round | None = None
        # Whether a step has counted: from then on nothing begins anew.
        self._has_begun = False
        self._is_over = False

    @property
    def is_recovering(self) -> bool:
        """Whether somebody is still to be heard before anything is decided."""
        return bool(self._unheard)

    @property
    def live(self) -> tuple[int, ...]:
        """The replicas that are there, with state or without."""
        return tuple(sorted(self._live))

    def decision(self, quorum_id: int, step: int) -> bool | None:
        """What was decided of a step; None while it is open."""
        if self.is_recovering:
            return None
        now = self._round
        if now is not None and (now.quorum.id, now.quorum.step) == (quorum_id, step) and not now.is_decided:
            return None
        # Of a step that nobody knows nothing has counted, and nothing will.
        return self._decisions.get((quorum_id, step), False)

    def heard(self, replica: int, proc: int, report: Report | None) -> list[Output]:
        """A proc said what it knows, or is not there and says nothing."""
        if (replica, proc) not in self._unheard:
            return []
        if report is not None and self._admit(replica, report.life):
            self._live[replica].has_state |= report.has_state
            self._has_begun |= report.has_state
            if report.last is not None and report.last.is_yes:
                self._keep(report.last)
        self._unheard.discard((replica, proc))
        if report is not None and report.end is not None:
            return self.over(report.end)
        return self._form()

    def asked(self, replica: int, life: int, proc: int, ask: Ask) -> list[Output]:
        """A proc wants to take the next step."""
        outputs = self._ended_before(replica, life)
        if not self._admit(replica, life):
            return outputs
        now = self._round
        if now is not None and not now.is_decided and replica in now.quorum.members:
            # It was told of a quorum and asks instead of voting: it has given that step up.
            outputs += self._decide(now, is_yes=False, reason=f"replica {replica} gave the step up")
        one = self._live[replica]
        one.asks[proc] = ask
        one.has_state = ask.has_state
        self._has_begun |= ask.has_state
        self._gone.discard(replica)
        return outputs + self._form()

    def voted(self, replica: int, life: int, proc: int, vote: Decision, idles: bool | None = None) -> list[Output]:
        """A proc says whether its part of a step went well; `decision` has the answer once there is one.

        With `idles` it asks for the next step, too, should this one count: with nothing to add, or with one inner step. When the
        quorum cannot be formed at once with what was asked so, all ask for themselves.
        """
        now = self._round
        if now is None or now.is_decided or (now.quorum.id, now.quorum.step) != (vote.quorum_id, vote.step):
            return []
        if replica not in now.quorum.members or now.quorum.lives[now.quorum.rank(replica)] != life:
            return []
        if not vote.is_yes:
            return self._decide(now, is_yes=False, reason=f"replica {replica} reports an error")
        now.yes[replica, proc] = idles
        if len(now.yes) < len(now.quorum.members) * self._procs:
            return []
        return [*self._decide(now, is_yes=True), *self._form_after(now)]

    def died(self, replica: int, reason: str = "died", life: int | None = None) -> list[Output]:
        """A proc of a replica ended, in a life that is known perhaps, and so the replica."""
        one = self._live.get(replica)
        if one is not None and life is not None and life < one.life:
            # Heard late: its next life has spoken already.
            return []
        for proc in range(self._procs):
            self._unheard.discard((replica, proc))
        if one is None:
            return self._form()
        del self._live[replica]
        self._fenced[replica] = one.life
        return self._without(replica, reason) + self._form()

    def over(self, end: End) -> list[Output]:
        """Training has ended for one, and so for all: who comes back is not to wait for those that ask no more."""
        if self._is_over:
            return []
        self._is_over = True
        return [Stopped(end.error)] if end.error is not None else [Ended(end.base, end.trained)]

    def lost(self, replica: int, reason: str = "left") -> list[Output]:
        """A replica does not come back: it left, or its policy gave it up."""
        self._gone.add(replica)
        outputs = self.died(replica, reason)
        left = self._replicas - len(self._gone)
        if left < self._min_replicas and not self._is_over:
            self._is_over = True
            outputs.append(
                Stopped(f"{left} of {self._replicas} replicas are left, and min_replicas is {self._min_replicas}")
            )
        return outputs

    def _admit(self, replica: int, life: int) -> bool:
        """Know a replica by this life; False when that has ended."""
        if life <= self._fenced.get(replica, -1):
            return False
        known = self._live.get(replica)
        if known is None:
            self._live[replica] = _Replica(life)
            return True
        return known.life == life

    def _ended_before(self, replica: int, life: int) -> list[Output]:
        """A later life speaks: the one before it has ended, whatever was heard of that."""
        known = self._live.get(replica)
        return [] if known is None or known.life >= life else self.died(replica)

    def _without(self, replica: int, reason: str) -> list[Output]:
        """The round without a member: what it has not voted for does not count, what it has may."""
        now = self._round
        if now is None or replica not in now.quorum.members:
            return []
        why = f"replica {replica} {reason}"
        if now.is_decided:
            return self._condemn(now, why)
        has_voted = all((replica, proc) in now.yes for proc in range(self._procs))
        return [] if has_voted else self._decide(now, is_yes=False, reason=why)

    def _decide(self, now: _Round, *, is_yes: bool, reason: str = "") -> list[Output]:
        decision = Decision(now.quorum.id, now.quorum.step, is_yes)
        now.is_decided = True
        self._keep(decision)
        for replica in now.quorum.members:
            one = self._live.get(replica)
            if one is not None and is_yes:
                one.has_state = True
        if is_yes:
            self._has_begun = True
            return [Decided(decision)]
        return [Decided(decision), *self._condemn(now, reason)]

    def _condemn(self, now: _Round, reason: str) -> list[Output]:
        if now.is_condemned:
            return []
        now.is_condemned = True
        return [Condemned(now.quorum.id, now.quorum.members, reason)]

    def _keep(self, decision: Decision) -> None:
        self._decisions[decision.quorum_id, decision.step] = decision.is_yes
        while len(self._decisions) > _DECISIONS_KEPT:
            self._decisions.popitem(last=False)

    def _form_after(self, now: _Round) -> list[Output]:
        """Form the quorum after one that counted, from what was asked for with its votes."""
        step, base = now.quorum.step + 1, now.quorum.base + now.quorum.steps
        asked = {seat: idles for seat, idles in now.yes.items() if idles is not None and seat[0] in self._live}
        for (replica, proc), idles in asked.items():
            ask = Ask(step, has_state=True, is_idle=idles, base=base, local=int(not idles))
            self._live[replica].asks[proc] = ask
        formed = self._form()
        if not formed:
            for replica, proc in asked:
                del self._live[replica].asks[proc]
        return formed

    def _form(self) -> list[Output]:
        """Form the next quorum when all that it has to wait for have asked."""
        if self.is_recovering or self._is_over or (self._round is not None and not self._round.is_decided):
            return []
        ready = {replica: one for replica, one in self._live.items() if len(one.asks) == self._procs}
        trained = [replica for replica, one in self._live.items() if one.has_state]
        if self._has_begun:
            if not trained:
                self._is_over = True
                return [Stopped("no replica is left that has the trained state; begin again from a checkpoint")]
            # They wait for each other and never for newcomers.
            expected = set(trained)
        else:
            expected = set(range(self._replicas)) - self._gone
        if not expected or not expected <= ready.keys() or len(ready) < self._min_replicas:
            return []
        if all(ask.is_idle for replica in expected for ask in ready[replica].asks.values()):
            self._is_over = True
            asks = [ask for replica in expected for ask in ready[replica].asks.values()]
            return [Ended(max(ask.base for ask in asks), tuple(sorted(trained)))]
        return self._formed(ready, sorted(expected))

    def _formed(self, ready: dict[int, _Replica], expected: list[int]) -> list[Output]:
        members = tuple(sorted(ready))
        step = max(ask.step for replica in expected for ask in ready[replica].asks.values())
        whole = self._whole(ready, expected, step)
        healing = tuple(replica for replica in members if replica not in whole)
        # Several newcomers begin with several sources.
        turned = (whole[number % len(whole) :] + whole[: number % len(whole)] for number, _ in enumerate(healing))
        sources = tuple(tuple(one[: self._donors]) for one in turned)
        lives = tuple(ready[replica].life for replica in members)
        idle = tuple(replica for replica in members if any(ask.is_idle for ask in ready[replica].asks.values()))
        before = self._round
        is_new = (
            before is None
            or before.is_condemned
            or bool(healing)
            or any(ask.is_broken for one in ready.values() for ask in one.asks.values())
            or (before.quorum.members, before.quorum.lives) != (members, lives)
        )
        if is_new:
            self._counter += 1
        quorum_id = id_of(self._epoch, self._counter)
        asks = [ask for replica in expected for ask in ready[replica].asks.values()]
        base, steps = max(ask.base for ask in asks), max(ask.local for ask in asks)
        self._round = _Round(Quorum(quorum_id, step, members, lives, healing, sources, idle, base, steps))
        for one in ready.values():
            one.asks.clear()
        outputs: list[Output] = []
        if is_new and before is not None:
            # Its group and its store are of no more use to anybody.
            outputs += self._condemn(before, "another quorum follows")
        return [*outputs, Formed(self._round.quorum, is_new)]

    def _whole(self, ready: dict[int, _Replica], expected: list[int], step: int) -> list[int]:
        """The members that have the state which all go on with."""
        if self._has_begun:
            return [one for one in expected if all(ask.step == step for ask in ready[one].asks.values())]
        first = ready[expected[0]].asks
        return [
            one
            for one in sorted(ready)
            if one == expected[0]
            or all(ask.digest and ask.digest == first[proc].digest for proc, ask in ready[one].asks.items())
        ]
