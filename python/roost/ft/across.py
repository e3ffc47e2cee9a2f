"""From the training thread to the loop of its process, and back, by one wake-up each way.

The loop makes the call: there plain values travel as they are, and a verb that is used on another thread pickles them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from roost import process

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.reply import Reply

__all__ = ["Asked", "posted"]


def posted(send: Callable[[], object]) -> None:
    """Have the loop do it, after all that this thread had it do before."""
    process.current().loop.call_soon_threadsafe(send)


class Asked:
    """A call that the loop makes.

    Args:
        call: what makes it; its arguments must not change until it has.
    """

    def __init__(self, call: Callable[[], Reply[Any]]) -> None:
        self._call = call
        # No `Event`: that is several locks, and Python around each.
        self._over = threading.Lock()
        self._over.acquire()
        self._made: Reply[Any] | None = None
        self._error: BaseException | None = None
        posted(self._make)

    def done(self) -> bool:
        """Whether the answer is there."""
        return not self._over.locked()

    def result(self) -> Any:
        """Wait for the answer, on the thread that has asked.

        Raises:
            BaseException: what the call raised, or was answered with.
        """
        with self._over:
            pass
        if self._made is None:
            assert self._error is not None
            raise self._error
        return self._made.result()

    def _make(self) -> None:
        try:
            reply = self._call()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._error = error
            self._over.release()
        else:
            self._made = reply
            reply.add_done_callback(lambda _: self._over.release())
