"""`Unheard`: one failure that somebody must hear of, and those that may still look at it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from roost import serialize
from roost.reply import Reply

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Protocol

    from roost.failure import Failure

    class Carrier(Protocol):
        """What brings an error to whoever will look at it: a reply, the answers of a stream, the values of a port."""

        def may_be_heard(self) -> bool:
            """Whether there is an error that nobody has looked at yet, and somebody still can."""
            ...


__all__ = ["Unheard"]


class Unheard:
    """A failure that somebody must hear of: a caller that got it, a hook that handled it, or else the end of the mesh."""

    __slots__ = (
        "_asked",
        "_carriers",
        "_heard",
        "_original",
        "_with",
        "climbing",
        "climbs",
        "failure",
        "refused",
        "undecided",
    )

    def __init__(self, failure: Failure, original: bytes | None = None) -> None:
        self.failure = failure
        self._original = original
        self._heard = False
        # What a hook said that did not handle it.
        self.refused = ""
        # Whether no policy mends it.
        self.climbs = False
        # The task that asks hooks, while it does.
        self.climbing: asyncio.Task[None] | None = None
        # What is to be done once nobody can look at it any more, while somebody can.
        self.undecided: Callable[..., None] | None = None
        # Those that carry it and still live.
        self._carriers: list[weakref.ref[Carrier]] = []
        self._with: Unheard | None = None
        # The hooks and owners that hear of it.
        self._asked: list[object] = []

    def original(self) -> BaseException | None:
        """The exception that it began with, in an actor."""
        return None if self._original is None else serialize.load_exception(self._original)

    def learn(self, original: bytes | None) -> None:
        """The exception came later than the failure."""
        self._original = self._original or original

    def carried_by(self, carrier: Carrier) -> None:
        """An error that tells of it is on its way to whoever looks."""
        if not self._heard:
            self._carriers.append(weakref.ref(carrier))

    def is_new_to(self, hook: object) -> bool:
        """Whether this hook, or owner, is to hear of it and was not asked yet."""
        if hook in self._asked:
            return False
        self._asked.append(hook)
        return True

    def goes_with(self, first: Unheard) -> None:
        """Whoever hears of the first has heard of this one too."""
        if first is not self:
            self._with = first

    def hear(self) -> None:
        """Somebody got it."""
        self._heard = True
        self.undecided = self._with = None
        self._carriers.clear()

    @property
    def heard(self) -> bool:
        """Whether anybody did."""
        if self._heard:
            return True
        carriers = [carrier for reference in self._carriers if (carrier := reference()) is not None]
        if any(isinstance(one, Reply) and one.done() and not one.may_be_heard() for one in carriers) or (
            self._with is not None and self._with.heard
        ):
            self.hear()
            return True
        return False

    @property
    def may_be_heard(self) -> bool:
        """Whether somebody still can look at an error that tells of it."""
        carriers = [reference() for reference in self._carriers]
        return any(one is not None and one.may_be_heard() for one in carriers) or (
            self._with is not None and self._with.may_be_heard
        )

    def decide(self, *, last: bool = False) -> None:
        """Something that carried it is gone, or will not be waited for: `last`."""
        what = self.undecided
        if what is not None:
            self.undecided = None
            what(last=last)
