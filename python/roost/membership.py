"""Who is there: what the control thread says of procs, their connections, and their deaths as failures."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from roost.errors import ActorDied, StoppedError
from roost.failure import Failure
from roost.shape import Point, Shape, rank_name

if TYPE_CHECKING:
    from roost.mesh import ProcMesh
    from roost.owned_procs import OwnedProcs
    from roost.runtime import Runtime

__all__ = ["Members"]

_logger = logging.getLogger("roost")

# Deaths that are remembered, so that all who hear of one get the same object.
_DEATHS_MAX = 10_000


class Members:
    """What this process knows of the job's procs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # proc id -> (proc mesh's record, rank) for procs that this process owns.
        self.owned: dict[int, tuple[OwnedProcs, int]] = {}
        # proc id -> (mesh name, shape, rank), of every proc whose mesh was met here: for failures that name it.
        self._places: dict[int, tuple[str, Shape, int]] = {}
        self._noted: set[int] = set()
        self._deaths: dict[tuple[int, int], Failure] = {}
        # Procs that have ended for good.
        self.gone: dict[int, Failure] = {}

    def own(self, record: OwnedProcs) -> None:
        """These procs are ours."""
        for rank, proc in enumerate(record.procs):
            self.owned[proc] = (record, rank)

    def note(self, handle: ProcMesh) -> None:
        """Learn the names of procs."""
        if handle._id not in self._noted:
            self._noted.add(handle._id)
            for rank, proc in enumerate(handle._procs):
                self._places[proc] = (handle._name, handle._whole, rank)

    def note_self(self, mesh: str, shape: Shape, rank: int) -> None:
        """Learn this proc's own name."""
        self._places[self._runtime.proc] = (mesh, shape, rank)

    # Notices of the control thread -------------------------------------------------------------------------------------
    def on_notices(self) -> None:
        """The control thread has something to say."""
        for notice in self._runtime.control.drain():
            try:
                getattr(self, f"_on_{notice[0]}")(*notice[1:])
            except Exception:
                _logger.exception("handling %s from the control thread", notice[0])

    def _on_epoch(self, epoch: int) -> None:
        self._runtime.node.set_epoch(epoch)

    def _on_connected(self, proc: int, incarnation: int, fd: int, slot: int) -> None:
        self._runtime.node.adopt(proc, incarnation, fd, slot)

    def _on_connect_failed(self, proc: int, reason: str) -> None:
        failure = self.gone.get(proc)
        if failure is None:
            failure = self.gone[proc] = self._failure(proc, 0, {"kind": "lost", "reason": reason})
        self._lose(proc, self._runtime.node.incarnation_of(proc), -1, failure, again=False, gone=True)

    def _on_warning(self, text: str) -> None:
        _logger.warning("%s", text)

    def _on_segment(self, sender: int, segment: int, size: int, fd: int) -> None:
        self._runtime.sharing.offered(sender, segment, size, fd)

    def _on_segment_ack(self, receiver: int, segment: int, ok: bool) -> None:
        self._runtime.sharing.answered(receiver, segment, ok)

    def _on_ask(self, proc: int, incarnation: int) -> None:
        record, _ = self.owned[proc]
        assert record.ask is not None
        control = self._runtime.control
        try:
            spec, environ, command = record.ask(proc, incarnation)
        except Exception as error:
            control.respawn_failed(proc, incarnation, f"its env, start or bind function raised {error!r}")
        else:
            control.respawn(proc, incarnation, spec, environ, command)

    def _on_stop(self, reason: str, _deadline: float) -> None:
        self._runtime.stop_reason = reason
        if self._runtime.stopping is not None:
            self._runtime.stopping.set()

    def _on_member(self, epoch: int, proc: int, incarnation: int, status: str, details: dict[str, Any]) -> None:
        if status in ("dead", "failed", "stopped"):
            failure = self.death_of(proc, incarnation, details)
            down = status == "dead" and details.get("next") == "restarting"
            if not down:
                self.gone[proc] = failure
            if status != "failed":
                self._lose(proc, incarnation, details.get("started", -1), failure, again=down, gone=not down)
        elif status == "starting":
            self.gone.pop(proc, None)
            if incarnation:
                self._runtime.node.expect(proc)
        owned = self.owned.get(proc)
        if owned is not None:
            record, rank = owned
            record.member(rank, incarnation, status, details)
        self._runtime.node.set_epoch(epoch)

    def _lose(self, proc: int, incarnation: int, started: int, failure: Failure, *, again: bool, gone: bool) -> None:
        runtime = self._runtime
        calls, letters = runtime.node.lost(proc, incarnation, started, again, gone)

        def error_of(maybe_executed: bool) -> ActorDied:
            kind = StoppedError if failure.kind == "stopped" else ActorDied
            return kind(None, failure, maybe_executed=maybe_executed)

        runtime.calls.orphaned(calls, error_of)
        for mesh, ranks, endpoint in letters:
            for rank in ranks:
                runtime.letters.add(f"{failure.name} rank {rank}", endpoint, Point({}), failure.summary, failure, mesh)
        runtime.sharing.peer_gone(proc)
        runtime.ports.peer_gone(proc, error_of(True))

    # Deaths ------------------------------------------------------------------------------------------------------------
    def death_of(self, proc: int, incarnation: int, details: dict[str, Any]) -> Failure:
        """The failure of a proc's incarnation: one object however often it is told."""
        known = self._deaths.get((proc, incarnation))
        if known is None:
            known = self._failure(proc, incarnation, details)
            self._deaths[proc, incarnation] = known
            while len(self._deaths) > _DEATHS_MAX:
                self._deaths.pop(next(iter(self._deaths)))
        if details.get("reasons") and not known.reasons:
            known = self._deaths[proc, incarnation] = self._failure(proc, incarnation, details)
        return known

    def _failure(self, proc: int, incarnation: int, details: dict[str, Any]) -> Failure:
        mesh, shape, rank = self._places.get(proc, ("procs", Shape({}), 0))
        point = shape.point(rank)
        kind = details.get("kind", "lost")
        origin = {"exit": "user", "stopped": "user", "start": "process", "lost": "host"}.get(kind, "process")
        reasons = tuple(self._failure(proc, past.get("incarnation", 0), past) for past in details.get("reasons", ()))
        return Failure(
            kind=kind, origin=origin, mesh=mesh, name=rank_name(mesh, point), point=point, host=self._runtime.host,  # type: ignore[arg-type]
            incarnation=incarnation, reason=details.get("reason", ""), exit_code=details.get("exit_code"),
            signal=details.get("signal"), stderr=details.get("stderr", ""), reasons=reasons, times=details.get("times", {}),
        )  # fmt: skip

    def error_of(self, proc: int) -> ActorDied | None:
        """The error for whoever writes to a proc that is gone or down; None when it is there."""
        failure = self.gone.get(proc)
        if failure is None:
            owned = self.owned.get(proc)
            if owned is None or owned[0].failures is None or owned[0].state(owned[1]) == "up":
                return None
            failure = owned[0].failures.get(owned[1])
            if failure is None:
                return None
        return StoppedError(None, failure) if failure.kind == "stopped" else ActorDied(None, failure)
