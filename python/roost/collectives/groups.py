"""`Groups`: the groups of this process, as others may ask of them and end them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from roost.collectives.watch import Watch

if TYPE_CHECKING:
    from roost.collectives.group import Group, GroupId, Pending
    from roost.collectives.operations import Between
    from roost.collectives.suspects import Standing
    from roost.runtime import Runtime

__all__ = ["Groups", "groups"]


class Groups:
    """The groups of this process."""

    def __init__(self, runtime: Runtime) -> None:
        self.loop = runtime.loop
        # Who has an operation under way lives until that has ended.
        self.busy: dict[Pending, Group] = {}
        # Who goes to a meeting goes alone.
        self.coming = asyncio.Lock()
        self._watch = Watch(runtime)
        # A process may have several members of a group.
        self._living: WeakValueDictionary[tuple[GroupId, int], Group] = WeakValueDictionary()

    def add(self, group: Group) -> None:
        """It is there, and hears of deaths."""
        self._living[group.id, group.rank] = group
        self._watch.follow(group)

    def remove(self, group: Group) -> None:
        """It is closed."""
        self._living.pop((group.id, group.rank), None)
        self._watch.leave(group)

    def ended(self, pending: Pending) -> None:
        """An operation has."""
        self.busy.pop(pending).ended(pending)

    def progress(self, group: GroupId, rank: int, between: Between, number: int) -> Standing | None:
        """How far a member is, and whether it is still in an operation; None when it is not there."""
        known = self._living.get((group, rank))
        return None if known is None else known.standing(between, number)

    def give_up(self, group: GroupId, rank: int, reason: str, suspects: tuple[str, ...]) -> None:
        """Another member has given up."""
        known = self._living.get((group, rank))
        if known is not None:
            known.break_off(reason, suspects=suspects)


def groups(runtime: Runtime) -> Groups:
    """Those of this process, made at first use."""
    if runtime.groups is None:
        runtime.groups = Groups(runtime)
    return runtime.groups
