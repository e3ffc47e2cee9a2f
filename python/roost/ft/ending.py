"""How a training thread is told that there is no next step."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["End", "TrainingOver"]


@dataclass(frozen=True, slots=True)
class End:
    """There is no next step."""

    base: int = 0
    """How many inner steps count."""
    trained: tuple[int, ...] = ()
    """The replicas that have the state."""
    error: str | None = None


class TrainingOver(BaseException):
    """There is no next step: raised through the user's own loop, which is not to catch it."""

    def __init__(self, end: End) -> None:
        super().__init__(end.error or f"training is over after {end.base} steps")
        self.end = end
