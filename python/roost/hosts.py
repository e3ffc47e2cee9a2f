"""The hosts that this process knows: their names, which of them are lost, and who attached them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from roost.failure import Failure
from roost.point import Point

if TYPE_CHECKING:
    from roost.candidates import Candidate
    from roost.joining import Attaching
    from roost.owned_hosts import OwnedHosts
    from roost.runtime import Runtime

__all__ = ["Hosts"]

_logger = logging.getLogger("roost")


class Hosts:
    """What this process knows of hosts other than its own."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By the number under which it was asked for, who attaches a host, and what it is to them.
        self._asked: dict[int, tuple[Attaching, Candidate]] = {}
        # By its id, the mesh of hosts that a host is in, and its rank there.
        self.owned: dict[int, tuple[OwnedHosts, int]] = {}
        # By its id, the name of a host.
        self.names: dict[int, str] = {}
        # Losses, by the host's id: one object for all that followed from it.
        self._lost: dict[int, Failure] = {}
        # The same, and those of hosts that never joined.
        self._losses: list[Failure] = []

    def ask(self, attaching: Attaching, candidate: Candidate) -> int:
        """A number for one attempt to attach a host."""
        number = len(self._asked) + 1
        self._asked[number] = attaching, candidate
        return number

    def heard(self, number: int, what: str, details: dict[str, Any]) -> None:
        """The control thread says how an attempt, or what became of it, goes on."""
        attaching, candidate = self._asked[number]
        attaching.heard(candidate, number, what, details)

    def reached_by(self, host: int) -> str:
        """By what a host is reached from here: "number:port", or "unix:" and the path of a socket; empty for this one."""
        owned = self.owned.get(host)
        return "" if owned is None else owned[0].attaching.reached_by(host)

    def changed(self, host: int, name: str, status: str, reason: str) -> None:
        """A host with procs of this process's joined, was lost or left."""
        self.names[host] = name
        if status == "lost":
            self.lost(host, name, reason)

    def lost(self, host: int, name: str, reason: str) -> Failure:
        """The failure of a host, however often it is told."""
        known = self._lost.get(host)
        if known is not None:
            return known
        owned = self.owned.get(host)
        mesh, rank_name, point = ("hosts", name, Point({})) if owned is None else owned[0].place(owned[1])
        said = "" if owned is None else owned[0].explain(owned[1])
        if said:
            reason = f"{reason}; {said}"
        now = time.time()
        failure = self._lost[host] = Failure(
            kind="lost", origin="host", mesh=mesh, name=rank_name, point=point, host=name, reason=reason,
            times={"died_at": now, "detected_at": now},
        )  # fmt: skip
        self._losses.append(failure)
        _logger.warning("%s", failure.summary)
        if owned is not None:
            owned[0].lost(owned[1], failure)
        return failure

    def note(self, failure: Failure) -> None:
        """A host will never join."""
        self._losses.append(failure)

    def is_loss(self, failure: Failure | None) -> bool:
        """Whether it is the loss of a host itself, not of what lived there."""
        return failure is not None and any(one is failure for one in self._losses)

    def loss(self, host: int | None) -> Failure | None:
        """The failure of a host that was lost."""
        return None if host is None else self._lost.get(host)
