"""A port of another host, here: connections go through one of Roost's own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from roost.actor import Actor
from roost.endpoint import endpoint
from roost.errors import RoostError
from roost.values import check_integer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from roost.host_mesh import HostMesh

__all__ = ["forwarded"]

_PIECE_BYTES = 1 << 16
_PORT_MAX = 65535


class Far(Actor):
    """Dials a port of its host."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: dict[int, asyncio.StreamWriter] = {}

    @endpoint(concurrent=True)
    async def connect(self, number: int) -> AsyncIterator[bytes]:
        """Open a connection, and give what comes; an empty piece first, once it is open.

        Args:
            number: what it is called.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers[number] = writer
        try:
            yield b""
            while piece := await reader.read(_PIECE_BYTES):
                yield piece
        finally:
            self._writers.pop(number).close()

    @endpoint(concurrent=True)
    async def send(self, number: int, piece: bytes) -> None:
        """Write to a connection; an empty piece ends what is written."""
        writer = self._writers.get(number)
        if writer is None:
            return
        with suppress(ConnectionError):
            if piece:
                writer.write(piece)
                await writer.drain()
            else:
                writer.write_eof()


@asynccontextmanager
async def forwarded(host: HostMesh, port: int, local_port: int = 0) -> AsyncIterator[int]:
    """A local port whose connections are those of another host's 127.0.0.1:port, as long as the block lasts.

    Args:
        host: it alone.
        port: its port.
        local_port: the one here, on 127.0.0.1; 0 lets the system choose.
    """
    for name, value, least in (("port", port, 1), ("local_port", local_port, 0)):
        check_integer("forward", name, value, least=least)
        if value > _PORT_MAX:
            raise ValueError(f"forward {name}={value} is above {_PORT_MAX}")
    async with host.spawn_procs(name="forward") as proc:
        far = await proc.spawn("far", Far, port)
        near = _Near(far)
        server = await asyncio.start_server(near.serve, "127.0.0.1", local_port)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            near.end()
            await server.wait_closed()


class _Near:
    """The connections here."""

    def __init__(self, far: Far) -> None:
        self._far = far
        self._served = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        self._served += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        sending: asyncio.Task[None] | None = None
        incoming = self._far.connect.stream(self._served)
        try:
            async for _, piece in incoming:
                if sending is None:
                    sending = asyncio.create_task(self._send(self._served, reader))
                writer.write(piece)
                await writer.drain()
        except (RoostError, OSError, asyncio.CancelledError):
            # Nobody listens there, or either end is gone: so is the connection.
            pass
        finally:
            self._tasks.discard(task)
            if sending is not None:
                sending.cancel()
            await incoming.aclose()
            writer.close()

    async def _send(self, number: int, reader: asyncio.StreamReader) -> None:
        with suppress(RoostError, OSError):
            while piece := await reader.read(_PIECE_BYTES):
                await self._far.send.call_one(number, piece)
            await self._far.send.call_one(number, b"")

    def end(self) -> None:
        """Close them all."""
        for task in self._tasks:
            task.cancel()
