"""What a node of a SkyPilot cluster wrote, bit by bit."""

from __future__ import annotations

import asyncio
import io
import threading
from typing import TYPE_CHECKING

from roost.errors import JobError
from roost.job.skypilot_sdk import asked
from roost.job.skypilot_task import lines_of

if TYPE_CHECKING:
    from roost.job.skypilot_sdk import SkyPilot

__all__ = ["ClusterLog"]


class ClusterLog:
    """The log of a node.

    Args:
        sky: SkyPilot.
        cluster: the cluster's name.
        rank: which of its nodes.
        follow: go on until its task has ended.
    """

    def __init__(self, sky: SkyPilot, cluster: str, rank: int, *, follow: bool) -> None:
        self._sky, self._cluster, self._rank, self._follow = sky, cluster, rank, follow
        self._output = _Growing()
        self._thread: threading.Thread | None = None

    def read(self) -> bytes:
        """What has been written since it was read last."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._fetch, name=f"roost-log {self._cluster}", daemon=True)
            self._thread.start()
            if not self._follow:
                self._thread.join()
        return lines_of(self._output.take(is_whole=not self._thread.is_alive()), self._rank).encode()

    async def is_over(self) -> bool:
        """Whether nothing more will come."""
        await asyncio.sleep(0)
        return self._thread is not None and not self._thread.is_alive()

    def _fetch(self) -> None:
        try:
            asked(self._sky.tail_logs, self._cluster, self._output, follow=self._follow)
        except JobError as error:
            self._output.write(f"{error}\n")


class _Growing(io.StringIO):
    """Text that one thread writes, and another takes."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._new = ""

    def write(self, text: str) -> int:
        """Add to it."""
        with self._lock:
            self._new += text
        return len(text)

    def take(self, *, is_whole: bool) -> str:
        """What is new, in whole lines, unless all is there."""
        with self._lock:
            cut = len(self._new) if is_whole else self._new.rfind("\n") + 1
            taken, self._new = self._new[:cut], self._new[cut:]
        return taken
