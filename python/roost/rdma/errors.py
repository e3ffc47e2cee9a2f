"""What goes wrong with one-sided memory alone."""

from __future__ import annotations

from roost.errors import RoostError

__all__ = ["BufferGone", "VersionError"]


class BufferGone(RoostError, LookupError):  # noqa: N818  (what it says is a state)
    """The buffer was dropped by its owner, or its memory was freed."""


class VersionError(RoostError, RuntimeError):
    """A buffer is older than the version that was asked for.

    Args:
        wanted: the oldest version that would do.
        found: the version that the buffer has.
    """

    wanted: int
    """The oldest version that would do."""
    found: int
    """The version that the buffer has."""

    def __init__(self, wanted: int, found: int) -> None:
        super().__init__(wanted, found)
        self.wanted = wanted
        self.found = found

    def __str__(self) -> str:
        return f"the buffer has version {self.found}, and at least {self.wanted} was asked for"
