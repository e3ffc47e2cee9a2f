"""Roost, as its users write it."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING, Any

from roost import Actor, endpoint, this_host, this_proc

from . import Peer as _Peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Worked(Actor):
    """The actor that every case works."""

    def __init__(self) -> None:
        self.ups = 0

    @endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def count_up(self) -> None:
        self.ups += 1

    @endpoint
    async def counted(self) -> int:
        return self.ups

    @endpoint
    async def hang(self) -> None:
        await asyncio.Event().wait()


class Peer(_Peer):
    """Roost, spelled as a peer."""

    import_line = "import roost"

    def __init__(self) -> None:
        self.names = map("worked{}".format, itertools.count())

    async def start_procs(self, count: int) -> Any:
        return this_host().spawn_procs({"procs": count})

    async def stop_procs(self, procs: Any) -> None:
        await procs.stop()

    async def actors(self, procs: Any, count: int) -> list[Any]:
        first = procs.slice(procs=0)
        return [first.spawn(next(self.names), Worked) for _ in range(count)]

    async def actor_here(self) -> Any:
        return this_proc().spawn(next(self.names), Worked)

    async def mesh(self, procs: Any) -> Any:
        return procs.spawn(next(self.names), Worked)

    async def packed_mesh(self, procs: Any, count: int) -> Any:
        return procs.slice(procs=0).options(per_proc={"actors": count}).spawn(next(self.names), Worked)

    def call(self, actor: Any, endpoint: str) -> Callable[..., Awaitable[Any]]:
        return getattr(actor, endpoint).call_one

    def call_all(self, mesh: Any, endpoint: str) -> Callable[..., Awaitable[Any]]:
        return getattr(mesh, endpoint).call

    def broadcast(self, actor: Any, endpoint: str) -> Callable[..., Any]:
        return getattr(actor, endpoint).broadcast
