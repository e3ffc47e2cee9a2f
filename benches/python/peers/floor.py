"""The floor: uvloop, a Unix socket and pickle by hand, with no framework between them."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Peer as _Peer
from .floor_wire import Connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Proc:
    """The caller's end of one worker process."""

    def __init__(self, arrived: asyncio.Queue[Proc]) -> None:
        self.loop = asyncio.get_running_loop()
        self.connection = Connection(self.receive, self.lost, lambda: arrived.put_nowait(self))
        self.pending: dict[int, asyncio.Future[Any]] = {}
        self.calls = itertools.count(1)
        self.process: subprocess.Popen[bytes] | None = None

    def receive(self, _connection: Connection, message: tuple[Any, ...]) -> None:
        call, value = message
        future = self.pending.pop(call)
        if not future.done():
            future.set_result(value)

    def lost(self) -> None:
        for future in self.pending.values():
            if not future.done():
                future.set_exception(ConnectionError("the process is gone"))
        self.pending.clear()

    def call(self, actor: int, endpoint: str, value: Any) -> asyncio.Future[Any]:
        call = next(self.calls)
        future = self.pending[call] = self.loop.create_future()
        self.connection.send((call, actor, endpoint, value))
        return future


class Here:
    """An actor in the calling process: a queue, and one task that drains it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[tuple[asyncio.Future[Any], Any]] = asyncio.Queue()
        self.task = self.loop.create_task(self.drain())

    async def drain(self) -> None:
        while True:
            future, value = await self.queue.get()
            if not future.done():
                future.set_result(await self.echo(value))

    async def echo(self, value: Any) -> Any:
        return value

    def call(self, _actor: int, _endpoint: str, value: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        self.queue.put_nowait((future, value))
        return future


class Peer(_Peer):
    """The floor, spelled as a peer."""

    import_line = "import asyncio, uvloop"

    async def open(self) -> None:
        self.arrived: asyncio.Queue[Proc] = asyncio.Queue()
        self.actor_numbers = itertools.count()
        self.folder = tempfile.TemporaryDirectory(prefix="floor-")
        self.path = str(Path(self.folder.name) / "socket")
        loop = asyncio.get_running_loop()
        self.server = await loop.create_unix_server(lambda: Proc(self.arrived).connection, self.path)

    async def close(self) -> None:
        self.server.close()
        self.folder.cleanup()

    async def start_procs(self, count: int) -> list[Proc]:
        command = [sys.executable, "-m", "benches.python.peers.floor_wire", self.path]
        started = [subprocess.Popen(command) for _ in range(count)]
        procs = [await self.arrived.get() for _ in started]
        for proc, process in zip(procs, started, strict=True):
            proc.process = process
        return procs

    async def stop_procs(self, procs: list[Proc]) -> None:
        for proc in procs:
            proc.connection.transport.close()
        for proc in procs:
            assert proc.process is not None
            await asyncio.to_thread(proc.process.wait, 10)

    async def actors(self, procs: list[Proc], count: int) -> list[tuple[Proc, int]]:
        return [(procs[0], next(self.actor_numbers)) for _ in range(count)]

    async def actor_here(self) -> tuple[Here, int]:
        return (Here(), 0)

    async def mesh(self, procs: list[Proc]) -> list[tuple[Proc, int]]:
        return [(proc, next(self.actor_numbers)) for proc in procs]

    async def packed_mesh(self, procs: list[Proc], count: int) -> list[tuple[Proc, int]]:
        return await self.actors(procs, count)

    def call(self, actor: tuple[Any, int], endpoint: str) -> Callable[..., Awaitable[Any]]:
        target, number = actor
        call = target.call
        return lambda value=None: call(number, endpoint, value)

    def call_all(self, mesh: list[tuple[Any, int]], endpoint: str) -> Callable[..., Awaitable[Any]]:
        calls = [self.call(actor, endpoint) for actor in mesh]
        return lambda value=None: asyncio.gather(*[call(value) for call in calls])

    def broadcast(self, actor: tuple[Proc, int], endpoint: str) -> Callable[..., Any]:
        target, number = actor
        send = target.connection.send
        return lambda value=None: send((0, number, endpoint, value))
