"""`python -m benches.python.one_sided`: reads of another process's memory, each way beside its floor, in one run.

The floors are C by way of ctypes and sockets: memcpy out of shared memory, `process_vm_readv`, a Unix socket with one
connection and TCP with four, whose owner sends from another process. They take turns with Roost, round by round.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import mmap
import os
import socket
import statistics
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from roost import Actor, ProcessHosts, endpoint, this_host
from roost.rdma import Batch, Buffer, empty

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

MIB = 1 << 20
SIZES = [4096, 64 << 10, MIB, 16 * MIB, 64 * MIB, 256 * MIB]
TENSORS, TENSOR_BYTES = 1000, 64 << 10
SECONDS_MAX = 0.7
STRIPES = 4


class Source(Actor):
    """Owns what is read."""

    def __init__(self, *, shared: bool) -> None:
        self.memory = np.frombuffer(empty(max(SIZES)), np.uint8) if shared else np.empty(max(SIZES), np.uint8)
        self.memory[:] = 7

    @endpoint
    async def lend(self) -> Buffer:
        """A handle of it."""
        return Buffer(self.memory)


class Sink(Actor):
    """Reads it."""

    def __init__(self) -> None:
        self.memory = np.ones(max(SIZES), np.uint8)

    @endpoint
    async def times(self, buffer: Buffer, size: int, pieces: int) -> list[float]:
        """Seconds of each read of so much, in so many parts of one batch."""
        batch, step = Batch(), size // pieces
        for start in range(0, size, step):
            batch.read(buffer[start : start + step], self.memory[start : start + step])
        return await timed(batch.submit)


async def timed(work: Callable[[], Awaitable[Any]]) -> list[float]:
    """Seconds of each of some calls, after two that warm up."""
    for _ in range(2):
        await work()
    return await _timed(work)


async def _timed(work: Callable[[], Awaitable[Any]]) -> list[float]:
    samples, end = [], time.perf_counter() + SECONDS_MAX
    while len(samples) < 200 and (time.perf_counter() < end or len(samples) < 3):
        start = time.perf_counter()
        await work()
        samples.append(time.perf_counter() - start)
    return samples


class Floor:
    """A process with memory of its own, that sends it over sockets when it is asked to."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.shared = mmap.mmap(-1, max(SIZES))
        self.from_shared = np.frombuffer(self.shared, np.uint8)
        self.from_shared[:] = 7
        self.target = np.ones(max(SIZES), np.uint8)
        own = np.full(max(SIZES), 7, np.uint8)
        self.unix = [socket.socketpair()]
        self.tcp = [self._connected() for _ in range(STRIPES)]
        self.address = own.ctypes.data
        self.pid = os.fork()
        if self.pid == 0:
            own[:: mmap.PAGESIZE] = 7  # pages of its own, not its parent's
            threads = [threading.Thread(target=serve, args=(far, own)) for _, far in (*self.unix, *self.tcp)]
            for thread in threads:
                thread.start()
            for near, _ in (*self.unix, *self.tcp):
                near.close()
            for thread in threads:
                thread.join()
            os._exit(0)
        for _, far in (*self.unix, *self.tcp):
            far.close()

    @staticmethod
    def _connected() -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname())
            return near, listener.accept()[0]

    def close(self) -> None:
        """Ends the process."""
        for near, _ in (*self.unix, *self.tcp):
            near.close()
        os.waitpid(self.pid, 0)

    async def memcpy(self, size: int) -> None:
        """Out of memory that this process maps, too."""
        ctypes.memmove(self.target.ctypes.data, self.from_shared.ctypes.data, size)

    async def vm_readv(self, size: int) -> None:
        """By the kernel, in one thread."""
        done = 0
        while done < size:
            vector = ctypes.c_size_t * 2
            local = vector(self.target.ctypes.data + done, size - done)
            remote = vector(self.address + done, size - done)
            got = self.libc.process_vm_readv(self.pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
            if got <= 0:
                raise OSError(ctypes.get_errno(), "process_vm_readv")
            done += got

    async def over(self, pairs: list[tuple[socket.socket, socket.socket]], size: int) -> None:
        """Over sockets, a thread each."""
        each = size // len(pairs)
        threads = [
            threading.Thread(target=receive, args=(near, self.target[number * each : (number + 1) * each]))
            for number, (near, _) in enumerate(pairs)
        ]
        for thread in threads[1:]:
            thread.start()
        threads[0].run()
        for thread in threads[1:]:
            thread.join()

    async def times(self, way: str, size: int) -> list[float]:
        """Seconds of each read."""
        work: dict[str, Callable[[], Awaitable[None]]] = {
            "shared": lambda: self.memcpy(size), "same_host": lambda: self.vm_readv(size),
            "tcp": lambda: self.over(self.unix, size), "between_hosts": lambda: self.over(self.tcp, size),
        }  # fmt: skip
        return await timed(work[way])


def serve(connection: socket.socket, memory: np.ndarray[Any, Any]) -> None:
    """Sends as many bytes as each question says."""
    view = memoryview(memory)
    while asked := connection.recv(8, socket.MSG_WAITALL):
        connection.sendall(view[: int.from_bytes(asked, "little")])


def receive(connection: socket.socket, into: np.ndarray[Any, Any]) -> None:
    """Asks for bytes, and takes them."""
    connection.sendall(len(into).to_bytes(8, "little"))
    view, done = memoryview(into), 0
    while done < len(view):
        done += connection.recv_into(view[done:])


@asynccontextmanager
async def ends(way: str) -> AsyncIterator[tuple[Buffer, Sink]]:
    """A buffer, and who reads it, in processes of their own."""
    env = {"ROOST_RDMA": "tcp"} if way == "tcp" else {}
    if way == "between_hosts":
        async with ProcessHosts(2) as hosts, hosts.spawn_procs() as procs:
            yield await _spawned(procs, shared=False)
    else:
        async with this_host().spawn_procs({"hosts": 2}, env=env) as procs:
            yield await _spawned(procs, shared=way == "shared")


async def _spawned(procs: Any, *, shared: bool) -> tuple[Buffer, Sink]:
    source = procs.slice(hosts=0).spawn("source", Source, shared=shared)
    return await source.lend.call_one(), await procs.slice(hosts=1).spawn("sink", Sink)


async def measure(ways: list[str], rounds: int) -> list[dict[str, Any]]:
    """The rows of the table."""
    floor = Floor()
    rows: list[dict[str, Any]] = []
    try:
        for way in ways:
            async with ends(way) as (buffer, sink):
                for size, pieces in [(size, 1) for size in SIZES] + [(TENSORS * TENSOR_BYTES, TENSORS)]:
                    ours, floors = [], []
                    for _ in range(rounds):
                        ours.append(statistics.median(await sink.times.call_one(buffer, size, pieces)))
                        if pieces == 1:
                            floors.append(statistics.median(await floor.times(way, size)))
                        else:
                            floors.append(statistics.median(await sink.times.call_one(buffer, size, 1)))
                    ratio = statistics.median(low / own for low, own in zip(floors, ours, strict=True))
                    own, low = statistics.median(ours), statistics.median(floors)
                    rows.append(
                        {
                            "way": way,
                            "bytes": size,
                            "pieces": pieces,
                            "us": own * 1e6,
                            "floor_us": low * 1e6,
                            "ratio": ratio,
                        }
                    )
                    what = "the same bytes in one piece" if pieces > 1 else "floor"
                    print(
                        f"{way:13} {size:>10} bytes in {pieces:4}: {own * 1e6:10.1f} µs {size / own / 1e9:6.2f} GB/s;"
                        f" {what} {low * 1e6:10.1f} µs; ratio {ratio:.2f}",
                        flush=True,
                    )
    finally:
        floor.close()
    return rows


def main() -> None:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="python -m benches.python.one_sided", description=__doc__.splitlines()[0])
    parser.add_argument("--ways", default="shared,same_host,tcp,between_hosts", help="comma-separated: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.ways.split(","), options.rounds))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
