"""`StateTransport`: torchft's own manager takes states by Roost's one-sided reads, where that runs in actors."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from roost.actor import Actor
from roost.endpoint import endpoint
from roost.ft.reading import Donor, read_staged
from roost.ft.staging import Shelf, Staging
from roost.ft.state import staged_there

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from roost.ft.companion import Companion
    from roost.ft.ledger import Ledger
    from roost.ft.linked import ServiceLink
    from roost.ft.seat import Seat
    from roost.ft.staging import Staged
    from roost.reply import Reply

__all__ = ["SeatTransport", "Shelves", "StateTransport"]

_shelf: Shelf | None = None
NO_QUORUM = 0
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
        return await self._shelf.get(NO_QUORUM, step)


class _Transport:
    """As much of torchft's `CheckpointTransport` as needs no actor of its own."""

    def __init__(
        self,
        shelf: Shelf,
        place: dict[str, int],
        ask: Callable[[dict[str, int], int], Reply[Staged]],
        own: Callable[[], dict[str, Any]] | None,
        aborted: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._aborted = aborted
        self._place = dict(place)
        self._ask = ask
        self._own = own
        self._staging = Staging(shelf)

    def metadata(self) -> str:
        """Where peers find this replica's states."""
        return json.dumps(self._place)

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: dict[str, Any], timeout: timedelta) -> None:  # noqa: ARG002
        """Copy a state for whoever heals at this step; done when it is copied.

        Raises:
            TypeError: something in it travels in no way.
        """
        self._staging.stage(NO_QUORUM, step, state_dict)

    def disallow_checkpoint(self) -> None:
        """Nobody reads the state itself: training may go on."""

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> dict[str, Any]:
        """Take the state of a peer, whole and verified, or raise.

        Raises:
            ActorDied: the other died; BufferGone, VersionError, LookupError: what it staged is gone.
            ValueError: a tensor has another shape there, or what came is not what it staged.
        """
        seconds = timeout.total_seconds()
        staged = self._staged_there(json.loads(metadata), step, seconds)
        state, _ = read_staged([Donor(src_rank, staged)], {} if self._own is None else self._own(), seconds)
        return state

    def shutdown(self, wait: bool = True) -> None:  # noqa: ARG002 - as torchft calls it
        """Let the memory go."""
        self._staging.close()

    def _staged_there(self, place: dict[str, int], step: int, seconds: float) -> Staged:
        return staged_there(self._ask(place, step), time.monotonic() + seconds, self._aborted)


class StateTransport(_Transport):
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
        super().__init__(_shelf, place, lambda there, step: shelves.slice(**there).staged.call_one(step), state_dict)


class SeatTransport(_Transport):
    """The same for a job's own procs, whose companions have the shelves. New tensors are made, whatever is there.

    Args:
        seat: the proc's.
        companions: where peers' states are asked for.
        ledger: what is told of staging.
        link: what is told of coming back.
    """

    def __init__(self, seat: Seat, companions: Companion, ledger: Ledger, link: ServiceLink) -> None:
        place = {"replicas": seat.replica, "procs": seat.proc}
        super().__init__(
            seat.shelf, place, lambda there, step: companions.slice(**there).staged.call_one(NO_QUORUM, step), None,
            seat.aborted,
        )  # fmt: skip
        self._ledger = ledger
        self._link = link

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: dict[str, Any], timeout: timedelta) -> None:  # noqa: ARG002
        """As for any transport; the job is told."""
        began = time.monotonic()
        nbytes = self._staging.stage(NO_QUORUM, step, state_dict)
        self._ledger.staged.broadcast(time.monotonic() - began, nbytes)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> dict[str, Any]:  # noqa: ARG002
        """As for any transport; the job is told."""
        seconds = timeout.total_seconds()
        place = json.loads(metadata)
        staged = self._staged_there(place, step, seconds)
        replica = place["replicas"]
        state, _ = read_staged([Donor(replica, staged)], {}, seconds)
        news = self._link.news
        news.source, news.donors = replica, (replica,)
        news.bytes, news.checksum = staged.manifest.nbytes, staged.checksum
        self._link.reached("state_pulled")
        return state
