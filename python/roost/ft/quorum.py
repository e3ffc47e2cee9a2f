"""What replicas, the coordinator and its state machine (`quorums.py`) tell each other: who trains together, and whether a step counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.ft.ending import End

__all__ = [
    "Ask",
    "Condemned",
    "Decided",
    "Decision",
    "Ended",
    "Formed",
    "Grant",
    "Member",
    "Output",
    "Quorum",
    "Report",
    "Stopped",
    "Verdict",
    "id_of",
]

_COUNTER_BITS = 32


def id_of(epoch: int, counter: int) -> int:
    """Of a quorum: greater than all before it, whoever restarts.

    Args:
        epoch: which life of the quorum service forms it.
        counter: which quorum of that life it is.
    """
    return (epoch << _COUNTER_BITS) | counter


@dataclass(frozen=True, slots=True)
class Ask:
    """What one proc of a replica asks with."""

    step: int
    """How many syncs its state has in it."""
    has_state: bool
    """Whether that state is whole: False from birth until a peer's state was taken and verified."""
    digest: str = ""
    """Of the state that it was built with; who has the same before the first commit need take nothing."""
    is_broken: bool = False
    """Its group is of no more use, so that another has to be made."""
    is_idle: bool = False
    """It has nothing more to train on, and takes part with nothing until all are so."""
    base: int = 0
    """How many inner steps count by now."""
    local: int = 0
    """How many it brings to this sync."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a step counted."""

    quorum_id: int
    step: int
    is_yes: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What one proc of a replica knows, for a coordinator that knows nothing."""

    life: int
    has_state: bool
    last: Decision | None = None
    """The last decision that it was told."""
    end: End | None = None
    """How training has ended for it."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """Who takes one step together."""

    id: int
    """By `id_of`: never used twice."""
    step: int
    members: tuple[int, ...]
    """Replicas, in the order of their ranks in the group."""
    lives: tuple[int, ...]
    """Of each member."""
    healing: tuple[int, ...] = ()
    """Members that take their state from another before they count."""
    sources: tuple[tuple[int, ...], ...] = ()
    """Where each of those takes it from: whose state it is, and others that may have parts of the same."""
    idle: tuple[int, ...] = ()
    """Members that have nothing to add."""
    base: int = 0
    """How many inner steps count before it."""
    steps: int = 0
    """How many more do after it, as all members say: the most that one of them brings."""

    @property
    def following(self) -> Quorum:
        """The next step of the same members, once this one counts."""
        return replace(self, step=self.step + 1, base=self.base + self.steps, healing=(), sources=())

    @property
    def learners(self) -> tuple[int, ...]:
        """The members that train until the next quorum."""
        return tuple(replica for replica in self.members if replica not in self.idle)

    def rank(self, replica: int) -> int:
        """The place of a replica in the group."""
        return self.members.index(replica)

    def sources_of(self, replica: int) -> tuple[int, ...]:
        """Where a replica takes its state from; nowhere when it has one."""
        return self.sources[self.healing.index(replica)] if replica in self.healing else ()

    def is_source(self, replica: int) -> bool:
        """Whether others take their state from a replica."""
        return any(replica in one for one in self.sources)


@dataclass(frozen=True, slots=True)
class Formed:
    """A quorum: its members' asks are answered with it."""

    quorum: Quorum
    is_new: bool
    """Whether its group is still to be made."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A step counts, or does not, for every member of its quorum: its votes are answered with it."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Condemned:
    """Nothing will come of this quorum any more: its store is ended and its group aborted."""

    quorum_id: int
    members: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nobody has anything more to train on: all asks are answered with the end."""

    base: int
    """How many inner steps count."""
    trained: tuple[int, ...]
    """The replicas that have the state."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Training cannot go on."""

    reason: str


Output = Formed | Decided | Condemned | Ended | Stopped


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a step counts."""

    is_yes: bool
    next: Grant | End | None = None
    """The quorum after it, where that was asked for with the votes and nobody has to be waited for."""
