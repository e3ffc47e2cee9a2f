"""`Feed`: the items of a run, each handed out once, and what became of it. `GlobalBatch`: how many a step learns from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from roost.values import check_integer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Feed", "GlobalBatch", "Item", "shares"]

B = TypeVar("B")


class GlobalBatch(Iterable[list[B]]):
    """Data of which each step learns from as many items, however many replicas there are: `step` gets the list of its share.

    Left out, each replica learns from one item a step, and the fewer replicas there are, the less all of them learn from. With
    `EveryStep` a replica's gradients count by its share, so that the average is that over all items when the loss is a mean.

    Args:
        data: the items, each handed out once to one replica.
        size: how many a step of all replicas together learns from; the last two from what is left.

    Raises:
        TypeError: data that cannot be iterated.
        ValueError: a size that is none.
    """

    def __init__(self, data: Iterable[B], size: int) -> None:
        _check_data("GlobalBatch", data)
        check_integer("GlobalBatch", "size", size, least=1)
        self.data = data
        self.size = size

    def __iter__(self) -> Iterator[list[B]]:
        """The batches as one replica alone would have them."""
        items = iter(self.data)
        while batch := list(islice(items, self.size)):
            yield batch


def shares(size: int, count: int) -> tuple[int, ...]:
    """How many items of a global batch each of so many replicas learns from, as near to each other as can be."""
    each, over = divmod(size, count)
    return tuple(each + (place < over) for place in range(count))


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
    # Items that not all of its procs have taken yet, and how many came before them.
    items: deque[Item[B]] = field(default_factory=deque["Item[B]"])
    first: int = 0
    # How many each proc has taken.
    counts: dict[int, int] = field(default_factory=dict[int, int])
    # Positions of which it has not said what became of them.
    open: set[int] = field(default_factory=set[int])


class Feed(Generic[B]):
    """Hands items out. What a replica took and did not count when it died is skipped: it may have been learnt from, or not.

    Args:
        data: the items; asked for as they are wanted, so it may be endless.
        procs: how many procs a replica has; each is given the same.
    """

    def __init__(self, data: Iterable[B], procs: int = 1) -> None:
        _check_data("FaultTolerantJob", data)
        self._items: Iterator[B] = iter(data)
        self._procs = procs
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
        if count - one.first == len(one.items):
            drawn = self._draw()
            if drawn is None:
                return None
            one.items.append(drawn)
            one.open.add(drawn.position)
        item = one.items[count - one.first]
        one.counts[proc] = count + 1
        while one.items and len(one.counts) == self._procs and min(one.counts.values()) > one.first:
            one.items.popleft()
            one.first += 1
        return item

    def settle(self, replica: int, life: int, counted: Iterable[int], discarded: Iterable[int]) -> None:
        """A replica says which of its items are learnt from, and which will never be."""
        one = self._life(replica, life)
        if one is None:
            return
        one.open.difference_update(counted)
        in_vain = one.open.intersection(discarded)
        one.open -= in_vain
        self.skipped.extend(sorted(in_vain))

    def end_life(self, replica: int) -> int:
        """A life of a replica is over; how many items it took with it."""
        one = self._lives.get(replica)
        if one is None:
            return 0
        lost = sorted(one.open)
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


def _check_data(owner: str, data: object) -> None:
    """Refuse what has no items; without `iter`, by which a DataLoader starts its processes."""
    if not (hasattr(type(data), "__iter__") or hasattr(type(data), "__getitem__")):
        raise TypeError(f"{owner} data={data!r}: give items, such as range(1000) or a DataLoader")
