"""Broadcasts that reached nobody, and the job as `context().job` shows it."""

from __future__ import annotations

import logging
import pickle
from collections import deque
from typing import TYPE_CHECKING

from roost.events import EventStream, event, now
from roost.failure import DeadLetter, Failure

if TYPE_CHECKING:
    from roost.failure import Event
    from roost.runtime import Runtime

__all__ = ["DeadLetters", "Job"]

_logger = logging.getLogger("roost.dead_letters")

# For how long those that follow a warning are counted before the log is told of them.
_COUNTED_S = 1.0


class Job:
    """The job as `context().job` shows it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def id(self) -> str:
        """The job's id, 32 hex digits."""
        return self._runtime.job_id.hex()

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Broadcasts of this process that were not delivered, the newest last."""
        return tuple(self._runtime.letters.kept)

    def events(self) -> EventStream:
        """What happens from now on to all meshes that this process owns."""
        stream = EventStream(self._runtime.config.events_max)
        self._runtime.job_subscribers.add(stream)
        return stream


class DeadLetters:
    """The broadcasts of this process that were not delivered: each a warning, an event and an entry, never silent."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.kept: deque[DeadLetter] = deque(maxlen=runtime.config.dead_letters_max)
        # By mesh and endpoint: how many more came since the log was last told, and the last of them.
        self._more: dict[tuple[int, str], tuple[int, DeadLetter]] = {}

    def add(self, mesh: int, rank: int, endpoint: str, reason: str, failure: Failure | None, sender: str = "") -> None:
        """A broadcast of this process was not delivered to a rank of the whole mesh."""
        runtime = self._runtime
        name, target, point = runtime.members.actor(mesh, rank)
        if not sender:
            runner = runtime.handling_runner()
            sender = runtime.name if runner is None else runner.name
        letter = DeadLetter(sender, target, endpoint, point, reason, failure, now())
        self.kept.append(letter)
        self._warn((mesh, endpoint), letter)
        happened: Event = event("dead_letter", name, target, point, 0, reason, failure)
        record = runtime.owned.get(mesh)
        if record is not None:
            record.give(happened)
        else:
            runtime.job_event(happened)

    def _warn(self, key: tuple[int, str], letter: DeadLetter) -> None:
        """The first of a mesh and an endpoint is told at once, those that follow are counted: a flood is a line a second."""
        more = self._more.get(key)
        if more is not None:
            self._more[key] = (more[0] + 1, letter)
            return
        _logger.warning("%s", letter)
        self._more[key] = (0, letter)
        self._runtime.loop.call_later(_COUNTED_S, self._tell_more, key)

    def _tell_more(self, key: tuple[int, str]) -> None:
        if key not in self._more:
            return  # told at the end already
        count, letter = self._more.pop(key)
        if count:
            _logger.warning("%d more like this one: %s", count, letter)
            if not self._runtime.closed:
                self._more[key] = (0, letter)
                self._runtime.loop.call_later(_COUNTED_S, self._tell_more, key)

    def close(self) -> None:
        """The process ends: what was counted is told."""
        for key in list(self._more):
            self._tell_more(key)

    def send_back(self, sender: int, mesh: int, rank: int, endpoint: str, reason: str, failure: Failure | None) -> None:
        """A broadcast that cannot be handled here goes back to its sender."""
        payload = pickle.dumps((mesh, rank, endpoint, reason, failure), 5)
        if sender == self._runtime.proc:
            self.came_back(0, sender, [], payload)
        else:
            self._runtime.send_system(sender, 1, ".letter", payload, [])

    def bounced(self, sender: int, endpoint: str, refusal: bytes) -> None:
        """A broadcast came for an actor that has ended, or never was; `refusal` is what its cell says."""
        if refusal:
            mesh, rank, failure, _, _ = pickle.loads(refusal)
            self.send_back(sender, mesh, rank, endpoint, failure.summary, failure)
        else:
            self.send_back(sender, 0, 0, endpoint, "there is no such actor", None)

    def came_back(self, _mesh: int, _sender: int, _ranks: list[tuple[int, int]], payload: bytes) -> None:
        """A broadcast of ours was not taken by the actor that it was for."""
        self.add(*pickle.loads(payload))
