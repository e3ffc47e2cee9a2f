"""`StateTransport`: torchft's own manager takes states by Roost's one-sided reads, where that runs in actors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from roost.actor import Actor
from roost.endpoint import endpoint
from roost.ft.staging import Shelf, Staging, read_staged

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from roost.ft.staging import Staged

__all__ = ["Shelves", "StateTransport"]

_shelf: Shelf | None = None
_NO_QUORUM = 0
"""torchft tells its transports of steps alone."""


class Shelves(Actor):
    """One beside each replica, `procs.spawn("shelves", Shelves)`, before its transport: where its peers ask for what is staged."""

    def __init__(self) -> None:
        global _shelf  # noqa: PLW0603 - a proc has one, and its two actors have nothing else in common
        _shelf = Shelf()
        self._shelf = _shelf

    @endpoint(concurrent=True)
    async def staged(self, step: int) -> Staged:
        """What is staged for a step, once it is."""
        return await self._shelf.get(_NO_QUORUM, step)


class StateTransport:
    """A `CheckpointTransport` for `torchft.Manager(checkpoint_transport=…)`, made in an actor on the procs of `shelves`.

    The replica that others heal from copies its state once and trains on; they read it meanwhile, into their own tensors, and
    compare checksums.

    Args:
        shelves: the whole mesh.
        place: of this replica's own shelf in it, such as `context().point` of an actor on the same procs.
        state_dict: gives the newcomer's own state, in the form in which it will come; its tensors are written to. Left out, new ones
            are made.

    Raises:
        RuntimeError: there is no shelf in this process.
    """

    def __init__(
        self, shelves: Shelves, place: dict[str, int], state_dict: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        if _shelf is None:
            raise RuntimeError(
                'StateTransport: spawn its shelves first, on the same procs: procs.spawn("shelves", Shelves)'
            )
        self._shelves = shelves
        self._place = dict(place)
        self._own = state_dict
        self._staging = Staging(_shelf)

    def metadata(self) -> str:
        """Where peers find this replica's states."""
        return json.dumps(self._place)

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: dict[str, Any], timeout: timedelta) -> None:  # noqa: ARG002
        """Copy a state for whoever heals at this step; done when it is copied.

        Raises:
            TypeError: something in it travels in no way.
        """
        self._staging.stage(_NO_QUORUM, step, state_dict)

    def disallow_checkpoint(self) -> None:
        """Nobody reads the state itself: training may go on."""

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> dict[str, Any]:  # noqa: ARG002
        """Take the state of a peer, whole and verified, or raise.

        Raises:
            ActorDied: the other died; BufferGone, VersionError, LookupError: what it staged is gone.
            ValueError: a tensor has another shape there, or what came is not what it staged.
        """
        seconds = timeout.total_seconds()
        staged = self._shelves.slice(**json.loads(metadata)).staged.call_one(step).result(seconds)
        return read_staged(staged, {} if self._own is None else self._own(), metadata, seconds)

    def shutdown(self, wait: bool = True) -> None:  # noqa: ARG002 - as torchft calls it
        """Let the memory go."""
        self._staging.close()
