"""The owner's table of a mesh of hosts."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, ClassVar, NoReturn

from roost.owning import ENDED, OwnedMesh
from roost.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from roost.errors import ActorDied
    from roost.failure import Failure
    from roost.joining import Attaching
    from roost.owned_procs import OwnedProcs
    from roost.point import Point
    from roost.reply import Reply
    from roost.runtime import Runtime
    from roost.unheard import Unheard

__all__ = ["OwnedHosts"]

# How much longer than its procs may take an agent has to say that it let go.
_LEAVE_WAIT_S = 5.0

_logger = logging.getLogger("roost")


class OwnedHosts(OwnedMesh):
    """Hosts that this process has attached."""

    __slots__ = ("_left", "_waiting", "attaching", "explain", "joined", "numbers", "procs", "refused", "shutting")

    is_here: ClassVar[bool] = False
    """Whether they are this process's own host, and have its surroundings."""

    attaching: Attaching

    def __init__(self, runtime: Runtime, mesh: int, name: str, whole: Shape) -> None:
        super().__init__(runtime, mesh, name, whole, None)
        # What whoever gave the hosts says of one that is lost, by its rank; empty for nothing.
        self.explain: Callable[[int], str] = lambda _rank: ""
        # By rank: the id and the name of its host, and the number under which it was attached.
        self.joined: dict[int, tuple[int, str]] = {}
        self.numbers: dict[int, int] = {}
        # By rank, why its host cannot be used.
        self.refused: dict[int, Exception] = {}
        # Proc meshes of this process's on these hosts.
        self.procs: list[OwnedProcs] = []
        # Ranks whose agents are to end, too.
        self.shutting: set[int] = set()
        # Procs that wait for their hosts.
        self._waiting: list[tuple[Shape, Callable[[Mapping[int, Failure]], None]]] = []
        self._left: dict[int, asyncio.Event] = {}

    # Joining -----------------------------------------------------------------------------------------------------------
    def place(self, rank: int) -> tuple[str, str, Point]:
        """The mesh's name, the rank's name and its place."""
        return self.name, self.rank_name(rank), self.whole.point(rank)

    def hosts_at(self, shape: Shape) -> tuple[tuple[int, str], ...] | None:
        """The id and the name of each of these hosts, in rank order; None before all of them have joined."""
        ranks = list(shape.ranks())
        return tuple(self.joined[rank] for rank in ranks) if all(rank in self.joined for rank in ranks) else None

    def reached(self) -> list[str]:
        """By what the hosts that have joined were reached: "number:port", or "unix:" and the path of a socket."""
        return self.attaching.reached()

    def hold(self, procs: OwnedProcs, shape: Shape, start: Callable[[Mapping[int, Failure]], None]) -> None:
        """Have procs on these hosts: start them once all of these have joined, or say which will not be there.

        Args:
            procs: the mesh of procs.
            shape: the hosts.
            start: called with the failures of those that are lost, by their place in the shape; with none when all are there.
        """
        for proc in procs.procs:
            self.runtime.node.expect(proc)
        self.procs = [*(one for one in self.procs if not one.is_over), procs]
        self._waiting.append((shape, start))
        self._start_waiting()

    def _start_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for shape, start in waiting:
            lost = {at: self.failures[rank] for at, rank in enumerate(shape.ranks()) if rank in self.failures}
            if lost or self.hosts_at(shape) is not None:
                start(lost)
            else:
                self._waiting.append((shape, start))

    def joins(self, rank: int, host: tuple[int, str], number: int) -> None:
        """A host is there."""
        self.joined[rank], self.numbers[rank] = host, number
        self.runtime.hosts.owned[host[0]] = self, rank
        self.set_state(rank, "up")
        self.tell("started", rank)
        self._start_waiting()

    def will_not_be(self, reason: str) -> None:
        """They were given up before all had joined."""
        self._waiting = []
        for procs in self.procs:
            if not procs.is_asked:
                procs.cannot_start(reason)

    def cannot_join(self, rank: int, error: Exception, failure: Failure) -> None:
        """A host will not be there."""
        self.refused[rank] = error
        self.runtime.hosts.note(failure)
        # Whoever gets this error has heard of what was to live there, too.
        error.failure = failure  # type: ignore[attr-defined]
        if not self.waiters and not self.was_told(rank):
            _logger.warning("%s", error)
        self.set_state(rank, "failed", reason=failure.reason, failure=failure)
        self.tell("failed", rank, failure.reason, failure)
        self._start_waiting()
        self.check_over()

    def lost(self, rank: int, failure: Failure) -> None:
        """A host that was there is gone. What it means to anybody is told by what lived there."""
        if self.state(rank) not in ENDED:
            self.set_state(rank, "failed", reason=failure.reason, failure=failure)
            self.tell("failed", rank, failure.reason, failure)
        self._let_go(rank)

    def is_gone(self, rank: int, reason: str) -> None:
        """Whoever gave a host knows that it is not there any more: it is lost at once, and let in no more should it yet be."""
        if rank in self.numbers and self.state(rank) not in ENDED and not self.runtime.closed:
            self.runtime.control.lose(self.numbers[rank], reason)

    def left(self, rank: int, reason: str) -> None:
        """A host was let go, in order."""
        if self.state(rank) not in ENDED:
            self.set_state(rank, "stopped", reason=reason)
            self.tell("stopped", rank, reason)
        self._let_go(rank)

    def _let_go(self, rank: int) -> None:
        if rank in self._left:
            self._left[rank].set()
        self.check_over()

    def death_error(self, rank: int) -> ActorDied:
        """The error for whoever waits for a host that will not be there."""
        return self.refused.get(rank) or super().death_error(rank)  # type: ignore[return-value]  # all are raised alike

    # What its users ask ------------------------------------------------------------------------------------------------
    def shut_down(self, shape: Shape, reason: str) -> Reply[None]:
        """Stop these, and have their agents end."""
        self.shutting.update(shape.ranks())
        return self.stop(shape, reason)

    def stop_ranks(self, ranks: list[int], reason: str) -> None:
        """End what this process has on these hosts, then let go of them."""
        for rank in ranks:
            self._left.setdefault(rank, asyncio.Event())
        self.runtime.keep(self._stop(ranks, reason))

    async def _stop(self, ranks: list[int], reason: str) -> None:
        self._give_up(reason)
        stops = [
            procs.stop(part, reason)
            for procs in reversed(self.procs)
            if (part := _part_on(procs, ranks, self)) is not None
        ]
        await asyncio.gather(*stops, return_exceptions=True)
        runtime = self.runtime
        for rank in ranks:
            number = self.numbers.get(rank)
            if number is None or self.state(rank) in ENDED or runtime.closed:
                self.left(rank, reason)
            else:
                runtime.control.detach(number, rank in self.shutting, reason)
        wait_s = runtime.grace_left_s() + runtime.config.sigterm_s + _LEAVE_WAIT_S
        waiting = asyncio.gather(*(self._left[rank].wait() for rank in ranks))
        try:
            await asyncio.wait_for(waiting, wait_s)
        except TimeoutError:
            for rank in ranks:
                if self.state(rank) not in ENDED:
                    _logger.warning("%s does not say that it let go of this job", self.rank_name(rank))
                    self.left(rank, f"{reason}; not confirmed, its agent does not answer")

    def _give_up(self, reason: str) -> None:
        """Look for no more of them."""
        self.attaching.give_up(reason)

    def restart_ranks(self, ranks: list[int], reason: str) -> NoReturn:  # noqa: ARG002 - as of all meshes
        """Not for hosts: their agents are not this program's.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"{self.name} are hosts, which nobody restarts from here: attach them anew")

    def all_unheard(self) -> list[Unheard]:
        """The failures of these hosts, and of procs on them, that need a hearer."""
        own = list(self.unheard)
        for procs in self.procs:
            own += [one for one in procs.all_unheard() if one not in own]
        return own


def _part_on(procs: OwnedProcs, hosts: list[int], whole: OwnedHosts) -> Shape | None:
    """The ranks of a proc mesh that live on some hosts; None for none."""
    ids = {whole.joined[rank][0] for rank in hosts if rank in whole.joined}
    ranks = tuple(rank for rank in range(len(procs.procs)) if (host := procs.host(rank)) is not None and host[0] in ids)
    if len(ranks) == len(procs.procs):
        return procs.whole
    return Shape._of(("ranks",), (len(ranks),), 0, (1,), ranks) if ranks else None
