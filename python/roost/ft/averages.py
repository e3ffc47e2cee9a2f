"""`Averages`: what a proc's managers have in common, Roost's and the one around torchft's: states, and averages over a quorum.

It belongs to the training thread. What goes wrong between a quorum and its vote is kept for the vote, and raises nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from roost.errors import CollectiveError
from roost.ft.joined import SMALL_BYTES, Joined
from roost.ft.works import averaging, finished

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.ft.group import Group, Pending
    from roost.ft.quorum import Quorum
    from roost.ft.timeouts import Timeouts

__all__ = ["Averages", "Watched"]


class Watched(Protocol):
    """Who is told what the training thread does."""

    replica: int

    def mark(self, what: str, limit_s: float | None) -> None:
        """Say what the training thread does, and for how long it may."""
        ...

    def reached(self, phase: str) -> None:
        """A phase of coming back is done."""
        ...


class Averages:
    """The half of a manager that knows no quorum service.

    Args:
        watched: who is told what the training thread does.
        group: where collectives are done.
        timeouts: the job's.
        counts_healed: whether who has just taken its state adds to the average, because it computes with it.
    """

    _use_async_quorum = False

    def __init__(self, watched: Watched, group: Group, timeouts: Timeouts, *, counts_healed: bool) -> None:
        self._watched = watched
        self._group = group
        self._timeouts = timeouts
        self._counts_healed = counts_healed
        self._states: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {}
        self._step = 0
        self._batches = 0
        self._has_state = False
        self._quorum: Quorum | None = None
        # Of this quorum and step, until its vote.
        self._error: Exception | None = None
        self._open: list[Any] = []
        self.joins_small = False
        """Whether small tensors are summed together: not those whose sums are to be on their way at once."""
        self._joined: Joined | None = None
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
        return 1 if self._quorum is None else max(1, len(self.participants))

    def participating_rank(self) -> int | None:
        """This member's place among those that add; None when it does not."""
        replica = self._watched.replica
        return self.participants.index(replica) if replica in self.participants else None

    def is_participating(self) -> bool:
        """Whether this member adds to the average."""
        return self._watched.replica in self.participants

    def allreduce(self, tensor: Any, should_quantize: bool = False, reduce_op: Any = None) -> Any:
        """Begin to average a tensor over those that take part, in place; `should_quantize` changes nothing.

        The work never raises: an error is kept for the vote, and the tensor has nothing of use then.
        """
        if self._error is not None:
            return finished(tensor)
        if not self.is_participating():
            tensor.zero_()
        is_sum = reduce_op is not None and "SUM" in str(reduce_op)
        scale = 1 if is_sum else self.num_participants()
        if scale > 1 and self._is_averaged_by_group(tensor, scale):
            # What is summed is divided there, too: a way through memory less.
            arrive, scale = self._awaited(self._begin_sum(tensor, averages=True)), 1
        else:
            arrive = self._summing(tensor)
        if arrive is None:
            return finished(tensor)
        work = averaging(tensor, arrive, lambda summed: self._scale(summed, scale))
        self._open.append(work)
        return work

    def _summing(self, tensor: Any) -> Callable[[], object] | None:
        """Begin to sum a tensor over the members, or have that done with others; what waits for it, if that went well."""
        if not self._joins(tensor):
            return self._awaited(self._begin_sum(tensor))
        joined = self._joined
        if joined is None or not joined.takes(tensor):
            joined = self._joined = Joined(self._begin_sum, self._await)
        joined.add(tensor)
        return joined.arrive

    def _joins(self, tensor: Any) -> bool:
        return self.joins_small and tensor.numel() * tensor.element_size() <= SMALL_BYTES

    def _is_averaged_by_group(self, tensor: Any, scale: int) -> bool:
        """Whether the group has the average at once: it counts all its members alike."""
        quorum = self._quorum
        assert quorum is not None, "it has taken part in one"
        return scale == len(quorum.members) and not self._joins(tensor) and self._group.averages(tensor)

    def _awaited(self, pending: Pending | None) -> Callable[[], object] | None:
        return None if pending is None else lambda: self._await(pending)

    def _begin_sum(self, tensor: Any, *, averages: bool = False) -> Pending | None:
        try:
            return self._group.allreduce(tensor, averages=averages)
        except Exception as error:  # noqa: BLE001 - whatever it is, the vote tells of it
            self.report_error(error)
            return None

    def report_error(self, error: Exception) -> None:
        """Have the step not count. The first error is the cause, and frees the others from the group."""
        if self._error is None:
            self._error = error
            if self._quorum is not None:
                self._group.abort(f"replica {self._watched.replica}: {error}")

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

    @property
    def quorum(self) -> Quorum | None:
        """The quorum that this member is in."""
        return self._quorum

    @property
    def participants(self) -> tuple[int, ...]:
        """The members that add to the average."""
        quorum = self._quorum
        if quorum is None:
            return ()
        out = set(quorum.idle) if self._counts_healed else {*quorum.idle, *quorum.healing}
        return tuple(replica for replica in quorum.members if replica not in out)

    @property
    def has_state(self) -> bool:
        """Whether the state has a committed step in it."""
        return self._has_state

    def whole_state(self) -> dict[str, Any]:
        """All that a newcomer needs."""
        return {"manager": self.state_dict(), "user": self._user_state()}

    def take_final(self, take: Callable[[dict[str, Any]], dict[str, Any] | None]) -> bool:
        """Have the state that training has ended with; False when nobody has it any more."""
        state = take(self.whole_state())
        if state is not None:
            self._load(state)
            self._has_state = True
        return state is not None

    def _user_state(self) -> dict[str, Any]:
        return {key: state_dict() for key, (_, state_dict) in self._states.items()}

    def _load(self, state: dict[str, Any]) -> None:
        self.load_state_dict(state["manager"])
        for key, (load_state_dict, _) in self._states.items():
            load_state_dict(state["user"][key])

    def end_collectives(self) -> None:
        """Say that there are no more in this step."""

    def _arrive(self) -> None:
        """Wait for all sums."""
        for work in self._open:
            work.arrive()

    def _wait_for_all(self) -> None:
        """Wait for what nobody has waited for."""
        for work in self._open:
            work.wait()
        self._open, self._joined = [], None

    def _await(self, pending: Pending) -> bool:
        """Wait for a sum; whether it is there."""
        quorum = self._quorum
        assert quorum is not None
        # An error has aborted the group: this ends at once.
        limit_s = self._timeouts.collective_s(is_healing=bool(quorum.healing))
        self._watched.mark("a collective", limit_s * 1.1)
        try:
            pending.wait(limit_s)
        except CollectiveError as error:
            self.report_error(error)
        self._watched.mark("training", self._timeouts.step_s)
        return self._error is None

    def _scale(self, tensor: Any, scale: int) -> None:
        """Make a sum an average; after an error it is of no use."""
        if scale > 1 and self._error is None:
            tensor.div_(scale)

    def _try(self, what: Callable[[Any], None], value: Any) -> None:
        try:
            what(value)
        except Exception as error:  # noqa: BLE001 - whatever it is, the vote tells of it
            self.report_error(error)
