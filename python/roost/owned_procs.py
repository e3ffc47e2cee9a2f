"""The owner's table of a proc mesh."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from roost.failure import Failure, signal_name
from roost.owning import ENDED, OwnedMesh, noted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from roost.failure import Event, FailureKind, Origin, Restart
    from roost.owned_actors import OwnedActors
    from roost.requesting import Request
    from roost.runtime import Runtime
    from roost.shape import Shape
    from roost.unheard import Unheard

__all__ = ["OwnedProcs"]

# How long a stop waits for the kernel to free a process that has ended.
_GONE_WAIT_S = 30.0

_logger = logging.getLogger("roost")


class OwnedProcs(OwnedMesh):
    """A mesh of processes that this process owns."""

    __slots__ = ("_leaving", "_warned", "actors", "asks", "is_asked", "policy", "procs", "request")

    # What they are started with.
    request: Request

    def __init__(
        self,
        runtime: Runtime,
        mesh: int,
        name: str,
        whole: Shape,
        supervise: Any,
        procs: tuple[int, ...],
        policy: Restart | None,
    ) -> None:
        super().__init__(runtime, mesh, name, whole, supervise)
        self.procs = procs
        self.policy = policy
        # Actor meshes of this process that live on these procs.
        self.actors: list[OwnedActors] = []
        # Whether the agent asks what the next incarnation is started with.
        self.asks = False
        # Whether the agent knows of them: not before their hosts have joined.
        self.is_asked = False
        # Ranks that have ended, and whose memory is not free yet.
        self._leaving: set[int] = set()
        # By rank, the incarnation of which the log was told that it was stalled.
        self._warned: dict[int, int] = {}

    def host(self, rank: int) -> tuple[int, str] | None:
        """The id and the name of a rank's host, once that is known."""
        return self.request.host(rank) if hasattr(self.request, "hosts") else None

    def cannot_start(self, reason: str) -> None:
        """The agent will never say anything of them."""
        self.mark_stopped(reason)
        for rank in range(len(self.procs)):
            if self.state(rank) not in ENDED:
                self.runtime.members.never_there(self.procs[rank], self._end_of(rank, "stopped", "user", reason))
                self.set_state(rank, "stopped", reason=self.mesh_stopped or reason)
        self.check_over()

    def _end_of(
        self, rank: int, kind: FailureKind, origin: Origin, reason: str, of_host: Failure | None = None
    ) -> Failure:
        return Failure(
            kind=kind, origin=origin, mesh=self.name, name=self.rank_name(rank), point=self.whole.point(rank), reason=reason,
            host="" if of_host is None else of_host.host, cause=of_host, times={} if of_host is None else of_host.times,
        )  # fmt: skip

    def never_start(self, lost: Mapping[int, Failure]) -> None:
        """Some of their hosts will not be there: those fail, by the number of the host, and the others are not started."""
        for rank in range(len(self.procs)):
            of_host = lost.get(rank // self.request.per)
            if of_host is None or self.state(rank) in ENDED:
                continue
            failure = self._end_of(rank, "lost", "host", of_host.reason, of_host)
            of_host._add_consequence(failure)
            self.runtime.members.never_there(self.procs[rank], failure)
            self._failed(rank, 0, failure)
            self._gone(rank)
        rest = [rank for rank in range(len(self.procs)) if self.state(rank) not in ENDED]
        self.stop_ranks(rest, "their mesh's other hosts are not there")
        self.check_over()

    # What the agent says -----------------------------------------------------------------------------------------------
    def member(
        self, rank: int, incarnation: int, status: str, details: dict[str, Any], failure: Failure | None
    ) -> None:
        """The agent says how a proc is."""
        if status in ("starting", "restarting"):
            self._leaving.discard(rank)
        if status == "starting" and "host" in details:
            self.request.settle(rank, details["host"])
        if status == "starting":
            if (self.state(rank), self.incarnation(rank)) != ("up", incarnation):
                self.set_state(rank, "starting" if incarnation == 0 else "restarting", incarnation=incarnation)
        elif status == "up":
            self._up(rank, incarnation, details.get("pid", 0))
        elif status == "restarting":
            self.set_state(rank, "restarting", reason=details.get("reason", ""))
            self.tell("restarting", rank, details.get("reason", ""))
        elif status == "gone":
            self._gone(rank)
        elif failure is None:
            self._progress(rank, incarnation, status, details)
        else:
            if status == "stopped" and details.get("forced"):
                self._say_forced(rank, failure)
            ended = {"dead": self._dead, "failed": self._failed, "stopped": self._stopped}[status]
            ended(rank, incarnation, failure)

    def shown_up(self, proc: int, incarnation: int, pid: int) -> None:
        """An actor in a proc is up, and its word came before the agent's: whoever waits for actors finds their procs up too."""
        self._up(self.procs.index(proc), incarnation, pid)

    def _up(self, rank: int, incarnation: int, pid: int) -> None:
        known = self.state(rank), self.incarnation(rank)
        if (
            known == ("up", incarnation)
            or known[1] > incarnation
            or known[0] in ENDED
            or self.is_old(rank, incarnation)
        ):
            return
        self.pids = noted(self.pids, rank, pid)
        self.set_state(rank, "up", incarnation=incarnation)
        self.tell("started" if incarnation == 0 else "recovered", rank)

    def _dead(self, rank: int, incarnation: int, failure: Failure) -> None:
        self.set_state(rank, "restarting", reason=failure.reason, failure=failure, incarnation=incarnation)
        if failure.kind != "stopped":
            # What was restarted on purpose has not failed.
            self.tell("failed", rank, failure.reason, failure)

    def _progress(self, rank: int, incarnation: int, status: str, details: dict[str, Any]) -> None:
        """It lives, and does not get on, or does again: that is an event, and no death."""
        if status == "resumed":
            self.tell("recovered", rank, "its event loop moves again")
            return
        reason, stack = details["reason"], details["stack"]
        failure = Failure(
            kind="stalled", origin="process", mesh=self.name, name=self.rank_name(rank), point=self.whole.point(rank),
            host=self.runtime.members.host_of(self.procs[rank])[1], incarnation=incarnation, reason=reason, traceback=stack,
        )  # fmt: skip
        self.tell("stalled", rank, reason, failure)
        if self._warned.get(rank) != incarnation:
            # Once: a loop that every step of a training blocks would fill the log.
            self._warned[rank] = incarnation
            _logger.warning("%s is stalled: %s\n%s", self.rank_name(rank), reason, stack)

    def _leaves(self, rank: int) -> None:
        self._leaving.add(rank)
        self.runtime.loop.call_later(_GONE_WAIT_S, self._overdue, rank, self.incarnation(rank))

    def _gone(self, rank: int) -> None:
        self._leaving.discard(rank)
        self._check_waiters()

    def _overdue(self, rank: int, incarnation: int) -> None:
        """A driver of the kernel's may hold a killed process for ever; whoever stops it should not wait so long."""
        if rank in self._leaving and incarnation == self.incarnation(rank) and not self.runtime.closed:
            _logger.warning(
                "%s was killed, but the kernel has not let go of it (process %s) for %g s: what it uses is not free yet",
                self.rank_name(rank), self.pids.get(rank), _GONE_WAIT_S,
            )  # fmt: skip
            self._gone(rank)

    def has_gone(self, rank: int) -> bool:
        """Whether nothing is left of a rank, not even its memory."""
        return self.state(rank) in ENDED and rank not in self._leaving

    def _failed(self, rank: int, incarnation: int, failure: Failure) -> None:
        # Who waits for the end must find that somebody is told of it.
        self.climbs(rank, failure)
        self._leaves(rank)
        self.set_state(rank, "failed", reason=failure.reason, failure=failure, incarnation=incarnation)
        self.tell("failed", rank, failure.reason, failure)
        if failure.kind == "start" and self.mesh_stopped is None and incarnation == 0:
            # The others would wait for a rank that never comes.
            others = [other for other in range(len(self.procs)) if self.state(other) not in ENDED]
            if others:
                self.stop_ranks(others, f"{self.rank_name(rank)} did not start")
        self.check_over()

    def _say_forced(self, rank: int, failure: Failure) -> None:
        _logger.warning(
            "%s did not end by itself when it was stopped (%s): %s ended it. Where it was stuck is in its output, and in "
            "states(): failure.stderr", self.rank_name(rank), failure.reason, signal_name(failure.signal),
        )  # fmt: skip

    def _stopped(self, rank: int, incarnation: int, failure: Failure) -> None:
        reason = failure.reason or self.mesh_stopped or "stopped"
        self._leaves(rank)
        self.set_state(rank, "stopped", reason=reason, failure=failure, incarnation=incarnation)
        self.tell("stopped", rank, reason)
        self.check_over()

    # What its users ask ------------------------------------------------------------------------------------------------
    def mark_stopped(self, reason: str) -> None:
        """The procs are stopped, and so is everything on them."""
        super().mark_stopped(reason)
        for actors in self.actors:
            actors.mark_stopped(reason)

    def stop_ranks(self, ranks: list[int], reason: str) -> None:
        """Have these procs stopped, each with its actors."""
        runtime = self.runtime
        if not self.is_asked:
            for rank in ranks:
                self.runtime.members.never_there(self.procs[rank], self._end_of(rank, "stopped", "user", reason))
                self.set_state(rank, "stopped", reason=reason)
            return
        procs = [self.procs[rank] for rank in ranks]
        runtime.control.stop(procs, reason, runtime.grace_left_s() + self._cleanup_extra_s(), runtime.config.sigterm_s)

    def restart_ranks(self, ranks: list[int], reason: str) -> None:
        """Stop these procs and start their next incarnation."""
        runtime = self.runtime
        procs = [self.procs[rank] for rank in ranks]
        for rank, proc in zip(ranks, procs, strict=True):
            if self.state(rank) in ENDED:
                # No death will tell the actors that they are to come back.
                for actors in self.actors:
                    actors.proc_restarts(proc, reason)
        runtime.control.restart(
            procs, reason, runtime.grace_left_s() + self._cleanup_extra_s(), runtime.config.sigterm_s
        )

    def _cleanup_extra_s(self) -> float:
        return max([0.0, *(actors.cleanup_extra_s for actors in self.actors)])

    def all_unheard(self) -> list[Unheard]:
        """The failures of these procs, and of their actors, that need a hearer."""
        own = list(self.unheard)
        for actors in self.actors:
            own += [one for one in actors.unheard if one not in own]
        return own

    def check_over(self) -> None:
        """The end of the procs is that of their actors."""
        for actors in list(self.actors):
            actors.check_over()
        super().check_over()

    def wants(self, ranks: Iterable[int]) -> Callable[[Event], bool]:
        """Whether an event is about these procs, or about actors on them."""
        ranks = list(ranks)
        names = {self.rank_name(rank) for rank in ranks}
        for actors in self.actors:
            for rank in ranks:
                names.update(actors.rank_name(one) for one in actors.ranks_of(self.procs[rank]))
        return lambda happened: happened.name in names
