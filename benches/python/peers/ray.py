"""Ray. Each of its actors is a process of its own."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import ray

from . import NotOffered
from . import Peer as _Peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@ray.remote(num_cpus=0)
class Worked:
    """The actor that every case works."""

    def __init__(self) -> None:
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
    """Ray, spelled as a peer."""

    import_line = "import ray"

    async def open(self) -> None:
        ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)

    async def close(self) -> None:
        ray.shutdown()

    async def start_procs(self, count: int) -> list[Any]:
        return [Worked.remote() for _ in range(count)]

    async def stop_procs(self, procs: list[Any]) -> None:
        for actor in procs:
            ray.kill(actor)

    async def actors(self, procs: list[Any], count: int) -> list[Any]:
        if count > 1:
            raise NotOffered("each actor is a process of its own")
        return procs[:1]

    async def mesh(self, procs: list[Any]) -> list[Any]:
        return procs

    def call(self, actor: Any, endpoint: str) -> Callable[..., Awaitable[Any]]:
        return getattr(actor, endpoint).remote

    def call_all(self, mesh: list[Any], endpoint: str) -> Callable[..., Awaitable[Any]]:
        calls = [self.call(actor, endpoint) for actor in mesh]
        return lambda *value: asyncio.gather(*[call(*value) for call in calls])

    def broadcast(self, actor: Any, endpoint: str) -> Callable[..., Any]:
        send = getattr(actor, endpoint).remote

        def unheard() -> None:
            send()

        return unheard
