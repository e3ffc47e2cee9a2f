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
        # When the last line was written that has been read, and how many were at that very time.
        self._at, self._count = "", 0

    def read(self) -> bytes:
        """What has been written since it was read last."""
        query = {"timestamps": "true"}
        if self._at:
            query["sinceTime"] = self._at
        since, known = _sortable(self._at), self._count
        found: list[str] = []
        # Only "\n" ends a line: a progress bar's "\r" is within one. One that is not whole comes again.
        for line in self._fetch(query).split("\n")[:-1]:
            stamp, _, text = line.partition(" ")
            at = _sortable(stamp)
            # The answer begins with a whole second; what has no time is a node's that does not have the log.
            if at < since or not stamp[:1].isdigit():
                continue
            if at == since and known:
                known -= 1
                continue
            self._count = self._count + 1 if stamp == self._at else 1
            self._at = stamp
            found.append(f"{text}\n")
        return "".join(found).encode()


def _sortable(stamp: str) -> str:
    """A time without its zone: fractions of a second have as many digits as they need."""
    return stamp.partition("+")[0].removesuffix("Z")
