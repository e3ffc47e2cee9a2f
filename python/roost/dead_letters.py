"""Broadcasts that reached nobody, and the job as `context().job` shows it."""

from __future__ import annotations

import logging
import pickle
from collections import deque
from typing import TYPE_CHECKING, Any

from roost.events import EventStream, event, now
from roost.failure import DeadLetter, Failure
from roost.shape import Point

if TYPE_CHECKING:
    from roost.failure import Event
    from roost.runtime import Runtime

__all__ = ["DeadLetters", "Job"]

_logger = logging.getLogger("roost.dead_letters")


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
        self._runtime.job_subscribers.append(stream)
        return stream


class DeadLetters:
    """The broadcasts of this process that were not delivered: each a warning, an event and an entry, never silent."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.kept: deque[DeadLetter] = deque(maxlen=runtime.config.dead_letters_max)

    def add(self, target: str, endpoint: str, point: Point, reason: str, failure: Failure | None, mesh: int) -> None:
        """A broadcast of this process was not delivered."""
        runtime = self._runtime
        runner = runtime.handling_runner()
        sender = runtime.name if runner is None else runner.name
        letter = DeadLetter(sender, target, endpoint, point, reason, failure, now())
        self.kept.append(letter)
        _logger.warning("%s", letter)
        record = runtime.owned.get(mesh)
        name = "" if record is None else record.name
        happened: Event = event("dead_letter", name, target, point, 0, reason, failure)
        if record is not None:
            record.give(happened)
        else:
            runtime.job_event(happened)

    def send_back(self, message: Any, target: str, reason: str) -> None:
        """A broadcast that cannot be handled here goes back to its sender."""
        payload = pickle.dumps((target, message.name, reason), 5)
        if message.sender == self._runtime.proc:
            self.came_back(0, self._runtime.proc, [], payload)
        else:
            self._runtime.send_system(message.sender, 1, ".letter", payload, [])

    def came_back(self, _mesh: int, _sender: int, _ranks: list[tuple[int, int]], payload: bytes) -> None:
        """A broadcast of ours was not taken by the actor that it was for."""
        first, *rest = pickle.loads(payload)
        if isinstance(first, Failure):
            self.add(first.name, "", first.point, first.reason, first, 0)
        else:
            self.add(first, rest[0], Point({}), rest[1], None, 0)
