"""Makes `create_task` take replies, which `asyncio.wait` takes as the futures that they are.

`asyncio.Task` takes only what passes for a coroutine, `asyncio.wait` only what does not. Each asks by itself: Task keeps, in C,
the types that it has seen pass, and asks the rest of the type no more. So a reply's type is shown to it once as a coroutine.
"""

from __future__ import annotations

import asyncio
import types
from typing import Any

__all__ = ["let_tasks_take"]


class _Loop:
    """As much of a loop as a task needs that never runs."""

    def get_debug(self) -> bool:
        return False

    def call_soon(self, *_args: Any, **_kwargs: Any) -> None:
        pass


_set_class: Any = object.__dict__["__class__"].__set__


def let_tasks_take(kind: type[asyncio.Future[Any]]) -> None:
    """Have tasks accept futures of this type; they are stepped by `send` and `throw`."""

    class Shown(kind):  # type: ignore[valid-type,misc]
        """A future that is asked what it is, says that it is a coroutine, and is one of `kind` from then on."""

        __slots__ = ()

        @property  # type: ignore[misc]
        def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
            _set_class(self, kind)
            return types.CoroutineType

    loop: Any = _Loop()
    task: Any = asyncio.Task(Shown(loop=loop), loop=loop)  # pyright: ignore[reportArgumentType]
    task._log_destroy_pending = False
    # What `asyncio.wait` and `iscoroutine` remember for themselves.
    seen: set[type] = getattr(asyncio.coroutines, "_iscoroutine_typecache", set())
    seen.discard(kind)
