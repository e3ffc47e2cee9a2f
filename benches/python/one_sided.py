"""`python -m benches.python.one_sided`: reads of another process's memory, each way beside its floor, in one run.

Of each size one read at a time; at last 1,000 tensors in one batch beside one read of the same bytes. Floors and Roost take
turns, round by round. By ibverbs, which is for the machine of `make bench-rdma`, as many reads are under way together as make
1 MiB, and so has the ping-pong that they are held against. Between hosts TCP goes as a job has it, `encrypted`, and `plain`, as its
floor does. `--locked`: the owner's interpreter is held meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import secrets
import statistics
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from roost import Actor, HostMesh, ProcessHosts, attach, endpoint, this_host
from roost.rdma import Batch, Buffer, empty

from .one_sided_floors import Floors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, 64 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB]
# An emulated processor moves a hundred megabytes in a second.
SIZES_BY_NICS = [64 * KIB, 256 * KIB, MIB, 4 * MIB]
UNDER_WAY_BY_NICS = MIB
TENSORS, TENSOR_BYTES = 1000, 64 * KIB
SECONDS_MAX = 0.7
LOCKED_S = 3.0


class Source(Actor):
    """Owns what is read."""

    def __init__(self, size: int, *, shared: bool) -> None:
        self.memory = np.frombuffer(empty(size), np.uint8) if shared else np.empty(size, np.uint8)
        self.memory[:] = 7

    @endpoint
    async def lend(self) -> Buffer:
        """A handle of it."""
        return Buffer(self.memory)

    @endpoint
    async def hold(self, seconds: float) -> None:
        """Nothing of this process's Python runs meanwhile."""
        ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))


class Sink(Actor):
    """Reads it."""

    def __init__(self, size: int) -> None:
        self.memory = np.ones(size, np.uint8)

    @endpoint
    async def times(self, buffer: Buffer, size: int, pieces: int) -> list[float]:
        """Seconds of each read of so much, in so many parts of one batch."""
        batch, step = Batch(), size // pieces
        for start in range(0, size, step):
            batch.read(buffer[start : start + step], self.memory[start : start + step])
        for _ in range(2):
            await batch.submit()
        samples: list[float] = []
        end = time.perf_counter() + SECONDS_MAX
        while len(samples) < 200 and (time.perf_counter() < end or len(samples) < 3):
            began = time.perf_counter()
            await batch.submit()
            samples.append(time.perf_counter() - began)
        return samples


@asynccontextmanager
async def ends(way: str, size: int) -> AsyncIterator[tuple[Any, Any]]:
    """Who owns a buffer, and who reads it, in processes of their own."""
    env = {"ROOST_RDMA": way} if way in ("tcp", "ibverbs") else {}
    if way in ("plain", "encrypted"):
        async with plain_hosts() if way == "plain" else ProcessHosts(2) as hosts, hosts.spawn_procs() as procs:
            yield _spawned(procs, size, shared=False)
    elif way == "ibverbs":

        def device(point: dict[str, int], _incarnation: int) -> dict[str, str]:
            return {**env, "ROOST_RDMA_DEVICES": f"rxe{point['hosts']}"}

        async with this_host().spawn_procs({"hosts": 2}, env=device) as procs:
            yield _spawned(procs, size, shared=False)
    else:
        async with this_host().spawn_procs({"hosts": 2}, env=env) as procs:
            yield _spawned(procs, size, shared=way == "shared")


@asynccontextmanager
async def plain_hosts() -> AsyncIterator[HostMesh]:
    """Two agents of this machine that do without TLS."""
    with tempfile.NamedTemporaryFile() as key:
        key.write(secrets.token_hex(32).encode())
        key.flush()
        command = ["-m", "roost", "host", "--key-file", key.name, "--insecure-plaintext", "--one-job", "--quiet"]
        agents = [
            await asyncio.create_subprocess_exec(
                sys.executable, *command, "--name", f"host{number}", stdout=asyncio.subprocess.PIPE
            )
            for number in range(2)
        ]
        addresses = []
        for agent in agents:
            assert agent.stdout is not None
            addresses.append((await agent.stdout.readline()).decode().split()[2])
        async with attach(addresses, key_file=key.name, insecure_plaintext=True) as hosts:
            yield hosts
        for agent in agents:
            await agent.wait()


def _spawned(procs: Any, size: int, *, shared: bool) -> tuple[Any, Any]:
    source = procs.slice(hosts=0).spawn("source", Source, size, shared=shared)
    return source, procs.slice(hosts=1).spawn("sink", Sink, size)


def shapes(way: str, largest: int) -> list[tuple[int, int]]:
    """(bytes in all, parts)."""
    if way == "ibverbs":
        return [(max(size, UNDER_WAY_BY_NICS), max(1, UNDER_WAY_BY_NICS // size)) for size in SIZES_BY_NICS]
    sizes = [(size, 1) for size in SIZES if size <= largest]
    return [*sizes, (TENSORS * TENSOR_BYTES, TENSORS)]


async def measure(ways: list[str], rounds: int, largest: int, *, locked: bool) -> list[dict[str, Any]]:
    """The rows of the table."""
    floors = Floors(largest, SECONDS_MAX)
    rows: list[dict[str, Any]] = []
    try:
        for way in ways:
            async with ends(way, largest) as (source, sink):
                buffer = await source.lend.call_one()
                for size, pieces in shapes(way, largest):
                    ours: list[float] = []
                    least: list[float] = []
                    for _ in range(rounds):
                        holding = source.hold.call_one(LOCKED_S) if locked else None
                        ours.append(statistics.median(await sink.times.call_one(buffer, size, pieces)))
                        if holding is not None:
                            await holding
                        if pieces == TENSORS:
                            least.append(statistics.median(await sink.times.call_one(buffer, size, 1)))
                        else:
                            least.append(statistics.median(floors.times(way, size)))
                    rows.append(row(way, size, pieces, ours, least))
    finally:
        floors.close()
    return rows


def row(way: str, size: int, pieces: int, ours: list[float], least: list[float]) -> dict[str, Any]:
    """A line of the table, which is also printed."""
    ratio = statistics.median(low / own for low, own in zip(least, ours, strict=True))
    own, low = statistics.median(ours), statistics.median(least)
    what = "the same bytes in one part" if pieces == TENSORS else "floor"
    print(
        f"{way:13} {size:>10} bytes in {pieces:4}: {own * 1e6:10.1f} µs {size / own / 1e9:6.2f} GB/s;"
        f" {what} {low * 1e6:10.1f} µs; ratio {ratio:.2f}",
        flush=True,
    )
    return {"way": way, "bytes": size, "pieces": pieces, "us": own * 1e6, "floor_us": low * 1e6, "ratio": ratio}


def main() -> None:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="python -m benches.python.one_sided", description=__doc__.splitlines()[0])
    parser.add_argument("--ways", default="shared,same_host,tcp,plain,encrypted", help="comma-separated: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--largest", type=int, default=256, metavar="MIB", help="of the sizes; 1024 takes 8 GiB (%(default)s)"
    )
    parser.add_argument("--locked", action="store_true", help="the owner's interpreter is held meanwhile")
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    largest = options.largest * MIB
    rows = asyncio.run(measure(options.ways.split(","), options.rounds, largest, locked=options.locked))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
