"""`Hosting`: all actors that live in this process, and what owners ask of them."""

from __future__ import annotations

import pickle
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING

from roost import serialize
from roost._exceptions import one_line, traceback_text
from roost.constructing import load_plan, unpack
from roost.failure import Failure
from roost.hosted import HostedMesh, refusal
from roost.ids import DESK
from roost.news import life
from roost.point import Point
from roost.probing import UnhealthyError

if TYPE_CHECKING:
    from roost.constructing import Constructors
    from roost.hosted import Ranks
    from roost.runtime import Runtime

__all__ = ["Hosting"]

# Meshes that have ended here and are remembered all the same.
_ENDED_MAX = 100
# How long a message for a mesh that this process has not heard of waits for it.
_EARLY_WAIT_S = 10.0


class Hosting:
    """All actors of this process, by mesh."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.meshes: dict[int, HostedMesh] = {}
        self._ended: deque[int] = deque()
        self._desk: HostedMesh | None = None

    def spawn(self, _mesh: int, _sender: int, _ranks: Ranks, payload: bytes) -> None:
        """Make the actors of some meshes that live here."""
        packed, meshes = unpack(payload)
        try:
            plan = load_plan(packed)
        except Exception as error:  # noqa: BLE001 - the user's class, whatever it raises when it is loaded
            for made in meshes:
                self._refuse(made, error)
            return
        self._runtime.members.note_procs(plan.on)
        self._runtime.queues.begin()
        for made in meshes:
            # One that is here came with this incarnation's start already.
            if made.mesh not in self.meshes:
                hosted = self.meshes[made.mesh] = HostedMesh(self._runtime, plan, made)
                hosted.start()

    def _refuse(self, made: Constructors, error: Exception) -> None:
        """The class does not unpickle here: the actors have failed, and every message goes back."""
        runtime, mesh = self._runtime, made.mesh
        ranks = range(made.first, made.first + made.size)
        said = f"its class could not be loaded in the proc: {one_line(error)}"
        failure = Failure(
            kind="error", origin="user", mesh=runtime.name, name=runtime.name, point=Point({}), host=runtime.host,
            incarnation=runtime.incarnation, reason=said, traceback=traceback_text(error),
        )  # fmt: skip
        original = serialize.dump_exception(error)
        for cell, rank in zip(runtime.node.host(mesh, len(ranks), {}), ranks, strict=True):
            cell.close(refusal(mesh, rank, failure, original))
        packed = pickle.dumps((failure, original), 5)
        for rank in ranks:
            its_life = life(runtime.incarnation, 0)
            runtime.news.tell(made.owner, (mesh, "failed", rank, said, its_life, runtime.incarnation, packed))

    def stop(self, mesh: int, sender: int, ranks: Ranks, payload: bytes) -> None:
        """The owner stops actors."""
        hosted = self.meshes.get(mesh)
        if hosted is not None:
            hosted.stop_slots([slot for slot, _ in ranks], payload.decode())
            return
        incarnation = self._runtime.incarnation
        for _, rank in ranks:
            self._runtime.news.tell(
                sender, (mesh, "stopped", rank, payload.decode(), life(incarnation, 0), incarnation, None)
            )

    def restart(self, mesh: int, _sender: int, ranks: Ranks, payload: bytes) -> None:
        """The owner has actors constructed anew."""
        hosted = self.meshes.get(mesh)
        if hosted is not None:
            hosted.restart_slots([slot for slot, _ in ranks], payload.decode())

    def probe(self, mesh: int, _sender: int, ranks: Ranks, _payload: bytes) -> None:
        """The owner asks whether actors are healthy."""
        hosted = self.meshes.get(mesh)
        if hosted is not None:
            for runner in hosted.runners(ranks):
                self._runtime.keep(runner.probe(), Context())

    def unhealthy(self, mesh: int, _sender: int, ranks: Ranks, payload: bytes) -> None:
        """Actors missed too many of these questions."""
        hosted = self.meshes.get(mesh)
        if hosted is not None:
            for runner in hosted.runners(ranks):
                runner.fail(UnhealthyError(payload.decode()), "its probe")

    def owner_ended(self, proc: int) -> None:
        """Actors have ended with their process, and so does what they owned here."""
        for hosted in list(self.meshes.values()):
            if hosted.owner == proc and not hosted.is_over:
                hosted.stop_slots(range(len(hosted.cells)), "its owner ended with its process")

    def all_ended(self, hosted: HostedMesh) -> None:
        """Every actor of a mesh has ended here; its cells stay a while, so that late messages are answered at once."""
        self._ended.append(hosted.id)
        while len(self._ended) > _ENDED_MAX:
            mesh = self._ended.popleft()
            old = self.meshes.get(mesh)
            if old is not None and old.is_over:
                del self.meshes[mesh]
                self._runtime.members.remember(mesh, (old.name, old.plan.whole, old.plan.procs, len(old.plan.per_proc)))
                self._runtime.node.forget(mesh)

    def early(self, mesh: int, _sender: int, _ranks: Ranks, _payload: bytes) -> None:
        """A message came for a mesh that is not here: it may still come, or have been stopped."""
        runtime = self._runtime
        if mesh == DESK:
            self.open_desk()
            return

        def give_up() -> None:
            if mesh not in self.meshes and not runtime.closed:
                failure = Failure(
                    kind="stopped", origin="roost", mesh="", name="the actor", point=Point({}), host=runtime.host,
                    reason=f"this proc has no actors of mesh {mesh:x}",
                )  # fmt: skip
                runtime.node.give_up_early(mesh, refusal(mesh, 0, failure, None))

        runtime.loop.call_later(_EARLY_WAIT_S, give_up)

    def open_desk(self) -> None:
        """Somebody asks this process: it has a desk from now on, until its last moment."""
        if self._desk is None:
            from roost.desk import host_desk

            self._desk = host_desk(self._runtime)
