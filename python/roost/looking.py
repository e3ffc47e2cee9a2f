"""What actors do at this moment: asked of their processes' control threads, which answer also while a loop stands still."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

from roost.events import now
from roost.owning import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from roost.owned_actors import OwnedActors
    from roost.runtime import Runtime

__all__ = ["Doing", "Looking"]

Doing: TypeAlias = "tuple[tuple[tuple[str, datetime], ...], int]"
"""The endpoints of one actor that run, each with its start; and the messages in its mailbox."""

# How long one that asks waits for the answers; after that, what was last known counts.
_WAIT_S = 0.25


class Looking:
    """What this process asks of others about the actors that it owns."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By mesh: the procs that have not answered, and what is to be done when all have.
        self._asked: dict[int, list[tuple[set[int], Callable[[], None]]]] = {}

    def look(self, actors: OwnedActors, ranks: Iterable[int], done: Callable[[], None]) -> None:
        """See what some actors do, then call `done`; in any case soon."""
        runtime = self._runtime
        procs = {actors.procs[rank // actors.per] for rank in ranks if actors.state(rank) not in ENDED}
        if runtime.proc in procs:
            procs.remove(runtime.proc)
            self._note(actors, runtime.proc, runtime.node.look(actors.id))
        if not procs or runtime.closed:
            done()
            return
        question = (procs, done)
        self._asked.setdefault(actors.id, []).append(question)
        runtime.loop.call_later(_WAIT_S, self._give_up, actors.id, question)
        for proc in tuple(procs):
            runtime.control.look(proc, actors.id)

    def seen(self, proc: int, mesh: int, activities: Sequence[tuple[int, int, Sequence[tuple[str, int]]]]) -> None:
        """The answer of one process."""
        actors = self._runtime.owned.get(mesh)
        if actors is not None:
            self._note(actors, proc, activities)  # type: ignore[arg-type]
        for question in tuple(self._asked.get(mesh, ())):
            open_procs, _ = question
            open_procs.discard(proc)
            if not open_procs:
                self._give_up(mesh, question)

    def _give_up(self, mesh: int, question: tuple[set[int], Callable[[], None]]) -> None:
        questions = self._asked.get(mesh, [])
        if question in questions:
            questions.remove(question)
            if not questions:
                del self._asked[mesh]
            question[1]()

    def _note(
        self, actors: OwnedActors, proc: int, activities: Sequence[tuple[int, int, Sequence[tuple[str, int]]]]
    ) -> None:
        doing = {rank: what for rank, what in actors.doing.items() if actors.procs[rank // actors.per] != proc}
        first = actors.procs.index(proc) * actors.per
        for slot, queued, running in activities:
            doing[first + slot] = (tuple((name, _moment(at_ns)) for name, at_ns in running), queued)
        actors.doing = doing


def _moment(at_ns: int) -> datetime:
    """A time of the monotonic clock, for people."""
    from datetime import timedelta

    return now() - timedelta(microseconds=(time.monotonic_ns() - at_ns) / 1000)
