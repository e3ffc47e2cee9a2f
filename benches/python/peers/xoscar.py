"""xoscar, the actors under Xorbits."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING, Any

import xoscar

from . import Peer as _Peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Worked(xoscar.Actor):
    """The actor that every case works."""

    def __init__(self) -> None:
        super().__init__()
        self.ups = 0

    async def echo(self, value: Any) -> Any:
        return value

    async def pid(self) -> int:
        return os.getpid()

    async def count_up(self) -> None:
        self.ups += 1

    async def counted(self) -> int:
        return self.ups

    async def hang(self) -> None:
        await asyncio.Event().wait()


class Peer(_Peer):
    """xoscar, spelled as a peer."""

    import_line = "import xoscar"

    def __init__(self) -> None:
        self.names = map("worked{}".format, itertools.count())

    async def start_procs(self, count: int) -> tuple[Any, list[str]]:
        pool = await xoscar.create_actor_pool("127.0.0.1", n_process=count)
        config = pool._config  # noqa: SLF001  # its public face does not tell the processes' addresses
        addresses = [config.get_external_address(index) for index in config.get_process_indexes()]
        return pool, addresses[-count:] if count else addresses

    async def stop_procs(self, procs: tuple[Any, list[str]]) -> None:
        await procs[0].stop()

    async def make(self, address: str) -> Any:
        return await xoscar.create_actor(Worked, address=address, uid=next(self.names))

    async def actors(self, procs: tuple[Any, list[str]], count: int) -> list[Any]:
        return await asyncio.gather(*[self.make(procs[1][0]) for _ in range(count)])

    async def actor_here(self) -> Any:
        self.here = await self.start_procs(0)
        return await self.make(self.here[1][0])

    async def mesh(self, procs: tuple[Any, list[str]]) -> list[Any]:
        return await asyncio.gather(*map(self.make, procs[1]))

    async def packed_mesh(self, procs: tuple[Any, list[str]], count: int) -> list[Any]:
        return await self.actors(procs, count)

    def call(self, actor: Any, endpoint: str) -> Callable[..., Awaitable[Any]]:
        return getattr(actor, endpoint)

    def call_all(self, mesh: list[Any], endpoint: str) -> Callable[..., Awaitable[Any]]:
        calls = [self.call(actor, endpoint) for actor in mesh]
        return lambda *value: asyncio.gather(*[call(*value) for call in calls])

    def broadcast(self, actor: Any, endpoint: str) -> Callable[..., Any]:
        return getattr(actor, endpoint).tell
