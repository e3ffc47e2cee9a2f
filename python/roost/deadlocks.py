"""`Deadlocks`: finds calls that wait for themselves.

A message carries the endpoints that wait for it. When one of them is the very endpoint that it has to wait for, that is a
deadlock if every endpoint of the cycle really awaits: one that has sent its call and goes on with something else may end by
itself. So word goes round the cycle against the calls, from the mailbox where the last message waits to its sender, to who
called that, and so on back to the actor with the mailbox; each process passes it on when its endpoint's own task awaits that
reply and nothing else. Once it is all the way round nothing in the cycle can move any more, and the last call fails.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from roost.errors import DeadlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost._roost import Message
    from roost.endpoint_info import EndpointInfo
    from roost.runtime import Runtime

__all__ = ["Deadlocks"]

# How soon an endpoint that does not await yet is looked at again: doubled each time, up to the longest.
_PAUSE_S = 0.005
_PAUSE_MAX_S = 1.0

# (proc, mesh, slot, number of the message there) of an endpoint that waits.
_Link = tuple[int, int, int, int]
# (proc, number of the call there, rank).
_Call = tuple[int, int, int]


class _Word:
    """What goes round a cycle."""

    __slots__ = ("call", "cycle", "last", "names", "rank")

    def __init__(self, last: _Call, cycle: list[_Link], call: int, rank: int, names: list[str]) -> None:
        # The call whose message waits in the mailbox; it fails when the word is round.
        self.last = last
        # The endpoints that are still to be asked, outermost first.
        self.cycle = cycle
        # The call that the last of them has to await, and the rank of it by which the word came.
        self.call = call
        self.rank = rank
        # The endpoints that were passed, in calling order.
        self.names = names

    def parts(self) -> tuple[_Call, list[_Link], int, int, list[str]]:
        """As it is made."""
        return self.last, self.cycle, self.call, self.rank, self.names


class Deadlocks:
    """This process's part in finding them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By the reply of several ranks: those by which word has come. One that may still answer, or fail, ends the wait.
        self._stuck: WeakKeyDictionary[asyncio.Future[Any], set[int]] = WeakKeyDictionary()

    def suspect(
        self,
        running: Message,
        others: Sequence[EndpointInfo | None],
        endpoint: EndpointInfo | None,
        name: str,
        call: _Call,
        cycle: list[_Link],
        /,
    ) -> None:
        """A message came for an actor whose running message waits for it.

        Args:
            running: what the actor handles.
            others: the endpoints of everything else that it handles, or that waits before the new message.
            endpoint: the new message's; None when the class has none of that name.
            name: of that endpoint.
            call: the new message's.
            cycle: the endpoints that wait for it, from `running` on.
        """
        if endpoint is None or not _holds_up(running.endpoint, others, endpoint):
            return
        runner = running.runner
        target = f"{runner.hosted.rank_name(runner.rank)}.{name}"
        self._pass_on(call[0], _Word(call, cycle, call[1], call[2], [target]))

    def _pass_on(self, proc: int, word: _Word) -> None:
        if proc == self._runtime.proc:
            self._runtime.loop.call_soon(self._look, word, _PAUSE_S)
        else:
            self._runtime.send_system(proc, 1, ".deadlock", pickle.dumps(word.parts(), 5), [])

    def heard(self, _mesh: int, _sender: int, _ranks: list[tuple[int, int]], payload: bytes) -> None:
        """Word came from another process."""
        self._look(_Word(*pickle.loads(payload)), _PAUSE_S)

    def _look(self, word: _Word, pause_s: float) -> None:
        """Pass the word on once the endpoint awaits the call; forget it once either is over."""
        runtime = self._runtime
        if runtime.closed:
            return
        reply = runtime.node.sink(word.call)
        if not isinstance(reply, asyncio.Future) or reply.done():
            return
        if not word.cycle:
            self._fail(word)
            return
        _, mesh, slot, number = word.cycle[-1]
        message = runtime.node.running(mesh, slot, number)
        if message is None or message.answered:
            return
        runner = message.runner
        awaits = runner.task_of(message) in (task for task, *_ in reply._waiting_tasks())  # type: ignore[attr-defined]
        if not awaits or not self._has_come_by_all(word, reply):
            runtime.loop.call_later(pause_s, self._look, word, min(2 * pause_s, _PAUSE_MAX_S))
            return
        names = [f"{runner.hosted.rank_name(runner.rank)}.{message.name}", *word.names]
        rest = word.cycle[:-1]
        if rest:
            self._pass_on(message.sender, _Word(word.last, rest, message.call, message.rank, names))
        else:
            self._pass_on(word.last[0], _Word(word.last, [], word.last[1], word.last[2], names))

    def _has_come_by_all(self, word: _Word, reply: Any) -> bool:
        """Whether each rank that may still answer waits for this endpoint."""
        ranks = reply.open_ranks()
        if len(ranks) == 1:
            return True
        stuck = self._stuck.setdefault(reply, set())
        stuck.add(word.rank)
        return stuck.issuperset(ranks)

    def _fail(self, word: _Word) -> None:
        _, call, rank = word.last
        runtime = self._runtime
        reply = runtime.node.sink(call)
        if reply is not None:
            # Nobody may hear of a deadlock and have the call executed all the same.
            runtime.node.take_back(call, rank)
            reply.fail_ranks([(rank, DeadlockError(word.names))])


def _holds_up(running: EndpointInfo | None, others: Sequence[EndpointInfo | None], endpoint: EndpointInfo) -> bool:
    """Whether the new message cannot start before the running one has ended, whatever the others do."""
    if running is None or not running.concurrent or not endpoint.concurrent:
        return True
    if any(other is not None and not other.concurrent for other in others):
        # One that runs alone waits for the running one, and the new one behind it.
        return True
    # A limit of one: nobody else makes room.
    same = (running.group or running.name) == (endpoint.group or endpoint.name)
    return same and endpoint.limit == 1
