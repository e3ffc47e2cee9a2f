"""`GatheredReply`: the reply of a call to a mesh."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from roost import process
from roost._tasks import let_tasks_take
from roost.errors import MeshError, RemoteError
from roost.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roost.actor_mesh import ActorMesh
    from roost.point import Point
    from roost.value_mesh import ValueMesh

__all__ = ["GatheredReply"]

R = TypeVar("R")

# What stands for the answer of a rank that has not given one.
_PENDING = object()


class GatheredReply(Reply[R]):
    """The reply of a call to a mesh: values by rank, or one `MeshError` as soon as the first rank fails."""

    __slots__ = ("_askers", "_everything", "_failed", "_mesh", "_point", "_remaining", "_values", "_wrap")

    def begin(
        self, size: int, wrap: Callable[[list[Any]], Any], point: Callable[[int], Point], mesh: ActorMesh
    ) -> None:
        """Say what is awaited: how many ranks, what to make of their values, each rank's point, and the mesh."""
        self._mesh = mesh
        self._values: list[Any] = [_PENDING] * size
        self._remaining = size
        self._wrap = wrap
        self._point = point
        self._failed: MeshError | None = None
        self._everything: asyncio.Future[None] | None = None
        # How many tasks wait for the outcomes.
        self._askers = 0

    def rank_value(self, rank: int, value: object) -> None:
        """One rank answered."""
        self._values[rank] = value
        self._account()

    def fail_ranks(self, errors: Sequence[tuple[int, BaseException]]) -> None:
        """Some ranks failed, at the same moment; the first to fail decide, later ones are listed in `later`."""
        named = [(self._point(rank), error) for rank, error in errors]
        for rank, error in errors:
            self._values[rank] = error
        if self._failed is None:
            count = len(named)
            self._failed = MeshError(
                f"{count} of {len(self._values)} ranks of {self._mesh._name} failed"
                if len(self._values) > 1
                else f"{self._mesh._name} failed",
                [
                    error if isinstance(error, Exception) else RemoteError(type(error).__name__, str(error))
                    for _, error in named
                ],
                [point for point, _ in named],
            )
            _fail(self, self._failed)
        else:
            self._failed.later.extend(error for _, error in named if isinstance(error, Exception))
        for _ in errors:
            self._account()

    @property
    def first_error(self) -> Exception | None:
        """What the first rank failed of; None while none has."""
        return None if self._failed is None else self._failed.exceptions[0]

    def place(self, rank: int) -> tuple[str, str, Point]:
        """The mesh's name, the rank's, and its place in the whole mesh."""
        mesh = self._mesh
        return mesh._name, mesh._name_of(rank), mesh._whole.point(mesh._shape.base_rank(rank))

    def refuse(self, error: BaseException) -> None:
        """The call cannot be sent: no rank answers."""
        self._values = [error] * len(self._values)
        self._remaining = 0
        super().refuse(error)
        self._all_accounted()

    def open_ranks(self) -> list[int]:
        """The ranks that have not answered; none once the call was cancelled."""
        if self.cancelled():
            return []
        return [rank for rank, value in enumerate(self._values) if value is _PENDING]

    def _account(self) -> None:
        self._remaining -= 1
        if self._remaining:
            return
        if self._failed is None and not self.done():
            self.set_result(self._wrap(self._values))
        self._all_accounted()

    def _all_accounted(self) -> None:
        """No more answers come."""
        if self._everything is not None and not self._everything.done():
            self._everything.set_result(None)

    def _is_awaited_beside(self) -> bool:
        return self._askers > 0 or super()._is_awaited_beside()

    def _cancel_all(self, msg: Any | None) -> bool:
        cancelled = super()._cancel_all(msg)
        self._all_accounted()
        return cancelled

    def accounted(self) -> asyncio.Future[None]:
        """Done when the last of the ranks that are open now has answered."""
        if self._everything is None:
            self._everything = self.get_loop().create_future()
        return self._everything

    async def outcomes(self) -> ValueMesh[Any]:
        """Values and errors by rank, once every rank is accounted for."""
        if self._remaining:
            everything = self.accounted()
            self._askers += 1
            try:
                await asyncio.shield(everything)
            except asyncio.CancelledError:
                # As of the reply itself, the last that waits and gives up cancels.
                is_last = self._askers == 1 and not super()._is_awaited_beside() and not self._waiting_tasks()
                if is_last and not everything.done():
                    self.cancel()
                raise
            finally:
                self._askers -= 1
        if self.cancelled():
            raise asyncio.CancelledError
        self._log_traceback = False
        result: ValueMesh[Any] = self._wrap(self._values)
        return result

    def __del__(self) -> None:
        if getattr(self, "_failed", None) is None:
            return
        unheard = self._log_traceback
        if unheard:
            self._log_traceback = False
        runtime = process.running()
        if runtime is not None and self._failed is not None:
            runtime.hearing.reply_dropped(self._failed, heard=not unheard)


def _fail(reply: GatheredReply[Any], error: BaseException) -> None:
    """Set the error of a gathered reply unless it was cancelled meanwhile."""
    if not reply.done():
        reply.set_exception(error)


let_tasks_take(GatheredReply)
