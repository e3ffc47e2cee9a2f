"""`context()`: where this code runs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    from roost.actor_mesh import ActorMesh
    from roost.dead_letters import Job
    from roost.point import Point
    from roost.runner import Runner

    class Handling(Protocol):
        """What an actor is busy with: a message (made in Rust), or its own construction."""

        @property
        def runner(self) -> Runner: ...
        @property
        def rank(self) -> int: ...
        @property
        def sizes(self) -> bytes: ...


__all__ = ["Context", "context"]


# The message that the running endpoint handles. Tasks that an endpoint makes inherit it.
handling: ContextVar[Handling | None] = ContextVar("roost_handling", default=None)


class Context:
    """Where this code runs: the actor, its place, and the process. In the driver the actor is "driver"."""

    __slots__ = ("_handling",)

    def __init__(self, now: Handling | None) -> None:
        self._handling = now

    @property
    def actor_name(self) -> str:
        """The name of the actor's mesh, or "driver"; in a thread that the user started, the proc's name."""
        if self._handling is None:
            from roost.process import current

            return current().name
        return self._handling.runner.name

    @property
    def point(self) -> Point:
        """The actor's place in its whole mesh; empty in the driver."""
        from roost.point import Point

        if self._handling is None:
            return Point({})
        return self._handling.runner.point

    @property
    def message_point(self) -> Point:
        """The place inside the slice that the message was sent to; equal to `point` in constructors."""
        from roost.point import Point
        from roost.shape import decode_sizes

        if self._handling is None:
            return Point({})
        return Point(decode_sizes(self._handling.sizes), self._handling.rank)

    @property
    def proc(self) -> int:
        """The id of this process in the job."""
        from roost.process import current

        return current().proc

    @property
    def incarnation(self) -> int:
        """How often this proc, or this actor alone, was restarted; 0 at first."""
        from roost.process import current

        return current().incarnation if self._handling is None else self._handling.runner.incarnation

    @property
    def mesh(self) -> ActorMesh | None:
        """The whole mesh that this actor belongs to; None in the driver."""
        return None if self._handling is None else self._handling.runner.mesh

    @property
    def job(self) -> Job:
        """The job: `.id`, `.events()`, `.dead_letters`."""
        from roost.process import current

        return current().job

    def stop(self, reason: str = "stopped by itself") -> None:
        """End this actor normally, once the endpoint that runs now has returned."""
        self._runner("stop").stop_self(reason)

    def abort(self, reason: str) -> None:
        """Fail this actor: a failure of kind `error`, origin `user`."""
        self._runner("abort").abort_self(reason)

    def _runner(self, verb: str) -> Any:
        if self._handling is None:
            raise RuntimeError(f"context().{verb}() ends an actor; here, in the driver, stop the mesh instead")
        runner = self._handling.runner
        runner.hosted.runtime.check_usable()
        return runner


def context() -> Context:
    """Where this code runs."""
    return Context(handling.get())
