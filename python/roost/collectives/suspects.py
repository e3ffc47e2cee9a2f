"""Who keeps the others from the end of an operation, as far as it can be known from how far each is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Overdue", "Stage", "Standing", "suspects_of"]

Stage = tuple[int, str]
"""How far a library is with an operation: a number that grows, and words for it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a member is, as it says itself."""

    begun: int
    """The number of the last operation that it has begun, of those that are counted together."""
    what: str
    """What that is, and on what."""
    is_in_it: bool
    """Whether the operation that was asked for is still under way there."""
    stage: Stage | None
    """How far its library is with the one that it is in, where that can be seen."""
    lagging: tuple[int, ...] = ()
    """Who it sees not to have brought his part, where its library sees that."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """An operation that has not ended in time."""

    number: int
    what: str
    between: tuple[int, ...] = ()
    """Of a message: the ranks of its sender and its receiver."""

    def not_begun(self, rank: int, standing: Standing) -> str:
        """What a member has not done that is further back."""
        if self.between:
            return "has not sent it" if rank == self.between[0] else "has not called receive for it"
        last = f"its last is {standing.what}, operation {standing.begun}" if standing.begun else "it has begun none"
        return f"has not begun it ({last})"


def suspects_of(
    overdue: Overdue, names: Sequence[str], standings: Mapping[int, Standing | None], lagging: Sequence[int]
) -> tuple[str, list[int]]:
    """What there is to say, and whom it accuses.

    Args:
        overdue: what has not ended in time.
        names: all members'.
        standings: of each member whose operation it is; None for one that does not answer.
        lagging: who is seen not to have brought his part, by a library that sees that.
    """
    said: dict[int, str] = {}
    meant = _meant(overdue, standings)
    for rank, standing in standings.items():
        if standing is None:
            said[rank] = f"{names[rank]} does not answer"
        elif standing.begun < overdue.number:
            said[rank] = f"{names[rank]} {overdue.not_begun(rank, standing)}"
        elif standing.begun == overdue.number and standing.what != meant:
            said[rank] = f"{names[rank]} is in {standing.what} instead of {meant}"
    if said:
        return "; ".join(said.values()), list(said)
    return _of_all_begun(names, {rank: one for rank, one in standings.items() if one is not None}, lagging)


def _meant(overdue: Overdue, standings: Mapping[int, Standing | None]) -> str:
    """What most of those are in who are there: it may be the member that asks who is somewhere else."""
    there = Counter(one.what for one in standings.values() if one is not None and one.begun == overdue.number)
    most = max(there.values(), default=0)
    return overdue.what if there[overdue.what] == most else there.most_common(1)[0][0]


def _of_all_begun(
    names: Sequence[str], standings: Mapping[int, Standing], lagging: Sequence[int]
) -> tuple[str, list[int]]:
    def called(ranks: Sequence[int]) -> str:
        return ", ".join(names[rank] for rank in ranks)

    begun = "all ranks have begun it"
    if lagging:
        return f"{begun}, and what is missing is the part of {called(lagging)}", list(lagging)
    inside = [rank for rank, one in standings.items() if one.is_in_it]
    ended = [rank for rank in standings if rank not in inside]
    if ended and inside:
        return f"{begun}, it has ended at {called(ended)}, and hangs at {called(inside)} or one of these", inside
    stages = {rank: one.stage for rank, one in standings.items() if one.stage is not None}
    if len(stages) == len(standings) and stages:
        first = min(stages.values())
        late = [rank for rank, stage in stages.items() if stage == first]
        if len(late) < len(stages):
            return f"{begun}, and at {called(late)} {first[1]}, where the others are further", late
        return f"{begun}, and at all of them {first[1]}: which of them hangs cannot be seen from outside", []
    return f"{begun} and none has ended it: which of them hangs cannot be seen from outside", []
