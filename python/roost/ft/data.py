"""`Feed`: the items of a run, each handed out once, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Feed", "Item"]

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Item(Generic[B]):
    """One item, on its way to a replica."""

    position: int
    """Its place in the data, from 0."""
    value: B


@dataclass(slots=True)
class _Life(Generic[B]):
    """What one life of a replica was given."""

    life: int
    # In the order in which it took them, until they are settled; its procs each take the same.
    taken: list[Item[B]] = field(default_factory=list["Item[B]"])
    settled: set[int] = field(default_factory=set[int])
    counts: dict[int, int] = field(default_factory=dict[int, int])


class Feed(Generic[B]):
    """Hands items out. What a replica took and did not count when it died is skipped: it may have been learnt from, or not.

    Args:
        data: the items; asked for as they are wanted, so it may be endless.
    """

    def __init__(self, data: Iterable[B]) -> None:
        self._items: Iterator[B] = iter(data)
        self._next = 0
        self._lives: dict[int, _Life[B]] = {}
        self._is_over = False
        self.skipped: list[int] = []

    def take(self, replica: int, life: int, proc: int) -> Item[B] | None:
        """The next item for a proc of a replica; None at the end of the data, and for a life that is over."""
        one = self._life(replica, life)
        if one is None:
            return None
        count = one.counts.get(proc, 0)
        if count == len(one.taken):
            item = self._draw()
            if item is None:
                return None
            one.taken.append(item)
        one.counts[proc] = count + 1
        return one.taken[count]

    def settle(self, replica: int, life: int, counted: Iterable[int], discarded: Iterable[int]) -> None:
        """A replica says which of its items are learnt from, and which will never be."""
        one = self._life(replica, life)
        if one is None:
            return
        one.settled.update(counted)
        for position in discarded:
            if position not in one.settled:
                one.settled.add(position)
                self.skipped.append(position)

    def end_life(self, replica: int) -> int:
        """A life of a replica is over; how many items it took with it."""
        one = self._lives.get(replica)
        if one is None:
            return 0
        lost = [item.position for item in one.taken if item.position not in one.settled]
        self.skipped.extend(lost)
        self._lives[replica] = _Life(one.life + 1)
        return len(lost)

    def _draw(self) -> Item[B] | None:
        if self._is_over:
            return None
        try:
            value = next(self._items)
        except StopIteration:
            self._is_over = True
            return None
        self._next += 1
        return Item(self._next - 1, value)

    def _life(self, replica: int, life: int) -> _Life[B] | None:
        known = self._lives.setdefault(replica, _Life(life))
        if known.life < life:
            self.end_life(replica)
            known = self._lives[replica] = _Life(life)
        return known if known.life == life else None
