"""`Stores`: where the members of a quorum find each other. In a proc of its own, since a store ends with its process."""

from __future__ import annotations

from typing import Any

from roost.actor import Actor
from roost.collectives.gloo import served_store
from roost.endpoint import endpoint

__all__ = ["Stores"]


class Stores(Actor):
    """One store server for each key, ended when it is of no more use; whoever waits in it then gets an error at once.

    Args:
        address: the numeric address that the servers listen on.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: dict[str, tuple[Any, str]] = {}

    async def __healthy__(self) -> bool:
        return True

    @endpoint(concurrent=True)
    async def open(self, key: str) -> str:
        """The "host:port" of a key's store; it is made when there is none."""
        known = self._open.get(key)
        if known is None:
            known = self._open[key] = served_store(self._address)
        return known[1]

    @endpoint(concurrent=True)
    async def end(self, key: str) -> None:
        """End a key's store, if there is one."""
        self._open.pop(key, None)
