"""`Hosting`: all actors that live in this process, and what owners ask of them."""

from __future__ import annotations

import pickle
import traceback
from collections import deque
from typing import TYPE_CHECKING

from roost import serialize
from roost.failure import Failure
from roost.hosted import HostedMesh, life, refusal
from roost.shape import Point

if TYPE_CHECKING:
    from roost.hosted import News, Ranks
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

    def spawn(self, mesh: int, owner: int, ranks: Ranks, payload: bytes) -> None:
        """Make the actors of a mesh that live here."""
        if mesh in self.meshes:
            return  # it came with this incarnation's start already
        try:
            hosted = HostedMesh(self._runtime, mesh, owner, payload, ranks)
        except Exception as error:  # noqa: BLE001 - the user's class, whatever it raises when it is loaded
            self._refuse(mesh, owner, ranks, error)
            return
        self.meshes[mesh] = hosted
        self._runtime.members.note(hosted.handle)
        hosted.start()

    def _refuse(self, mesh: int, owner: int, ranks: Ranks, error: Exception) -> None:
        """The class or its arguments do not unpickle here: the actors have failed, and every message goes back."""
        runtime = self._runtime
        said = f"its class could not be loaded in the proc: {type(error).__name__}: {error}"
        failure = Failure(
            kind="error", origin="user", mesh=runtime.name, name=runtime.name, point=Point({}), host=runtime.host,
            incarnation=runtime.incarnation, reason=said, traceback="".join(traceback.format_exception(error)),
        )  # fmt: skip
        original = serialize.dump_exception(error)
        for cell, (_, rank) in zip(runtime.node.host(mesh, [slot for slot, _ in ranks], {}), ranks, strict=True):
            cell.close(refusal(mesh, rank, failure, original))
        packed = pickle.dumps((failure, original), 5)
        now = life(runtime.incarnation, 0), runtime.incarnation
        news: list[News] = [("failed", rank, said, now, packed) for _, rank in ranks]
        runtime.send_news(owner, mesh, news)

    def stop(self, mesh: int, sender: int, ranks: Ranks, payload: bytes) -> None:
        """The owner stops actors."""
        hosted = self.meshes.get(mesh)
        if hosted is not None:
            hosted.stop_slots([slot for slot, _ in ranks], payload.decode())
            return
        now = life(self._runtime.incarnation, 0), self._runtime.incarnation
        news: list[News] = [("stopped", rank, payload.decode(), now, None) for _, rank in ranks]
        self._runtime.send_news(sender, mesh, news)

    def restart(self, mesh: int, _sender: int, ranks: Ranks, payload: bytes) -> None:
        """The owner has actors constructed anew."""
        hosted = self.meshes.get(mesh)
        if hosted is not None:
            hosted.restart_slots([slot for slot, _ in ranks], payload.decode())

    def all_ended(self, hosted: HostedMesh) -> None:
        """Every actor of a mesh has ended here; its cells stay a while, so that late messages are answered at once."""
        self._ended.append(hosted.id)
        while len(self._ended) > _ENDED_MAX:
            mesh = self._ended.popleft()
            old = self.meshes.get(mesh)
            if old is not None and old.is_over:
                del self.meshes[mesh]
                self._runtime.node.forget(mesh)

    def early(self, mesh: int, _sender: int, _ranks: Ranks, _payload: bytes) -> None:
        """A message came for a mesh that is not here: it may still come, or have been stopped."""
        runtime = self._runtime

        def give_up() -> None:
            if mesh not in self.meshes and not runtime.closed:
                failure = Failure(
                    kind="stopped", origin="roost", mesh="", name="the actor", point=Point({}), host=runtime.host,
                    reason=f"this proc has no actors of mesh {mesh:x}",
                )  # fmt: skip
                runtime.node.give_up_early(mesh, refusal(mesh, 0, failure, None))

        runtime.loop.call_later(_EARLY_WAIT_S, give_up)
