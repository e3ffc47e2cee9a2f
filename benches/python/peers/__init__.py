"""One module a peer: how it spells the work of `cases`. `load` brings one by name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class NotOffered(Exception):
    """The peer has no such thing; the text says why."""


class Peer:
    """How one framework spells the work.

    Every peer's actor has the endpoints `echo(value)`, `pid()`, `count_up()` (nobody waits for it), `counted()` and
    `hang()`. The functions that `call` and its siblings return give the framework's own awaitables, so that no wrapper
    of ours is timed. What they take and return is opaque to the cases.
    """

    import_line = "pass"
    """What a program that uses the framework imports first."""

    async def open(self) -> None:
        """Brings the framework up in this process."""

    async def close(self) -> None:
        """Takes it down again."""

    async def start_procs(self, count: int) -> Any:
        """Starts processes."""
        raise NotOffered("starts no processes")

    async def stop_procs(self, procs: Any) -> None:
        """Stops them."""

    async def actors(self, procs: Any, count: int) -> list[Any]:
        """Makes actors in the first process, one by one."""
        raise NotOffered("has no actors")

    async def actor_here(self) -> Any:
        """Makes an actor in the calling process."""
        raise NotOffered("has no actor in the calling process")

    async def mesh(self, procs: Any) -> Any:
        """Makes one actor in each process."""
        raise NotOffered("has no meshes")

    async def packed_mesh(self, procs: Any, count: int) -> Any:
        """Makes many actors in the first process, to be called together."""
        raise NotOffered("has no many actors a process")

    def call(self, actor: Any, endpoint: str) -> Callable[..., Awaitable[Any]]:
        """Gives a function that calls one actor."""
        raise NotOffered("has no calls")

    def call_all(self, mesh: Any, endpoint: str) -> Callable[..., Awaitable[Any]]:
        """Gives a function that calls all actors of a mesh and gathers their answers."""
        raise NotOffered("has no meshes")

    def broadcast(self, actor: Any, endpoint: str) -> Callable[..., Any]:
        """Gives a function that sends without waiting for an answer."""
        raise NotOffered("always waits for an answer")


def load(name: str) -> Peer:
    """Imports a peer's module and makes its `Peer`."""
    return importlib.import_module(f"{__name__}.{name}").Peer()
