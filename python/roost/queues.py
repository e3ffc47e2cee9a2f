"""`Queues`: messages that wait long for an actor that is busy, so that its owner hears what it is busy with."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.runtime import Runtime

__all__ = ["Queues"]


class Queues:
    """Looks at the mailboxes of this process now and then: whose first message is still the same has not moved."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By mesh and slot, the first message of the mailbox and when it was seen there first; None once that was told.
        self._first: dict[tuple[int, int], tuple[int, float | None]] = {}
        self._looks = False

    def begin(self) -> None:
        """There are actors in this process: look from now on."""
        if not self._looks:
            self._looks = True
            self._again()

    def _again(self) -> None:
        # Twice in the time after which it is told: it is told between that and half as much again.
        self._runtime.loop.call_later(self._runtime.config.queue_warning_s / 2, self._look)

    def _look(self) -> None:
        runtime = self._runtime
        if runtime.closed:
            return
        self._again()
        now, before = runtime.loop.time(), self._first
        self._first = {}
        for mesh, slot, first, endpoint, queued, running in runtime.node.queues():
            known, since = before.get((mesh, slot), (0, now))
            if known != first:
                since = now
            elif since is not None and now - since >= runtime.config.queue_warning_s:
                self._tell(mesh, slot, f"{endpoint} has waited for {now - since:.0f} s{_behind(queued, running)}")
                since = None
            self._first[mesh, slot] = first, since

    def _tell(self, mesh: int, slot: int, reason: str) -> None:
        hosted = self._runtime.hosting.meshes.get(mesh)
        if hosted is not None:
            hosted.waiting(slot, reason)


def _behind(queued: int, running: list[tuple[str, int]]) -> str:
    now_ns = time.monotonic_ns()
    others = f", with {queued - 1} more behind it" if queued > 1 else ""
    if not running:
        return f" for its actor to be constructed{others}"
    busy = ", ".join(f"{name}, which runs since {(now_ns - since_ns) / 1e9:.0f} s" for name, since_ns in running)
    return f" behind {busy}{others}"
