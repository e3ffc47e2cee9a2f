"""`StateTransfer`: how a newcomer gets the state of a peer."""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any

from roost.errors import Unavailable
from roost.ft import libraries

if TYPE_CHECKING:
    from roost.ft.companion import Companion
    from roost.ft.coordinator import Member
    from roost.ft.ledger import Ledger, News
    from roost.ft.quorum import Quorum
    from roost.ft.seat import Seat

__all__ = ["StateTransfer"]


class StateTransfer:
    """How states travel, and are told apart.

    Args:
        member: whose.
        seat: the proc's.
        companions: where peers are asked.
        ledger: what is told of it.
        news: what this replica tells of its way back.
    """

    def __init__(self, member: Member, seat: Seat, companions: Companion, ledger: Ledger, news: News) -> None:
        self._member = member
        self._seat = seat
        self._companions = companions
        self._ledger = ledger
        self._news = news

    def stage(self, quorum: Quorum, state: dict[str, Any]) -> None:
        """Have a state ready for those that heal from this member."""
        raise Unavailable(f"a state of {len(state)} parts for {quorum.healing} needs roost.rdma, which is not here")

    def take(self, quorum: Quorum, source: int) -> dict[str, Any]:
        """Take the state of another member."""
        raise Unavailable(f"the state of replica {source} in quorum {quorum.id} needs roost.rdma, which is not here")

    def digest(self, state: dict[str, Any]) -> str:
        """What tells states apart."""
        torch = libraries.torch()
        digest = hashlib.blake2b(digest_size=16)

        def add(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                plain = value.detach().cpu().contiguous()
                digest.update(str((tuple(plain.shape), plain.dtype)).encode())
                digest.update(plain.reshape(-1).view(torch.uint8).numpy())
            elif isinstance(value, dict):
                for key, one in value.items():
                    digest.update(repr(key).encode())
                    add(one)
            elif isinstance(value, (list, tuple)):
                for one in value:
                    add(one)
            else:
                digest.update(pickle.dumps(value))

        add(state)
        return digest.hexdigest()
