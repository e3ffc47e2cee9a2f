"""`Accumulator`: folds the answers of a mesh as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost.reply import Reply, fail_reply

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Accumulator"]

A = TypeVar("A")


class Accumulator(Generic[A]):
    """Folds the answers of a mesh as they come.

    Args:
        endpoint: an endpoint on a mesh, as `mesh.score`.
        identity: what the fold begins with.
        combine: `combine(so_far, answer)`.
    """

    def __init__(self, endpoint: Any, identity: A, combine: Callable[[A, Any], A]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: Any, **kwargs: Any) -> Reply[A]:
        """Call every rank with these arguments, and fold the answers."""
        from roost.process import current

        stream = self._endpoint.stream(*args, **kwargs)
        runtime = current()
        reply: Reply[A] = Reply(loop=runtime.loop)

        async def fold() -> None:
            result = self._identity
            try:
                async for _, value in stream:
                    result = self._combine(result, value)
            except BaseException as error:  # noqa: BLE001 - it is the reply's
                fail_reply(reply, error)
                await stream.aclose()
            else:
                if not reply.done():
                    reply.set_result(result)

        def begin() -> None:
            task = runtime.keep(fold())
            reply.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)

        runtime.on_loop(begin)
        return reply
