"""Ports of pods, here, for a program that does not reach pods by itself: each connection goes through the API server."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from roost.errors import JobError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection

__all__ = ["Tunnels"]

_logger = logging.getLogger("roost.job")

_PIECE_BYTES = 1 << 16
# How many connections may be made at once: to what does not answer each takes its time.
_AT_ONCE = 32


class _Door(NamedTuple):
    """A port here, and the pod that it leads to."""

    pod: str
    port: int
    server: asyncio.Server


class Tunnels:
    """Ports of 127.0.0.1 that lead to ports of pods, on a thread of their own.

    Args:
        connect: gives a socket that is connected with a port of a pod, by the pod's name and that port; and what to call when it was
            closed from there. It may block for a while.
    """

    def __init__(self, connect: Callable[[str, int], tuple[socket.socket, Callable[[], None]]]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        # By what tells a pod's agent from others.
        self._doors: dict[str, _Door] = {}
        # By a pod's name, why it was not reached when that was tried last.
        self._troubles: dict[str, str] = {}
        self._threads = ThreadPoolExecutor(_AT_ONCE, "roost-tunnel")
        self._tasks: set[asyncio.Task[None]] = set()
        # What went wrong, which is said once.
        self._told: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="roost-tunnels", daemon=True)
        self._thread.start()

    def port(self, pod: str, agent: str, port: int) -> int:
        """The port here that leads to a pod's.

        Args:
            pod: its name.
            agent: what tells its agent from others.
            port: its port.
        """
        with self._lock:
            if agent not in self._doors:
                listening = asyncio.run_coroutine_threadsafe(self._listen(pod, port), self._loop)
                self._doors[agent] = listening.result()
            return self._doors[agent].port

    def keep(self, agents: Collection[str]) -> None:
        """Let nobody in any more to agents but these. Who is in stays."""
        with self._lock:
            for agent in [one for one in self._doors if one not in agents]:
                door = self._doors.pop(agent)
                self._troubles.pop(door.pod, None)
                self._loop.call_soon_threadsafe(door.server.close)

    @property
    def troubles(self) -> list[str]:
        """Why pods were not reached, those that were not when that was tried last."""
        return list(dict.fromkeys(self._troubles.values()))

    def close(self) -> None:
        """End them all, and the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _listen(self, pod: str, port: int) -> _Door:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._serve(pod, port, reader, writer)
            except asyncio.CancelledError:
                pass  # it is closed as a whole
            finally:
                self._tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        return _Door(pod, int(server.sockets[0].getsockname()[1]), server)

    async def _serve(self, pod: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far, let_go = await self._loop.run_in_executor(self._threads, self._connect, pod, port)
        except JobError as error:
            # Who has called hears that it is closed, and calls again.
            self._troubles[pod] = str(error)
            if str(error) not in self._told:
                self._told.add(str(error))
                _logger.warning("%s", error)
            return
        self._troubles.pop(pod, None)
        far_reader, far_writer = await asyncio.open_connection(sock=far)
        both = [asyncio.ensure_future(_carry(reader, far_writer)), asyncio.ensure_future(_carry(far_reader, writer))]
        try:
            # Roost closes no connection by halves.
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            far_writer.close()
            if far_reader.at_eof():
                let_go()

    async def _end(self) -> None:
        for door in self._doors.values():
            door.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What was closed is let go of in the next turns.
        await asyncio.sleep(0)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
