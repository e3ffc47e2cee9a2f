"""`monitor`: anybody is told of the end of a mesh that another process owns."""

from __future__ import annotations

from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any
from weakref import ref as weak

from roost._tasks import let_tasks_take
from roost.actor_mesh import ActorMesh
from roost.desk import desk_of
from roost.errors import ActorDied
from roost.failure import State
from roost.mesh import ProcMesh
from roost.reply import Reply
from roost.value_mesh import ValueMesh

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor import Actor
    from roost.runtime import Runtime
    from roost.shape import Shape

__all__ = ["monitor"]


def monitor(ref: ProcMesh | Actor) -> Reply[ValueMesh[State]]:
    """Hear once of the end of a mesh, a slice or a rank, whoever owns it.

    The reply has the last state of each rank, with reason and failure, when all have ended, well or badly; at once when they
    have already. A restart is not an end. To hear is all that it does: the mesh's owner is still to handle the failure.
    Cancelling the reply, or dropping it, stops it; it ends with its process, and leaves nothing at the owner.

    Args:
        ref: a mesh of procs or actors, a slice, or one rank.
    """
    if not isinstance(ref, ProcMesh | ActorMesh):
        raise TypeError(f"monitor({ref!r}): give a mesh, a slice of one, or `roost.handle(self)`")
    runtime = ref._runtime()
    made = Monitor(loop=runtime.loop)
    made._link = link = _Link(made, ref._shape)
    # In no endpoint's name: neither its deadline nor its end is that of the monitor.
    runtime.on_loop(lambda: Context().run(link.begin, runtime, ref._owner, ref._id))
    return made


class Monitor(Reply["ValueMesh[State]"]):
    """What `monitor` gives."""

    __slots__ = ("_link",)

    _link: _Link

    def _cancel_all(self, msg: Any | None) -> bool:
        self._link.end()
        return super()._cancel_all(msg)

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        # Whoever waits is to be woken, also when nobody else holds this.
        if not self.done():
            self._link.held = self
        super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        removed = super().remove_done_callback(fn)
        if not self._callbacks:
            self._link.held = None
        return removed

    def __del__(self) -> None:
        link = getattr(self, "_link", None)
        if link is not None and not self.done():
            # It may be collected at any time and in any thread, and after its loop.
            with suppress(RuntimeError):
                link.loop.call_soon_threadsafe(link.end)


let_tasks_take(Monitor)


class _Link:
    """Between the question that was asked of the owner, which the runtime holds, and the monitor, which its user holds."""

    __slots__ = ("_asked", "_ended", "_monitor", "_shape", "held", "loop")

    def __init__(self, monitor: Monitor, shape: Shape) -> None:
        self._monitor = weak(monitor)
        self._shape = shape
        self._asked: Reply[Any] | None = None
        self._ended = False
        self.loop = monitor.get_loop()
        self.held: Monitor | None = None

    def begin(self, runtime: Runtime, owner: int, mesh: int) -> None:
        """Ask the owner."""
        if not self._ended:
            asked: Reply[Any] = desk_of(runtime, owner).ended.call_one(mesh, self._shape)
            self._asked = asked
            asked.add_done_callback(self._answered)

    def end(self) -> None:
        """Nobody wants to hear of it any more."""
        self.held = None
        self._ended = True
        if self._asked is not None:
            self._asked.cancel()

    def _answered(self, asked: Reply[Any]) -> None:
        monitor = self._monitor()
        self.held = None
        if monitor is None or monitor.done():
            return
        if asked.cancelled():
            monitor.cancel()
            return
        # Looked at by the side: to get an error so is not to have heard of the failure in it.
        error = asked._exception
        if error is None:
            monitor.set_result(
                asked.result() or self._all("stopped", "it ended before, and its owner has forgotten it", None)
            )
        elif isinstance(error, ActorDied):
            # Nothing outlives its owner.
            state = "stopped" if error.failure.kind == "stopped" else "failed"
            monitor.set_result(self._all(state, f"its owner has ended: {error.failure.summary}", error.failure))
        else:
            monitor.set_exception(error)

    def _all(self, state: Any, reason: str, failure: Any) -> ValueMesh[State]:
        return ValueMesh(self._shape.sizes, [State(state, reason, failure=failure) for _ in range(len(self._shape))])
