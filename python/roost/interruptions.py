"""`Interruptions`: what SIGINT and SIGTERM do while `roost.run` runs a program."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType
    from typing import Self

    from roost.runtime import Runtime

__all__ = ["Interruptions"]


class Interruptions:
    """The first cancels the program, which then stops in order; a second kills what is left."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._runtime: Runtime | None = None
        self._program: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # As asyncio does: who has a handler for SIGINT keeps it.
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._take(signal.SIGINT)
            self._take(signal.SIGTERM)
        return self

    def _take(self, number: int) -> None:
        # Not the loop's own handlers: those wait for a turn of the loop, which a program that is stuck has not.
        self._before[number] = signal.signal(number, self._interrupt)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def begin(self, runtime: Runtime) -> None:
        """The program begins, in the task that calls this."""
        self._runtime, self._program = runtime, asyncio.current_task()

    def ending(self) -> BaseException | None:
        """What a program ends with that was cancelled by a signal."""
        return None if self._first is None else _ending(self._first)

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        runtime, program = self._runtime, self._program
        if runtime is None or program is None or runtime.loop.is_closed():
            raise _ending(number)
        if self._first is None:
            self._first = number
            runtime.loop.call_soon_threadsafe(program.cancel)
            return
        # In the next turn, since this one may be anywhere; that there is one is what the exception sees to.
        runtime.loop.call_soon_threadsafe(runtime.close)
        raise _ending(number)


def _ending(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
