"""Who keeps the others from the end of an operation, as far as it can be known from how far each is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Stage", "Standing", "suspects_of"]

Stage = tuple[int, str]
"""How far a library is with an operation: a number that grows, and words for it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a member is, as it says itself."""

    begun: int
    """The number of the last operation that it has begun."""
    name: str
    """What that is."""
    is_in_it: bool
    """Whether the operation that was asked for is still under way there."""
    stage: Stage | None
    """How far its library is with the one that it is in, where that can be seen."""


def suspects_of(
    operation: tuple[int, str], names: Sequence[str], standings: Mapping[int, Standing | None], lagging: Sequence[int]
) -> tuple[str, list[int]]:
    """What there is to say, and whom it accuses.

    Args:
        operation: the number and the name of the one that has not ended in time.
        names: the members'.
        standings: each member's; None for one that does not answer.
        lagging: who is seen not to have brought his part, by a library that sees that.
    """
    number, name = operation
    said: dict[int, str] = {}
    for rank, standing in standings.items():
        if standing is None:
            said[rank] = f"{names[rank]} does not answer"
        elif standing.begun < number:
            last = f"{standing.name}, operation {standing.begun}"
            said[rank] = f"{names[rank]} has not begun it (its last is {last})"
        elif standing.begun == number and standing.name != name:
            said[rank] = f"{names[rank]} is in {standing.name} instead"
    if said:
        return "; ".join(said.values()), list(said)
    return _of_all_begun(names, {rank: one for rank, one in standings.items() if one is not None}, lagging)


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
