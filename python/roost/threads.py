"""`Threads`: where one actor's `def` endpoints run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from roost import serialize

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.endpoint_info import EndpointInfo
    from roost.runner import Runner

__all__ = ["Threads"]

# Threads for `def` endpoints that are concurrent without a limit of their own.
CONCURRENT_THREADS_MAX = 32


class Threads:
    """The threads of one actor: one for all endpoints that run alone, others for those that run beside others."""

    __slots__ = ("_overdue", "_pools", "_runner")

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        # Endpoints that still run although their actor ends.
        self._overdue: list[asyncio.Future[Any]] = []
        # By the group or endpoint that they are for.
        self._pools: dict[str, ThreadPoolExecutor] = {}

    async def run(self, endpoint: EndpointInfo, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Call a `def` endpoint on a thread that is meant for it."""
        scope = copy_context()
        function = endpoint.function
        running = self._runner.hosted.loop.run_in_executor(
            self._pool(endpoint),
            lambda: scope.run(_no_stop_iteration, function, self._runner.instance, *args, **(kwargs or {})),
        )
        cancelled = False
        while not running.done():
            # A thread cannot be cancelled; the actor stays busy until it returns, since its messages go one at a time.
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError:
                # Nobody waits for what it raises now, and asyncio would complain of that.
                running.add_done_callback(_look_at)
                if self._runner.stopping is not None:
                    self._overdue.append(running)
                    raise
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        value = running.result()
        if serialize.is_unawaited(value):
            kind = type(value).__name__
            if isinstance(value, Coroutine):
                value.close()  # it would warn that nobody awaited it
            raise TypeError(
                f"{endpoint.qualname} is a `def` that returned a {kind}: make it `async def`, and await there"
            )
        return value

    def _pool(self, endpoint: EndpointInfo) -> ThreadPoolExecutor:
        """One thread for all endpoints that run alone; those that run beside others have as many as may run at once."""
        key = endpoint.group or endpoint.name if endpoint.concurrent else ""
        threads = self._pools.get(key)
        if threads is None:
            count = endpoint.limit or CONCURRENT_THREADS_MAX if endpoint.concurrent else 1
            threads = self._pools[key] = ThreadPoolExecutor(count, thread_name_prefix=f"roost-{self._runner.name}")
        return threads

    async def settled(self, timeout_s: float) -> None:
        """Wait a while for what still runs."""
        if self._overdue:
            await asyncio.wait(self._overdue, timeout=timeout_s)

    def close(self) -> None:
        """Let the threads go."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools.clear()


def _look_at(running: asyncio.Future[Any]) -> None:
    if not running.cancelled():
        running.exception()


def _no_stop_iteration(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function; its StopIteration, which no future takes, becomes the RuntimeError that it is in a coroutine."""
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError(f"{function.__qualname__} raised StopIteration") from error
