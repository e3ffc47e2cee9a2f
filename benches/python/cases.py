"""The work, written once for every peer. A case yields figures: a name, the samples, their unit.

Every loop is bounded in number and in time, warms up before it measures, and waits for the event that it measures.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .processes import cost_of, descendants, memory_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from .peers import Peer

SECONDS_MAX = 3.0
WARM_UP_CALLS = 300


class Figure(NamedTuple):
    """One measured thing: its samples in `unit`. A rate is better when it is high, all else when it is low."""

    name: str
    samples: list[float]
    unit: str


@asynccontextmanager
async def running(peer: Peer, count: int = 1) -> AsyncIterator[Any]:
    """Processes for the time of a `with` block."""
    procs = await peer.start_procs(count)
    try:
        yield procs
    finally:
        await peer.stop_procs(procs)


@asynccontextmanager
async def one_actor(peer: Peer) -> AsyncIterator[Any]:
    """One actor in one other process, that has answered once."""
    async with running(peer) as procs:
        (actor,) = await peer.actors(procs, 1)
        await peer.call(actor, "echo")(0)
        yield actor


async def time_each(call: Callable[[], Awaitable[Any]], count: int, warm_up: int, scale: float = 1e6) -> list[float]:
    """Calls one after another; gives each call's time."""
    clock = time.perf_counter
    for _ in range(warm_up):
        await call()
    samples, end = [], clock() + SECONDS_MAX
    for _ in range(count):
        start = clock()
        await call()
        done = clock()
        samples.append((done - start) * scale)
        if done > end:
            break
    return samples


async def call(peer: Peer) -> AsyncIterator[Figure]:
    """One call at a time, to another process and to an actor beside the caller."""
    async with one_actor(peer) as actor:
        echo = peer.call(actor, "echo")
        yield Figure("call, other process", await time_each(lambda: echo(1), 4000, WARM_UP_CALLS), "µs")
    here = peer.call(await peer.actor_here(), "echo")
    yield Figure("call, same process", await time_each(lambda: here(1), 4000, WARM_UP_CALLS), "µs")


async def pipelined(peer: Peer) -> AsyncIterator[Figure]:
    """Many calls in flight, gathered a window at a time."""
    async with one_actor(peer) as actor:
        echo = peer.call(actor, "echo")
        for window in (100, 1000):

            async def one_window(window: int = window) -> None:
                await asyncio.gather(*[echo(1) for _ in range(window)])

            seconds = await time_each(one_window, 20_000 // window, 3, scale=1)
            yield Figure(f"pipelined, window {window:,}", [window / each for each in seconds], "calls/s")


async def broadcast(peer: Peer) -> AsyncIterator[Figure]:
    """Messages that nobody answers, until the receiver has counted the last."""
    async with one_actor(peer) as actor:
        count_up, counted = peer.broadcast(actor, "count_up"), peer.call(actor, "counted")
        samples = []
        for _ in range(4):
            before, count = await counted(), 10_000
            start = time.perf_counter()
            for number in range(count):
                sent = count_up()
                if sent is not None:
                    await sent
                if number % 500 == 0:
                    await asyncio.sleep(0)
            while await counted() - before < count:
                if time.perf_counter() - start > 20 * SECONDS_MAX:
                    raise RuntimeError("broadcasts were lost")
            samples.append(count / (time.perf_counter() - start))
        yield Figure("broadcast", samples[1:], "messages/s")


async def fan_out(peer: Peer) -> AsyncIterator[Figure]:
    """One call to all of a mesh: over processes, and over many actors in one."""
    async with running(peer, 16) as procs:
        echo = peer.call_all(await peer.mesh(procs), "echo")
        yield Figure("fan-out, 16 procs", await time_each(lambda: echo(1), 300, 10), "µs")
    async with running(peer) as procs:
        packed = peer.call_all(await peer.packed_mesh(procs, 1024), "echo")
        yield Figure("fan-out, 1,024 actors in one proc", await time_each(lambda: packed(1), 40, 3), "µs")


SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 1 << 26, "256 MiB": 1 << 28}


async def payload(peer: Peer) -> AsyncIterator[Figure]:
    """Echoes of bytes and of arrays; a figure counts both ways."""
    import numpy as np

    async with one_actor(peer) as actor:
        echo = peer.call(actor, "echo")
        for kind, make in (("bytes", bytes), ("numpy", lambda size: np.zeros(size, np.uint8))):
            for label, size in SIZES.items():
                value = make(size)
                few = size > 1 << 22
                assert len(await echo(value)) == size
                seconds = await time_each(lambda value=value: echo(value), 4 if few else 200, 1 if few else 10, scale=1)
                yield Figure(f"{kind} echo, {label}", [2 * size / each / 1e9 for each in seconds], "GB/s")


async def spawn(peer: Peer) -> AsyncIterator[Figure]:
    """From nothing to the first answer of every process; then what an idle one holds."""
    for count in (1, 8, 16):
        start = time.perf_counter()
        async with running(peer, count) as procs:
            pids = list(await peer.call_all(await peer.mesh(procs), "pid")())
            yield Figure(
                f"spawn, {count} procs" if count > 1 else "spawn, 1 proc",
                [(time.perf_counter() - start) * 1e3],
                "ms",
            )
            assert len(set(pids)) == count
            if count == 8:
                await asyncio.sleep(0.5)  # what is still starting is not idle
                yield Figure(
                    "idle proc, memory of its own",
                    [statistics.mean(memory_of(pid).own for pid in pids)],
                    "MiB",
                )


async def actors(peer: Peer) -> AsyncIterator[Figure]:
    """A thousand actors in one process, one by one: time to all first answers, and memory on both sides."""
    async with running(peer) as procs:
        (first,) = await peer.actors(procs, 1)
        pids = [await peer.call(first, "pid")(), os.getpid()]
        before = [memory_of(pid).resident for pid in pids]
        start = time.perf_counter()
        made = await peer.actors(procs, 1000)
        await asyncio.gather(*[peer.call(actor, "echo")(1) for actor in made])
        yield Figure("1,000 actors in one proc", [(time.perf_counter() - start) * 1e3], "ms")
        grown = [memory_of(pid).resident - held for pid, held in zip(pids, before, strict=True)]
        yield Figure("1,000 actors, memory on both sides", [sum(grown)], "MiB")


async def answered(reply: Awaitable[Any]) -> Any:
    """Makes a task of whatever a framework's reply is."""
    return await reply


async def kill(peer: Peer) -> AsyncIterator[Figure]:
    """Kills a process with SIGKILL while a call waits there, until the caller has its exception."""
    samples = []
    for _ in range(8):
        procs = await peer.start_procs(1)
        (actor,) = await peer.actors(procs, 1)
        pid = await peer.call(actor, "pid")()
        waiting = asyncio.create_task(answered(peer.call(actor, "hang")()))
        await asyncio.sleep(random.uniform(0.05, 0.4))  # a peer that polls is met at any phase
        start = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        done, _ = await asyncio.wait([waiting], timeout=30)
        samples.append((time.perf_counter() - start) * 1e3)
        if not done or waiting.exception() is None:
            raise RuntimeError("no exception within 30 s of kill -9")
    yield Figure("kill -9 to the caller's exception", samples, "ms")


async def cost(peer: Peer) -> AsyncIterator[Figure]:
    """What one call takes of the CPUs, over all processes: hardly moved by what else the machine does."""
    async with one_actor(peer) as actor:
        echo = peer.call(actor, "echo")
        for _ in range(WARM_UP_CALLS):
            await echo(1)
        pids = [os.getpid(), *descendants(os.getpid())]
        before, count = cost_of(pids), 2000
        for _ in range(count):
            await echo(1)
        after = cost_of(pids)
        yield Figure("CPU a call, all processes", [(after.cpu_ns - before.cpu_ns) / count / 1e3], "µs")
        yield Figure("context switches a call", [(after.switches - before.switches) / count], "")


async def cold_start(peer: Peer) -> AsyncIterator[Figure]:
    """From the start of the driver's interpreter, which the runner notes, to the first answer of one process."""
    async with running(peer) as procs:
        await peer.call_all(await peer.mesh(procs), "pid")()
        yield Figure("cold start, 1 proc", [(time.monotonic() - float(os.environ["BENCH_STARTED"])) * 1e3], "ms")


async def cold_start_8(peer: Peer) -> AsyncIterator[Figure]:
    """The same with eight processes."""
    async with running(peer, 8) as procs:
        await peer.call_all(await peer.mesh(procs), "pid")()
        yield Figure("cold start, 8 procs", [(time.monotonic() - float(os.environ["BENCH_STARTED"])) * 1e3], "ms")


CASES: dict[str, Any] = {
    case.__name__: case
    for case in (
        call,
        pipelined,
        broadcast,
        fan_out,
        payload,
        spawn,
        actors,
        kill,
        cost,
        cold_start,
        cold_start_8,
    )
}
