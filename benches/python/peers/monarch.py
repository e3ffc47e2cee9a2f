"""torchmonarch."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING, Any

import monarch.actor
from monarch.actor import Actor, endpoint, this_host, this_proc

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


async def values(reply: Any) -> list[Any]:
    """Monarch answers with (point, value) pairs."""
    return [value for _, value in (await reply).items()]


class Peer(_Peer):
    """Monarch, spelled as a peer."""

    import_line = "from monarch.actor import Actor, endpoint, this_host, this_proc"

    def __init__(self) -> None:
        self.names = map("worked{}".format, itertools.count())

    async def open(self) -> None:
        # Its default for a failure that nobody handles is to interrupt the whole driver.
        monarch.actor.unhandled_fault_hook = lambda _failure: None

    async def start_procs(self, count: int) -> Any:
        return this_host().spawn_procs(per_host={"procs": count})

    async def stop_procs(self, procs: Any) -> None:
        await procs.stop()

    async def actors(self, procs: Any, count: int) -> list[Any]:
        first = procs.slice(procs=0)
        return [first.spawn(next(self.names), Worked) for _ in range(count)]

    async def actor_here(self) -> Any:
        return this_proc().spawn(next(self.names), Worked)

    async def mesh(self, procs: Any) -> Any:
        return procs.spawn(next(self.names), Worked)

    async def packed_mesh(self, procs: Any, count: int) -> list[Any]:
        return await self.actors(procs, count)

    def call(self, actor: Any, endpoint: str) -> Callable[..., Awaitable[Any]]:
        return getattr(actor, endpoint).call_one

    def call_all(self, mesh: Any, endpoint: str) -> Callable[..., Awaitable[Any]]:
        if isinstance(mesh, list):
            calls = [self.call(actor, endpoint) for actor in mesh]
            return lambda *value: asyncio.gather(*[call(*value) for call in calls])
        call = getattr(mesh, endpoint).call
        return lambda *value: values(call(*value))

    def broadcast(self, actor: Any, endpoint: str) -> Callable[..., Any]:
        return getattr(actor, endpoint).broadcast
