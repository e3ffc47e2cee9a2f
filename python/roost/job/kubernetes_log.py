"""What a pod's container wrote, bit by bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["PodLog"]


class PodLog:
    """The log of a pod, and of the pods that take its place.

    Args:
        fetch: gives what was written, for a query of the API server's; nothing where there is no log.
    """

    def __init__(self, fetch: Callable[[Mapping[str, str]], str]) -> None:
        self._fetch = fetch
        # When the last line was begun that has been read, how many lines there were at that very time, and what was read of it where it
        # had no end.
        self._at, self._count = "", 0
        self._open: str | None = None

    def read(self) -> bytes:
        """What has been written since it was read last."""
        query = {"timestamps": "true"}
        if self._at:
            query["sinceTime"] = self._at
        since, known = _sortable(self._at), self._count
        found: list[str] = []
        # Only "\n" ends a line: a progress bar's "\r" is within one.
        *whole, rest = self._fetch(query).split("\n")
        for line, end in [*((line, "\n") for line in whole), *([(rest, "")] if rest else [])]:
            stamp, _, text = line.partition(" ")
            at = _sortable(stamp)
            # The answer begins with a whole second; what has no time is a node's that does not have the log.
            if at < since or not stamp[:1].isdigit():
                continue
            if at == since and known:
                known -= 1
                if not known and self._open is not None:
                    found.append(self._went_on(text, end))
                continue
            if self._open is not None:
                # Whoever had begun that line has ended without.
                found.append("\n")
            self._count = self._count + 1 if stamp == self._at else 1
            self._at = stamp
            self._open = None if end else text
            found.append(f"{text}{end}")
        return "".join(found).encode()

    def _went_on(self, text: str, end: str) -> str:
        """What is new of a line that had no end."""
        new = text.removeprefix(self._open or "")
        self._open = None if end else text
        return f"{new}{end}"


def _sortable(stamp: str) -> str:
    """A time without its zone: fractions of a second have as many digits as they need."""
    return stamp.partition("+")[0].removesuffix("Z")
