"""The owner's table of a proc mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roost.errors import StoppedError
from roost.owning import ENDED, OwnedMesh
from roost.reply import Reply, fail_reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.hearing import Unheard
    from roost.owned_actors import OwnedActors
    from roost.runtime import Runtime
    from roost.shape import Shape

__all__ = ["OwnedProcs"]


class OwnedProcs(OwnedMesh):
    """A mesh of processes that this process owns."""

    __slots__ = ("actors", "ask", "labels", "policy", "procs", "started")

    def __init__(self, runtime: Runtime, mesh: int, name: str, whole: Shape, supervise: Any, procs: tuple[int, ...], policy: Any) -> None:
        super().__init__(runtime, mesh, name, whole, supervise)
        self.procs = procs
        self.policy = policy
        # Actor meshes of this process that live on these procs.
        self.actors: list[OwnedActors] = []
        self.ask: Callable[[int, int], Any] | None = None

    def member(self, rank: int, incarnation: int, status: str, details: dict[str, Any]) -> None:
        """The agent says how a proc is."""
        if status == "starting":
            self.set_state(rank, "starting" if incarnation == 0 else "restarting", incarnation=incarnation)
        elif status == "up":
            if self.pids is None:
                self.pids = {}
            self.pids[rank] = details.get("pid", 0)
            self.set_state(rank, "up", incarnation=incarnation)
            self.tell("started" if incarnation == 0 else "recovered", rank)
        elif status == "dead":
            self._dead(rank, incarnation, details)
        elif status == "restarting":
            self.tell("restarting", rank, details.get("reason", ""))
        elif status == "failed":
            self._failed(rank, incarnation, details)
        elif status == "stopped":
            self._stopped(rank, incarnation, details)

    def _dead(self, rank: int, incarnation: int, details: dict[str, Any]) -> None:
        failure = self.runtime.members.death_of(self.procs[rank], incarnation, details)
        state = "restarting" if details.get("next") == "restarting" else "failed"
        self.set_state(rank, state, reason=failure.reason, failure=failure, incarnation=incarnation)
        self.tell("failed", rank, failure.reason, failure)
        for actors in self.actors:
            actors.proc_ended(self.procs[rank], state, failure)

    def _failed(self, rank: int, incarnation: int, details: dict[str, Any]) -> None:
        failure = self.runtime.members.death_of(self.procs[rank], incarnation, details)
        self.set_state(rank, "failed", reason=failure.reason, failure=failure, incarnation=incarnation)
        for actors in self.actors:
            actors.proc_ended(self.procs[rank], "failed", failure)
        if failure.kind == "start" and self.mesh_stopped is None and incarnation == 0:
            # The others would wait for a rank that never comes.
            others = [other for other in range(len(self.procs)) if self.state(other) not in ENDED]
            if others:
                self.stop_ranks(others, f"{self.rank_name(rank)} did not start")
        self.climbs(rank, failure)

    def _stopped(self, rank: int, incarnation: int, details: dict[str, Any]) -> None:
        failure = self.runtime.members.death_of(self.procs[rank], incarnation, details)
        reason = self.mesh_stopped or details.get("reason") or "stopped"
        self.set_state(rank, "stopped", reason=reason, failure=failure, incarnation=incarnation)
        self.tell("stopped", rank, reason, failure)
        for actors in self.actors:
            actors.proc_ended(self.procs[rank], "stopped", failure)
        self.end_subscribers()

    def stop_ranks(self, ranks: list[int], reason: str) -> None:
        config = self.runtime.config
        procs = [self.procs[rank] for rank in ranks]
        extra = max([0.0, *(actors.cleanup_extra_s for actors in self.actors)])
        self.runtime.control.stop(procs, reason, config.grace_s + extra, config.sigterm_s)

    def restart(self, shape: Shape, reason: str) -> Reply[None]:
        """Stop these procs and start their next incarnation; done when they are up."""
        if self.mesh_stopped is not None:
            raise StoppedError(f"{self.name} stopped: {self.mesh_stopped}; spawn new procs instead of restarting these")
        config = self.runtime.config
        reply: Reply[None] = Reply(loop=self.runtime.loop)

        def begin() -> None:
            ranks = list(shape.ranks())
            self.runtime.control.restart([self.procs[rank] for rank in ranks], reason, config.grace_s, config.sigterm_s)
            for rank in ranks:
                self.set_state(rank, "restarting", reason=reason)
            ready = self._wait("ready", shape, None)
            ready.add_done_callback(lambda done: _copy(done, reply))

        self.runtime.on_loop(begin)
        return reply

    def all_unheard(self) -> list[Unheard]:
        own = list(self.unheard or ())
        for actors in self.actors:
            own += [one for one in actors.unheard or () if one not in own]
        return own

    def end_subscribers(self) -> None:
        super().end_subscribers()
        for actors in self.actors:
            actors.end_subscribers()


def _copy(done: Any, reply: Reply[Any]) -> None:
    if reply.done():
        return
    error = None if done.cancelled() else done.exception()
    if error is not None:
        fail_reply(reply, error)
    else:
        reply.set_result(None)
