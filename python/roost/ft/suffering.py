"""What `Failures` does inside a trainer's proc."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING, NoReturn

from roost.ft.failures import InjectedError

if TYPE_CHECKING:
    from roost.ft.seat import Seat

__all__ = ["suffer"]

_FOR_EVER_S = 1_000_000


def suffer(seat: Seat, kind: str, seconds: float) -> None:
    """Have a failure: at once, or where the training thread next says what it does."""
    if kind == "segfault":
        ctypes.string_at(0)
    elif kind == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "hang with the GIL":
        ctypes.PyDLL(None).sleep(_FOR_EVER_S)
    elif kind == "collective error":
        if seat.group is not None:
            seat.group.abort("an injected error")
    elif kind == "exception":
        seat.fault = _raise
    else:
        seat.fault = _Pause(_FOR_EVER_S if kind == "hang" else seconds)


def _raise() -> NoReturn:
    raise InjectedError("an injected error")


class _Pause:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self) -> None:
        time.sleep(self._seconds)
