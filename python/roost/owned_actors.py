"""The owner's table of an actor mesh."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from roost import serialize
from roost.failure import Failure
from roost.owning import OwnedMesh

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roost.owned_procs import OwnedProcs
    from roost.reply import Reply
    from roost.runtime import Runtime
    from roost.shape import Shape

__all__ = ["OwnedActors"]


class OwnedActors(OwnedMesh):
    """A mesh of actors that this process owns."""

    __slots__ = ("class_name", "cleanup_extra_s", "on", "per", "places", "procs")

    def __init__(
        self, runtime: Runtime, mesh: int, name: str, whole: Shape, supervise: Any, procs: tuple[int, ...], per: int, class_name: str
    ) -> None:
        super().__init__(runtime, mesh, name, whole, supervise)
        self.procs = procs
        self.per = per
        self.class_name = class_name
        self.on: OwnedProcs | None = None
        self.cleanup_extra_s = 0.0

    def _ranks_of(self, proc: int) -> Iterable[int]:
        for place, one in enumerate(self.procs):
            if one == proc:
                yield from range(place * self.per, (place + 1) * self.per)

    def proc_ended(self, proc: int, state: str, failure: Failure) -> None:
        """The proc of some ranks has ended."""
        for rank in self._ranks_of(proc):
            if self._states[rank] == "failed" or (self._states[rank] == "stopped" and state != "restarting"):
                continue
            if self.mesh_stopped is not None and state != "stopped":
                state = "stopped"
            self.set_state(rank, state, reason=failure.reason, failure=failure)
            self.tell("failed" if state == "failed" else state, rank, failure.reason, failure)
            if failure.kind != "stopped" and len(failure.consequences) < 64:
                failure._add_consequence(self._followed(rank, failure))

    def _followed(self, rank: int, cause: Failure) -> Failure:
        return Failure(
            kind=cause.kind, origin=cause.origin, mesh=self.name, name=self.rank_name(rank), point=self.whole.point(rank),
            actor_class=self.class_name, host=cause.host, incarnation=self.incarnation(rank), reason="its proc ended",
            exit_code=cause.exit_code, signal=cause.signal, times=cause.times,
        )  # fmt: skip

    def news(self, payload: bytes) -> None:
        incarnation, news = pickle.loads(payload)
        for state, rank, reason, packed in news:
            failure = None
            if packed is not None:
                failure, dumped = pickle.loads(packed)
                self.runtime.hearing.came_from(failure, serialize.load_exception(dumped))
            self.actor_state([rank], state, incarnation, reason, failure)

    def actor_state(self, ranks: Iterable[int], state: str, incarnation: int, reason: str, failure: Failure | None) -> None:
        """A proc says how actors of this mesh are."""
        for rank in ranks:
            before = self._states[rank]
            self.set_state(rank, state, reason=reason, failure=failure, incarnation=incarnation)
            if state == "up":
                self.tell("recovered" if before == "restarting" else "started", rank)
            elif state == "failed" and failure is not None:
                self.tell("failed", rank, reason, failure)
                self.climbs(rank, failure)
            else:
                self.tell(state, rank, reason)
        self.end_subscribers()

    def stop_ranks(self, ranks: list[int], reason: str) -> None:
        for place, proc in enumerate(self.procs):
            slots = [rank - place * self.per for rank in ranks if rank // self.per == place]
            if slots:
                self._stop_slots(proc, slots, reason)
        if self.on is not None and self.mesh_stopped is not None:
            self.runtime.control.forget_actor(list(dict.fromkeys(self.procs)), self.id)

    def _stop_slots(self, proc: int, slots: list[int], reason: str) -> None:
        runtime = self.runtime
        if proc == runtime.proc:
            ranks = [(slot, slot) for slot in slots]
            runtime.loop.call_soon(runtime.hosting.stop, self.id, proc, ranks, reason.encode())
        else:
            runs = [(slot, 1, 1, slot, 1) for slot in slots]
            runtime.send_system(proc, self.id, ".stop", reason.encode(), runs)

    def restart(self, shape: Shape, reason: str) -> Reply[None]:
        raise NotImplementedError(
            "actors restart with their procs: call restart() on the proc mesh, or spawn the actors with options(restart=…)"
        )
