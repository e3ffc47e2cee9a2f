"""`StateTransfer`: a newcomer takes the state of a peer by one-sided reads, straight into its own tensors.

The peer copies its state once, in its training thread, into a buffer that it keeps; then it trains on, and readers need nothing
of it. Until all is here and verified the newcomer has no state.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from roost.errors import ActorDied, CallTimeoutError, CollectiveError
from roost.ft.manifest import manifest_of
from roost.ft.reading import Donor, read_staged
from roost.ft.staging import FINAL_ID, Staging, bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roost.ft.companion import Companion
    from roost.ft.ledger import Ledger, News
    from roost.ft.quorum import Member, Quorum
    from roost.ft.staging import Shelf, Staged
    from roost.reply import Reply

__all__ = ["StateTransfer", "staged_there"]

_LOOK_S = 0.05


def staged_there(reply: Reply[Staged], until: float, aborted: Callable[[], str | None]) -> Staged:
    """What a donor has staged, once it has. One that has left the quorum stages nothing for it: who waits is freed with the group.

    Args:
        reply: the donor's.
        until: when it should be there, by the monotonic clock.
        aborted: why the quorum's group was aborted, if it was.

    Raises:
        ActorDied: the donor died.
        CallTimeoutError: it is not there in time.
        CollectiveError: nothing will come of the quorum.
    """
    while True:
        left_s = until - time.monotonic()
        try:
            return reply.result(max(0.01, min(left_s, _LOOK_S)))
        except CallTimeoutError:
            why = aborted()
            if why is not None:
                reply.cancel()
                raise CollectiveError(f"the state of a peer was not taken: {why}") from None
            if left_s < _LOOK_S:
                raise


class StateTransfer:
    """How states travel, and are told apart.

    Args:
        member: whose.
        shelf: where staged states are put.
        companions: where peers' are asked for.
        ledger: what is told of staging.
        news: what this replica tells of its way back.
        heal_within_s: how long taking a state may take.
        aborted: why the group of the quorum was aborted in which states are taken, if it was.
    """

    def __init__(
        self,
        member: Member,
        shelf: Shelf,
        companions: Companion,
        ledger: Ledger,
        news: News,
        heal_within_s: float,
        aborted: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._member = member
        self._companions = companions
        self._ledger = ledger
        self._news = news
        self._heal_within_s = heal_within_s
        self._aborted = aborted
        self._staging = Staging(shelf)

    def stage(self, quorum: Quorum, state: dict[str, Any]) -> None:
        """Copy a state for those that heal from this member in this quorum; they are done, or dead, before its decision."""
        began = time.monotonic()
        nbytes = self._staging.stage(quorum.id, quorum.step, state)
        self._ledger.staged.broadcast(time.monotonic() - began, nbytes)

    def take(self, quorum: Quorum, sources: Sequence[int], own: dict[str, Any]) -> dict[str, Any]:
        """Take the state of other members: into the tensors of `own` where they are alike, else into new ones.

        Args:
            quorum: whose members these are.
            sources: where from, each as much of what they have alike as it gives; the first one's is taken where they differ.
            own: this member's state.

        Raises:
            ActorDied: they all died; BufferGone, VersionError: what they staged is gone.
            CollectiveError: nothing will come of the quorum.
            ValueError: a tensor has another shape there, or what came is not what was staged.
        """
        until = time.monotonic() + self._heal_within_s
        asked = [
            (one, self._companions.slice(replicas=one, procs=self._member.proc).staged.call_one(quorum.id, quorum.step))
            for one in sources
        ]
        donors: list[Donor] = []
        gone: ActorDied | None = None
        for source, reply in asked:
            try:
                donors.append(Donor(source, staged_there(reply, until, self._aborted)))
            except ActorDied as died:
                gone = gone or died
        if not donors and gone is not None:
            raise gone
        state, gave = read_staged(donors, own, until - time.monotonic())
        staged = next(one.staged for one in donors if one.replica == gave[0])
        news = self._news
        news.source, news.donors = gave[0], gave
        news.bytes, news.checksum = staged.manifest.nbytes, staged.checksum
        return state

    def stage_final(self, state: dict[str, Any]) -> None:
        """Copy the state that training has ended with, for those that come back when it is over."""
        self._staging.stage(FINAL_ID, 0, state)

    def take_final(self, sources: Sequence[int], own: dict[str, Any]) -> dict[str, Any] | None:
        """Take the state that training has ended with from the first of these members that is there; None when none is.

        Raises:
            ValueError: as `take`.
        """
        for source in sources:
            companion = self._companions.slice(replicas=source, procs=self._member.proc)
            try:
                staged = companion.final.call_one().result(self._heal_within_s)
                state, _ = read_staged([Donor(source, staged)], own, self._heal_within_s)
            except (ActorDied, CallTimeoutError):
                continue
            else:
                return state
        return None

    def digest(self, state: dict[str, Any]) -> str:
        """What tells states apart.

        Raises:
            TypeError: something in it travels in no way.
        """
        import hashlib

        manifest, tensors = manifest_of(state)
        digest = hashlib.blake2b(manifest.tree, digest_size=16)
        for leaf, tensor in zip(manifest.leaves, tensors, strict=True):
            digest.update(repr(leaf).encode())
            digest.update(bytes_of(tensor.cpu().contiguous()).numpy())
        return digest.hexdigest()
