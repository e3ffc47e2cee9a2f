"""`Manager`: what torchft's LocalSGD, DiLoCo, OptimizerWrapper and DistributedDataParallel take for their own manager.

It belongs to the training thread. Membership and commits come from the coordinator; a newcomer's state from a peer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, Protocol

from roost.ft.averages import Averages, Watched
from roost.ft.ending import End, TrainingOver
from roost.ft.quorum import Ask, Decision, Grant, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from roost.ft.group import Group
    from roost.ft.quorum import Quorum
    from roost.ft.timeouts import Timeouts

__all__ = ["DRAWS", "Link", "Manager", "Transfer"]

DRAWS = "random numbers"
"""The part of a state in which replicas may differ that have the same model."""
_logger = logging.getLogger("roost.ft")


class Link(Watched, Protocol):
    """The way to the coordinator, for one member."""

    def ask(self, ask: Ask) -> Grant | End:
        """Wait for the next quorum."""
        ...

    def vote(self, vote: Decision, *, idles: bool | None) -> Callable[[], Verdict | Literal[True]]:
        """Vote, and ask for the next step perhaps; what waits for the decision. True: it counts, and the same quorum takes that, too."""
        ...

    def know(self, *, has_state: bool, last: Decision | None) -> None:
        """Remember for a new coordinator."""
        ...


class Transfer(Protocol):
    """How a state gets from a member that has it to one that has none."""

    def stage(self, quorum: Quorum, state: dict[str, Any]) -> None:
        """Have a state ready for those that heal from this member."""
        ...

    def take(self, quorum: Quorum, sources: Sequence[int], own: dict[str, Any]) -> dict[str, Any]:
        """Take the state of other members, into the tensors of `own` where that can be; whole and verified, or an error."""
        ...

    def digest(self, state: dict[str, Any]) -> str:
        """What tells states apart."""
        ...


class Manager(Averages):
    """Takes part in quorums for one proc of a replica.

    Args:
        link: the way to the coordinator.
        group: where collectives are done.
        transfer: how states travel.
        timeouts: the job's.
        counts_healed: whether who has just taken its state adds to the average, because it computes with it.
    """

    def __init__(
        self, link: Link, group: Group, transfer: Transfer, timeouts: Timeouts, *, counts_healed: bool = False
    ) -> None:
        super().__init__(link, group, timeouts, counts_healed=counts_healed)
        self._link = link
        self._transfer = transfer
        self._digest: str | None = None
        # The quorum that was asked for with the last vote.
        self._granted: Grant | End | None = None
        # What waits for the decision of the step, once this member has voted.
        self._deciding: Callable[[], Verdict | Literal[True]] | None = None

    def start_quorum(
        self, allow_heal: bool = True, shrink_only: bool = False, timeout: timedelta | None = None
    ) -> None:
        """Join the next quorum, make its group, and take the state of a peer where this member has none.

        What goes wrong is kept for the vote.

        Raises:
            TrainingOver: there is no next step.
        """
        link = self._link
        self.prepare()
        grant, self._granted, self._deciding = self._granted, None, None
        if grant is None:
            link.mark("waiting for the others", None)
            is_broken = self._group.aborted is not None
            grant = link.ask(
                Ask(self._step, self._has_state, self._digest or "", is_broken, self.is_idle, *self.brings())
            )
        if isinstance(grant, End):
            raise TrainingOver(grant)
        quorum = grant.quorum
        link.reached("quorum_joined")
        self.joined(quorum)
        self._quorum, self._error, self._open, self._joined = quorum, None, [], None
        self._try(self._join, grant)
        link.mark("training", self._timeouts.step_s)

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        """Vote, and hear whether the step counts: the same answer for every member of the quorum."""
        quorum, link = self._quorum, self._link
        assert quorum is not None, "a vote without a quorum"
        self.end_collectives()
        deciding, self._deciding = self._deciding, None
        assert deciding is not None, "it has voted"
        self._wait_for_all()
        link.mark("waiting for the decision", None)
        verdict = deciding()
        if verdict is True:
            verdict = Verdict(is_yes=True, next=Grant(quorum.following, ""))
        is_yes, self._granted = verdict.is_yes, verdict.next
        if is_yes:
            self._step = quorum.step + 1
            self._batches += len(self.participants)
            self._has_state = True
        link.know(has_state=self._has_state, last=Decision(quorum.id, quorum.step, is_yes))
        if is_yes:
            link.reached("first_step")
        elif self._error is not None:
            _logger.info("step %d does not count: %s", quorum.step, self._error)
        self._error = None
        self.decided(is_yes)
        link.mark("training", self._timeouts.step_s)
        return is_yes

    def end_collectives(self) -> None:
        """Vote: what is left to do with averages is this member's alone, and the answer is on its way meanwhile."""
        quorum = self._quorum
        if quorum is None or self._deciding is not None:
            return
        self._arrive()
        vote = Decision(quorum.id, quorum.step, self._error is None)
        self._deciding = self._link.vote(vote, idles=self.idles_next() if vote.is_yes else None)

    def prepare(self) -> None:
        """Look at the state that training begins with.

        Raises:
            TypeError: something in it travels in no way.
        """
        if self._digest is None:
            self._digest = self._digest_of(self.whole_state())

    def _join(self, grant: Grant) -> None:
        """Make the group of a quorum where it is a new one, and bring states to where they are missing."""
        quorum, link = grant.quorum, self._link
        if quorum.id != self._group.quorum_id:
            link.mark("making the group", self._timeouts.group_s * 1.1)
            self._group.configure(grant.store, quorum.id, quorum.rank(link.replica), len(quorum.members))
        link.reached("group_formed")
        if quorum.is_source(link.replica):
            link.mark("staging the state", self._timeouts.heal_within_s)
            self._transfer.stage(quorum, self.whole_state())
        sources = quorum.sources_of(link.replica)
        if sources:
            link.mark("taking the state", self._timeouts.heal_within_s)
            # Until all of the other's is here and verified there is none.
            self._has_state = False
            self._load(self._transfer.take(quorum, sources, self.whole_state()))
            # From now on it is as good as theirs, whether or not this step counts.
            self._has_state = quorum.step > 0
            link.reached("state_pulled")

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self._digest = self._digest_of(state) if self._step == 0 else ""

    def _digest_of(self, state: dict[str, Any]) -> str:
        alike = {key: one for key, one in state["user"].items() if key != DRAWS}
        return self._transfer.digest({**state, "user": alike})
