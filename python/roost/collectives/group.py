"""`Group`: what is behind a communicator: operations under way, and how all of them end when one member fails the others."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from roost.collectives.groups import groups
from roost.collectives.operations import described
from roost.collectives.suspects import Overdue, Standing, suspects_of
from roost.desk import desk_of
from roost.errors import CollectiveError
from roost.last_resort import end_process
from roost.reply import Reply, fail_reply

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Sequence

    from roost.collectives.groups import Groups
    from roost.collectives.library import Begun, Joined
    from roost.collectives.operations import Alike, Between, Operation
    from roost.failure import Failure
    from roost.runtime import Runtime

__all__ = ["Group", "GroupId", "Member", "Pending"]

GroupId = tuple[int, ...]
"""The id of a group, and behind it, of one that was split off, how it was."""

# How long an error of the library waits for the news of the death that explains it: connections end with the process, and the news
# goes by its owner's loop, which may be busy.
_HOLD_S = 1.0
# How long others have to say how far they are, when an operation has not ended in time.
_ANSWER_S = 1.0
# How long operations may take to end once they were aborted; then the process is ended, since nothing else frees it. NCCL's abort
# may hang; and a send of gloo's that was in the middle of its bytes sometimes waits on, though its connection has ended (seen with
# torch 2.15).
_ABORT_WITHIN_S = 2.0
# In so many looks: one that comes late, because the process had no CPU, is not yet the last.
_LOOKS = 8
# How many operations in one turn of the loop may have ended when they were begun: each takes some 10 us.
_AT_ONCE_MAX = 16


class Member(NamedTuple):
    """One rank of a group."""

    name: str
    proc: int


class Pending:
    """An operation under way.

    A thread of the library's tells of its end, and may be the last to let go of it: it does not know the operation, whose `begin`
    knows the library, which must not be ended on that thread.
    """

    __slots__ = ("alike", "begun", "between", "error", "name", "number", "reply", "result", "timeout_s", "timer")

    def __init__(self, number: int, operation: Operation, reply: Reply[Any], timeout_s: float) -> None:
        self.number = number
        self.name = operation.name
        self.between = operation.between
        self.alike = operation.alike
        self.result = operation.result
        self.reply = reply
        self.timeout_s = timeout_s
        # It has the tensors, which the library writes until it is done.
        self.begun: Begun | None = None
        self.timer: TimerHandle | None = None
        self.error: BaseException | None = None

    def __str__(self) -> str:
        if self.between:
            sender, receiver = self.between
            return f"{self.name}, message {self.number} from rank {sender} to rank {receiver}"
        return f"{self.name}, operation {self.number}"


class _End(NamedTuple):
    """Why a group has come to its end."""

    reason: str
    failure: Failure | None
    suspects: tuple[str, ...]


class Group:
    """One member's end.

    Args:
        runtime: this process's.
        group: its id.
        title: what people call it.
        members: all of them, in rank order.
        rank: this one's place.
        library: its end in the library.
    """

    def __init__(
        self, runtime: Runtime, group: GroupId, title: str, members: Sequence[Member], rank: int, library: Joined
    ) -> None:
        self.runtime = runtime
        self.id = group
        self.title = title
        self.members = tuple(members)
        self.rank = rank
        self.library = library
        # The last one that was begun here, of all members' and of the messages between each two: not all have the same messages.
        self._last: dict[Between, tuple[int, str, Alike | None]] = {}
        self._children: WeakSet[Group] = WeakSet()
        self._lock = threading.Lock()
        self._pending: dict[tuple[Between, int], Pending] = {}
        # Operations that had ended when they were begun, since the loop's last turn.
        self._at_once = 0
        # Their errors wait for the news that explains them.
        self._held: list[Pending] = []
        self._end: _End | None = None
        self._ended = asyncio.Event()

    @property
    def broken(self) -> str | None:
        """Why it is of no more use."""
        return None if self._end is None else self._end.reason

    def error(self, doing: str) -> CollectiveError:
        """The error for what was being done, once the group is broken."""
        assert self._end is not None, "nothing has ended the group"
        reason, failure, suspects = self._end
        return CollectiveError(f"{doing} of {self.title} failed: {reason}", failure, suspects)

    # Operations ----------------------------------------------------------------------------------------------------------
    def begin(self, operation: Operation, timeout_s: float) -> Reply[Any]:
        """Begin one, on any thread.

        Raises:
            CollectiveError: the group is broken, or the library refuses.
            RuntimeError: this process was forked from the member's: it would take that one's part, in memory that they share.
        """
        self.runtime.check_usable()
        reply: Reply[Any] = Reply(loop=self.runtime.loop)
        with self._lock:
            if self._end is not None:
                raise self.error(operation.name)
            between = operation.between
            before = self._last.get(between)
            number = operation.number = 1 if before is None else before[0] + 1
            pending = Pending(number, operation, reply, timeout_s)
            self._last[between] = number, operation.name, operation.alike
            self._pending[between, number] = pending
            try:
                pending.begun = operation.begin()
            except RuntimeError as error:
                # The others wait for it, and will hear of it from here.
                pending.error = error
            if pending.begun is None and pending.error is None:
                del self._pending[between, number]
                self._settle(reply, operation.result)
                return reply
        self.runtime.on_loop(lambda: self._watch(pending))
        return reply

    def _settle(self, reply: Reply[Any], result: Any) -> None:
        """It has ended already.

        Who awaits what is there gives nobody else a turn: so on the loop only some in a row are there at once.
        """
        if threading.get_ident() == self.runtime.thread:
            self._at_once += 1
            if self._at_once == 1:
                self.runtime.loop.call_soon(self._loop_turns, context=Context())
            elif self._at_once > _AT_ONCE_MAX:
                self.runtime.loop.call_soon(_set_result, reply, result, context=Context())
                return
        reply.set_result(result)

    def _loop_turns(self) -> None:
        self._at_once = 0

    def _watch(self, pending: Pending) -> None:
        """See to it that its end is heard of, or that it does not come."""
        if pending.begun is None:
            self.ended(pending)
            return
        pending.timer = self.runtime.loop.call_later(pending.timeout_s, self._overdue, pending, context=Context())
        home = groups(self.runtime)
        home.busy[pending] = self
        pending.begun.then(partial(_finish, home, pending))

    def ended(self, pending: Pending) -> None:
        """An operation has, on the loop."""
        del self._pending[pending.between, pending.number]
        if pending.timer is not None:
            pending.timer.cancel()
        if pending.error is None:
            _set_result(pending.reply, pending.result)
        elif self._end is not None:
            self._fail(pending)
        else:
            self._held.append(pending)
            if len(self._held) == 1:
                self.runtime.loop.call_later(_HOLD_S, self._unexplained)

    def _fail(self, pending: Pending) -> None:
        error = self.error(str(pending))
        error.__cause__ = pending.error
        fail_reply(pending.reply, error)

    def adopt(self, child: Group) -> None:
        """It was split off: it ends with this one."""
        with self._lock:
            self._children.add(child)
            end = self._end
        if end is not None:
            child.break_off(*end)

    # Ends ----------------------------------------------------------------------------------------------------------------
    def member_died(self, proc: int, failure: Failure) -> None:
        """Supervision says that a process has ended."""
        dead = [member.name for member in self.members if member.proc == proc]
        self.break_off(f"{', '.join(dead)} died: {failure.summary}", failure, dead)

    def break_off(self, reason: str, failure: Failure | None = None, suspects: Sequence[str] = ()) -> None:
        """End all that is under way, here and in what was split off; on the loop. Only the first reason counts."""
        with self._lock:
            if self._end is not None:
                return
            self._end = _End(reason, failure, tuple(suspects))
        self._ended.set()
        self.library.abort(reason)
        for child in list(self._children):
            child.break_off(reason, failure, suspects)
        held, self._held = self._held, []
        for pending in held:
            self._fail(pending)
        self._look_for_the_stuck(_LOOKS)

    def _look_for_the_stuck(self, looks: int) -> None:
        if self._pending and looks:
            self.runtime.loop.call_later(_ABORT_WITHIN_S / _LOOKS, self._look_for_the_stuck, looks - 1)
        elif self._pending:
            stuck = ", ".join(map(str, self._pending.values()))
            end_process(
                "roost.collectives",
                f"{stuck} of {self.title} did not end within {_ABORT_WITHIN_S:g} s of the abort: {self.broken}",
            )

    async def hear_why(self) -> None:
        """Wait for the news of the death that explains an error, if there is any."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _HOLD_S)

    def _unexplained(self) -> None:
        """No death was heard of: the error is what there is to say."""
        if self._end is None:
            first = self._held[0]
            self._give_up(f"{self.members[self.rank].name} had an error in {first}: {first.error}", ())

    def _give_up(self, reason: str, suspects: Sequence[str]) -> None:
        """Break off, and have the others do it."""
        self.break_off(reason, None, suspects)
        for rank, member in enumerate(self.members):
            if rank != self.rank:
                desk_of(self.runtime, member.proc).give_up.broadcast(self.id, rank, reason, tuple(suspects))

    def _is_under_way(self, between: Between, number: int) -> bool:
        return (between, number) in self._pending

    def _overdue(self, pending: Pending) -> None:
        if self._end is None and self._is_under_way(pending.between, pending.number):
            self.runtime.keep(self._find_suspects(pending))

    def standing(self, between: Between, number: int) -> Standing:
        """How far this member is among all members' operations, or some messages, and whether it is still in one."""
        begun, name, alike = self._last.get(between, (0, "nothing", None))
        what = described("message" if between else name, alike)
        lagging = () if between else tuple(self.library.lagging())
        return Standing(begun, what, self._is_under_way(between, number), self.library.stage(), lagging)

    async def _find_suspects(self, pending: Pending) -> None:
        """Ask all whose operation it is how far they are."""
        between, number = pending.between, pending.number
        others = [rank for rank in between or range(len(self.members)) if rank != self.rank]
        answers = await asyncio.gather(*(self._standing_of(rank, between, number) for rank in others))
        standings = dict(zip(others, answers, strict=True))
        if self._end is not None or not self._is_under_way(between, number):
            return
        standings[self.rank] = self.standing(between, number)
        names = [member.name for member in self.members]
        overdue = Overdue(number, described("message" if between else pending.name, pending.alike), between)
        # What one sees, another may not: who hangs sees nobody that it waits for, and may be the first to ask.
        lagging = sorted({rank for one in standings.values() if one is not None for rank in one.lagging})
        why, suspects = suspects_of(overdue, names, dict(sorted(standings.items())), lagging)
        reason = f"{pending} did not end within {pending.timeout_s:g} s: {why}"
        self._give_up(reason, [names[rank] for rank in suspects])

    async def _standing_of(self, rank: int, between: Between, number: int) -> Standing | None:
        desk = desk_of(self.runtime, self.members[rank].proc)
        asked = desk.progress.options(timeout=_ANSWER_S).call_one(self.id, rank, between, number)
        try:
            answer: Standing | None = await asked
        except Exception:  # noqa: BLE001 - whatever keeps it from answering
            return None
        return answer


def _set_result(reply: Reply[Any], result: Any) -> None:
    """Unless it was cancelled meanwhile."""
    if not reply.done():
        reply.set_result(result)


def _finish(home: Groups, pending: Pending, error: BaseException | None) -> None:
    """On a thread of the library's. The group must not be known here: its last reference ends that thread."""
    pending.error = error
    # The loop may have ended in the meantime, and with it who waits.
    with suppress(RuntimeError):
        home.loop.call_soon_threadsafe(home.ended, pending)
