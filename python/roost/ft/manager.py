"""`Manager`: what torchft's LocalSGD, DiLoCo, OptimizerWrapper and DistributedDataParallel take for their own manager.

It belongs to the training thread. Membership and commits come from the coordinator; a newcomer's state from a peer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, Protocol

from roost.errors import CollectiveError
from roost.ft.coordinator import Grant, Verdict
from roost.ft.ending import End, TrainingOver
from roost.ft.quorum import Ask, Decision
from roost.ft.works import averaging, finished

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from roost.ft.group import Group, Pending
    from roost.ft.quorum import Quorum
    from roost.ft.timeouts import Timeouts

__all__ = ["Link", "Manager", "Transfer"]

_logger = logging.getLogger("roost.ft")


class Link(Protocol):
    """The way to the coordinator, for one member."""

    replica: int

    def ask(self, ask: Ask) -> Grant | End:
        """Wait for the next quorum."""
        ...

    def vote(self, vote: Decision, *, idles: bool | None) -> Verdict | Literal[True]:
        """Wait for the decision, and ask for the next step perhaps; True: it counts, and the same quorum takes that, too."""
        ...

    def know(self, *, has_state: bool, last: Decision | None) -> None:
        """Remember for a new coordinator."""
        ...

    def mark(self, what: str, limit_s: float | None) -> None:
        """Say what the training thread does, and for how long it may."""
        ...

    def reached(self, phase: str) -> None:
        """A phase of coming back is done."""
        ...


class Transfer(Protocol):
    """How a state gets from a member that has it to one that has none."""

    def stage(self, quorum: Quorum, state: dict[str, Any]) -> None:
        """Have a state ready for those that heal from this member."""
        ...

    def take(self, quorum: Quorum, source: int, own: dict[str, Any]) -> dict[str, Any]:
        """Take the state of another member, into the tensors of `own` where that can be; whole and verified, or an error."""
        ...

    def digest(self, state: dict[str, Any]) -> str:
        """What tells states apart."""
        ...


class Manager:
    """Takes part in quorums for one proc of a replica.

    Args:
        link: the way to the coordinator.
        group: where collectives are done.
        transfer: how states travel.
        timeouts: the job's.
        counts_healed: whether who has just taken its state adds to the average, because it computes with it.
    """

    _use_async_quorum = False

    def __init__(
        self, link: Link, group: Group, transfer: Transfer, timeouts: Timeouts, *, counts_healed: bool = False
    ) -> None:
        self._link = link
        self._group = group
        self._transfer = transfer
        self._timeouts = timeouts
        self._counts_healed = counts_healed
        self._states: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {}
        self._step = 0
        self._batches = 0
        self._has_state = False
        self._digest: str | None = None
        self._quorum: Quorum | None = None
        # Of this quorum and step, until its vote.
        self._error: Exception | None = None
        self._open: list[Any] = []
        # The quorum that was asked for with the last vote.
        self._granted: Grant | End | None = None
        self.decided: Callable[[bool], None] = lambda _: None
        """Told of each decision, before whoever asked for it goes on."""
        self.joined: Callable[[Quorum], None] = lambda _: None
        """Told of each quorum, before anything is done in it."""
        self.brings: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Says how many inner steps count by now, and how many are brought to the next sync."""
        self.is_idle = False
        """Whether this member has nothing to add from now on."""
        self.idles_next: Callable[[], bool | None] = lambda: None
        """Says whether this member has nothing to add to the step right after the one that it votes on, so that its quorum is asked
        for with the vote; None where that is not known yet, or no step follows at once."""

    # ---- what torchft's classes call

    @property
    def _pg(self) -> Any:
        return self._group

    def register_state_dict_fn(
        self, key: str, load_state_dict: Callable[[Any], None], state_dict: Callable[[], Any]
    ) -> None:
        """Add to what a newcomer takes."""
        self._states[key] = load_state_dict, state_dict

    def allow_state_dict_read(self) -> None:
        """Nobody reads a state but its own training thread."""

    def disallow_state_dict_read(self) -> None:
        """Nobody reads a state but its own training thread."""

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
        grant, self._granted = self._granted, None
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
        self._quorum, self._error, self._open = quorum, None, []
        self._try(self._join, grant)
        link.mark("training", self._timeouts.step_s)

    def wait_quorum(self) -> None:
        """The quorum is there when `start_quorum` returns."""

    def current_step(self) -> int:
        """How many syncs are in the state."""
        return self._step

    def batches_committed(self) -> int:
        """How many contributions of members are in the state."""
        return self._batches

    def num_participants(self) -> int:
        """How many members add to the average."""
        return 1 if self._quorum is None else max(1, len(self._participants()))

    def participating_rank(self) -> int | None:
        """This member's place among those that add; None when it does not."""
        participants = self._participants()
        return participants.index(self._link.replica) if self._link.replica in participants else None

    def is_participating(self) -> bool:
        """Whether this member adds to the average."""
        return self._link.replica in self._participants()

    def allreduce(self, tensor: Any, should_quantize: bool = False, reduce_op: Any = None) -> Any:
        """Begin to average a tensor over those that take part, in place; `should_quantize` changes nothing.

        The work never raises: an error is kept for the vote, and the tensor has nothing of use then.
        """
        if self._error is not None:
            return finished(tensor)
        if not self.is_participating():
            tensor.zero_()
        try:
            pending = self._group.allreduce(tensor)
        except Exception as error:  # noqa: BLE001 - whatever it is, the vote tells of it
            self.report_error(error)
            return finished(tensor)
        is_sum = reduce_op is not None and "SUM" in str(reduce_op)
        scale = 1 if is_sum else self.num_participants()
        work = averaging(tensor, lambda summed: self._finish(pending, summed, scale))
        self._open.append(work)
        return work

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        """Vote, and hear whether the step counts: the same answer for every member of the quorum."""
        quorum, link = self._quorum, self._link
        assert quorum is not None, "a vote without a quorum"
        for work in self._open:
            work.wait()
        self._open = []
        vote = Decision(quorum.id, quorum.step, self._error is None)
        link.mark("waiting for the decision", None)
        verdict = link.vote(vote, idles=self.idles_next() if vote.is_yes else None)
        if verdict is True:
            verdict = Verdict(is_yes=True, next=Grant(quorum.following, ""))
        is_yes, self._granted = verdict.is_yes, verdict.next
        if is_yes:
            self._step = quorum.step + 1
            self._batches += len(self._participants())
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

    def report_error(self, error: Exception) -> None:
        """Have the step not count. The first error is the cause, and frees the others from the group."""
        if self._error is None:
            self._error = error
            quorum = self._quorum
            if quorum is not None:
                self._group.abort(f"replica {self._link.replica}: {error}")

    def errored(self) -> Exception | None:
        """What went wrong since the quorum."""
        return self._error

    def state_dict(self) -> dict[str, int]:
        """What belongs to the manager in a newcomer's state."""
        return {"step": self._step, "batches_committed": self._batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        self._step, self._batches = state["step"], state["batches_committed"]

    def shutdown(self, wait: bool = True) -> None:
        """Let the group go."""
        self._group.close()

    # ---- our own

    def prepare(self) -> None:
        """Look at the state that training begins with.

        Raises:
            TypeError: something in it travels in no way.
        """
        if self._digest is None:
            self._digest = self._transfer.digest(self.whole_state())

    @property
    def quorum(self) -> Quorum | None:
        """The quorum that this member is in."""
        return self._quorum

    @property
    def has_state(self) -> bool:
        """Whether the state has a committed step in it."""
        return self._has_state

    def whole_state(self) -> dict[str, Any]:
        """All that a newcomer needs."""
        return {
            "manager": self.state_dict(),
            "user": {key: state_dict() for key, (_, state_dict) in self._states.items()},
        }

    def take_final(self, take: Callable[[dict[str, Any]], dict[str, Any] | None]) -> bool:
        """Have the state that training has ended with; False when nobody has it any more."""
        state = take(self.whole_state())
        if state is not None:
            self._load(state)
            self._has_state = True
        return state is not None

    def _join(self, grant: Grant) -> None:
        """Make the group of a quorum where it is a new one, and bring states to where they are missing."""
        quorum, link = grant.quorum, self._link
        if quorum.id != self._group.quorum_id:
            link.mark("making the group", self._timeouts.group_s * 1.1)
            self._group.configure(grant.store, quorum.id, quorum.rank(link.replica), len(quorum.members))
        link.reached("group_formed")
        if link.replica in quorum.sources:
            link.mark("staging the state", self._timeouts.heal_within_s)
            self._transfer.stage(quorum, self.whole_state())
        source = quorum.source_of(link.replica)
        if source is not None:
            link.mark("taking the state", self._timeouts.heal_within_s)
            # Until all of the other's is here and verified there is none.
            self._has_state = False
            self._load(self._transfer.take(quorum, source, self.whole_state()))
            link.reached("state_pulled")

    def _load(self, state: dict[str, Any]) -> None:
        self.load_state_dict(state["manager"])
        for key, (load_state_dict, _) in self._states.items():
            load_state_dict(state["user"][key])
        self._digest = self._transfer.digest(state) if self._step == 0 else ""

    def _participants(self) -> tuple[int, ...]:
        quorum = self._quorum
        if quorum is None:
            return ()
        out = set(quorum.idle) if self._counts_healed else {*quorum.idle, *quorum.healing}
        return tuple(replica for replica in quorum.members if replica not in out)

    def _finish(self, pending: Pending, tensor: Any, scale: int) -> None:
        """Wait for a sum and make it an average."""
        quorum = self._quorum
        assert quorum is not None
        # An error has aborted the group: this ends at once.
        limit_s = self._timeouts.collective_s(is_healing=bool(quorum.healing))
        self._link.mark("a collective", limit_s * 1.1)
        try:
            pending.wait(limit_s)
        except CollectiveError as error:
            self.report_error(error)
        else:
            if scale > 1:
                tensor.div_(scale)
        self._link.mark("training", self._timeouts.step_s)

    def _try(self, what: Callable[[Any], None], value: Any) -> None:
        try:
            what(value)
        except Exception as error:  # noqa: BLE001 - whatever it is, the vote tells of it
            self.report_error(error)
