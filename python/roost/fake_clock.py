"""`FakeClock`: the time of an event loop, moved by the test instead of by the world."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from roost.values import check_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Context

__all__ = ["FakeClock", "clock"]

# Turns of the loop after each moment at which a timer fired: a call to a local proc and its answer take some eight.
_TURNS = 25


class _Timer(asyncio.TimerHandle):
    """What `call_later` gives under a fake clock."""

    def cancel(self) -> None:
        """Not through the loop, which does not know of it."""
        asyncio.Handle.cancel(self)


class FakeClock:
    """The time of the running loop, which stands still until `advance`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._now = loop.time()
        self._began = self._now
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()

    @property
    def elapsed(self) -> float:
        """The seconds by which it was advanced."""
        return self._now - self._began

    async def advance(self, seconds: float) -> None:
        """Let time pass: every timer that comes due fires, each at its own moment and in order, and what it wakes has its turn.

        What processes do takes its own time: await it, instead of advancing, where a test needs it.

        Args:
            seconds: how much; 0 lets everything that is ready have its turn.
        """
        check_finite("advance()", "seconds", seconds)
        end = self._now + seconds
        await self._settle()
        while self._timers and self._timers[0][0] <= end:
            self._now = max(self._now, self._timers[0][0])
            self._fire()
            await self._settle()
        self._now = end

    def _fire(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            self._loop.call_soon(_run_unless_cancelled, heapq.heappop(self._timers)[2])

    async def _settle(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    # In the loop's place ---------------------------------------------------------------------------------------------------
    def _time(self) -> float:
        return self._now

    def _call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self._loop, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at(self._now + delay, callback, *args, context=context)

    def _give_back(self) -> None:
        """The timers that are left go on by the loop's own time."""
        for when, _, timer in sorted(self._timers, key=lambda one: one[:2]):
            if not timer.cancelled():
                self._loop.call_later(max(0.0, when - self._now), _run_unless_cancelled, timer)
        self._timers.clear()


def _run_unless_cancelled(timer: _Timer) -> None:
    if not timer.cancelled():
        timer._run()


@contextmanager
def clock() -> Iterator[FakeClock]:
    """A clock in the place of the running event loop's: `with roost.testing.clock() as clock: … await clock.advance(60)`.

    It governs every timer that begins inside the `with` on this loop: `asyncio.sleep`, `asyncio.timeout` and `wait_for` of
    the test, and what Roost times in this process: restart pauses of local procs, of their actors and of `this_proc()`'s, the
    window in which restarts count, deadlines of calls made here (`options(timeout=…)`), probes, the time-outs of `as_completed`, a
    delay of `Faults` in a local proc, the hold of errors that may be the echo of a death (`echo_hold_s`), the grace of
    stops.

    It does not govern other processes, which have clocks of their own, so neither restart pauses of procs that are processes nor
    what actors in them time; nor threads, `time.sleep` and `time.monotonic`, nor what blocks with `reply.result(timeout)`;
    nor whether a message has passed its deadline where it arrives; nor timers that began before the `with`, which stand still or
    go on as the loop has it. Timers that are left at its end go on by the loop's own time.

    Raises:
        RuntimeError: no loop runs, or it has a fake clock already.
    """
    loop: Any = asyncio.get_running_loop()
    if isinstance(getattr(loop.call_later, "__self__", None), FakeClock):
        raise RuntimeError("this event loop has a fake clock already: use that one")  # noqa: TRY004 - a state, not a type
    fake = FakeClock(loop)
    loop.time, loop.call_at, loop.call_later = fake._time, fake._call_at, fake._call_later
    try:
        yield fake
    finally:
        del loop.time, loop.call_at, loop.call_later
        fake._give_back()
