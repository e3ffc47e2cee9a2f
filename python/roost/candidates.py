"""Hosts that may become those of a mesh: where they come from, and how far each has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from roost.addresses import Address

__all__ = ["RETRY_S", "Candidate", "Source"]

# Pauses between two attempts, while hosts are waited for: the first and the longest.
RETRY_S = (0.1, 1.0)


class Candidate:
    """A host that may become one of the mesh's."""

    __slots__ = ("address", "dialled", "host", "is_hopeless", "name", "number", "pause_s", "reached", "why")

    def __init__(self, address: Address, name: str | None = None) -> None:
        self.address = address
        # What it has said that it calls itself, where it has called.
        self.name = name
        # What its name stands for.
        self.dialled: list[str] = []
        # Which of it has answered: "number:port", or "unix:" and the path of a socket; empty before.
        self.reached = ""
        # The attempt that goes on, or that was answered; None between two.
        self.number: int | None = None
        # The id and name, once it has joined.
        self.host: tuple[int, str] | None = None
        # What came of the last attempt.
        self.why = "no answer yet"
        self.pause_s = RETRY_S[0]
        # Whether no other attempt would do better.
        self.is_hopeless = False

    def __str__(self) -> str:
        """As typed and, where that differs, as resolved; who has called by its name, too."""
        shown = ", ".join(one for one in self.dialled if one != self.address.text)
        where = f"{self.address.text} ({shown})" if shown else self.address.text
        return f"{self.name} at {where}" if self.name else where


class Source(NamedTuple):
    """Where the hosts of a mesh come from."""

    addresses: Sequence[Address] = ()
    """Those that are known to begin with."""
    path: str | None = None
    """The file that they were read from, and more may be."""
    listener: socket.socket | None = None
    """Where agents call that are not known."""
    wait_for: int | None = None
    """How many are waited for; none where all must be there at once."""
    names: Sequence[str] = ()
    """Which of those that call are wanted, in their order; all of them when it is empty."""

    @property
    def grows(self) -> bool:
        """Whether there may be more than those that are known."""
        return self.path is not None or self.listener is not None
