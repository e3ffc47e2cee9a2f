"""`Ledger`: the actor in the job's own process that hands data out and is told what happened."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from roost.actor import Actor
from roost.endpoint import endpoint
from roost.ft.quorum import Member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost.ft.books import Books
    from roost.ft.data import Item

__all__ = ["Ledger", "News", "Settlement", "books_of", "forget_books", "keep_books"]

_books: dict[int, Books] = {}


def keep_books(books: Books) -> int:
    """Have a ledger's books found by it: what pickles them would copy them."""
    _books[id(books)] = books
    return id(books)


def forget_books(number: int) -> None:
    """The job is over."""
    _books.pop(number, None)


def books_of(number: int) -> Books:
    """The books of a job of this process."""
    return _books[number]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What one proc tells of the end of a sync."""

    is_yes: bool
    first: int = 0
    """The number of the first of its inner steps that count now."""
    losses: tuple[float, ...] = ()
    """Of those steps."""
    counted: tuple[int, ...] = ()
    """Positions of items that were learnt from."""
    discarded: tuple[int, ...] = ()
    """Positions of items that were in vain."""
    lost_steps: int = 0
    at: float = 0.0
    """When it was decided, in seconds since the epoch."""

    @property
    def fields(self) -> tuple[Any, ...]:
        """What it travels as: that is quicker than what has a class."""
        return tuple(getattr(self, one.name) for one in fields(self))


@dataclass(slots=True)
class News:
    """What a restarted replica has to tell of its way back: phases, by the clock."""

    times: dict[str, float] = field(default_factory=dict[str, float])
    source: int | None = None
    donors: tuple[int, ...] = ()
    bytes: int = 0
    checksum: str = ""


class Ledger(Actor):
    """The driver's end.

    Args:
        number: the job's books.
    """

    def __init__(self, number: int) -> None:
        self._books = books_of(number)

    @endpoint(concurrent=True)
    async def take(self, seat: tuple[int, int, int]) -> Item[Any] | None:
        """The next item for a proc, by the fields of its `Member`; None when there is none."""
        return self._books.take(Member(*seat))

    @endpoint(concurrent=True)
    async def settle(self, seat: tuple[int, int, int], settlement: tuple[Any, ...]) -> None:
        """A sync is over; the fields of a `Member`, and those of a `Settlement`."""
        self._books.settle(Member(*seat), Settlement(*settlement))

    @endpoint(concurrent=True)
    async def tell(self, member: Member, news: News) -> None:
        """A replica is on its way back."""
        self._books.tell(member, news)

    @endpoint(concurrent=True)
    async def began(self, seconds: float) -> None:
        """A life has built its model and done its first step; how long the longer of both took."""
        self._books.began(seconds)

    @endpoint(concurrent=True)
    async def heard(self, replica: int, at: float) -> None:
        """The coordinator heard of a death."""
        self._books.heard(replica, at)

    @endpoint(concurrent=True)
    async def released(self, at: float) -> None:
        """All members of a group have been freed from it."""
        self._books.released(at)

    @endpoint(concurrent=True)
    async def has_begun(self) -> bool:
        """Whether a step counts by now."""
        return self._books.progress > 0

    @endpoint(concurrent=True)
    async def is_trained(self) -> bool:
        """Whether a replica is there that has the trained state."""
        return bool(self._books.trained)

    @endpoint(concurrent=True)
    async def formed(self, learners: tuple[int, ...]) -> None:
        """Other replicas train from now on than before."""
        self._books.formed(learners)

    @endpoint(concurrent=True)
    async def staged(self, seconds: float, nbytes: int) -> None:
        """A donor has copied its state for newcomers."""
        self._books.staged(seconds, nbytes)


def positions(items: Sequence[Item[Any]]) -> tuple[int, ...]:
    """The positions of items."""
    return tuple(item.position for item in items)
