"""`Called`: a call of the extension's that is under way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Called"]


class Called:
    """A call of the extension's, which calls it when it is done; perhaps before anybody asks for that.

    Args:
        tensors: what it works on, which it keeps until then.
    """

    def __init__(self, *tensors: Any) -> None:
        self._tensors = tensors
        self._lock = threading.Lock()
        self._ended: tuple[BaseException | None] | None = None
        self._done: Callable[[BaseException | None], None] | None = None

    def __call__(self, error: str | None) -> None:
        """It is done, or what went wrong."""
        with self._lock:
            self._tensors = ()
            self._ended = (None if error is None else RuntimeError(error),)
            done = self._done
        if done is not None:
            done(*self._ended)

    def then(self, done: Callable[[BaseException | None], None]) -> None:
        """On the extension's thread, or at once."""
        with self._lock:
            self._done = done
            ended = self._ended
        if ended is not None:
            done(*ended)
