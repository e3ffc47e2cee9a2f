"""L1. A proc is killed, over and over: its host and its callers hear of it at once."""

import asyncio
import os
import signal
import time

import pytest
from loops import handled, on_a_loop
from mortal import Mortal

from roost import ActorDied, Restart, endpoint, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

HOST_HEARS_S = 0.02
CALLER_HEARS_S = 0.05
POLICY = Restart(limit=1_000_000, within_s=60, backoff_s=(0.001, 0.001))
GIB = 1 << 30


async def killed(one):
    """Kill the process of one rank: seconds until its caller has the exception, and until its host knew."""
    pid = await one.pid.call_one()
    pending = one.sleep.call_one(60)
    await asyncio.sleep(0.005)
    at, begin = time.time(), time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorDied) as caught:
        await pending
    seconds = time.perf_counter() - begin
    failure = caught.value.failure
    assert (failure.kind, failure.signal) == ("signal", signal.SIGKILL)
    return seconds, failure.times["detected_at"] - at


@on_a_loop
async def test_l1_a_kill_is_heard_at_once(rounds, promised):
    callers, hosts = [], []
    async with this_host().spawn_procs({"ranks": 2}, restart=POLICY, supervise=handled) as procs:
        mortals = procs.spawn("mortals", Mortal)
        for number in range(rounds(20, 1000)):
            one = mortals.slice(ranks=number % 2)
            await one.ready()
            caller, host = await killed(one)
            callers.append(caller)
            hosts.append(host)
    promised("from kill to the host's verdict", hosts, 99, HOST_HEARS_S)
    promised("from kill to the caller's exception", callers, 99, CALLER_HEARS_S)


class Large(Mortal):
    """Touches every page of so much memory."""

    def __init__(self, size):
        super().__init__()
        self.block = bytearray(size)
        self.block[::4096] = b"\1" * len(self.block[::4096])

    @endpoint
    async def size(self):
        return len(self.block)


@on_a_loop
async def test_l1_also_of_a_large_one(rounds, promised):
    """The kernel takes seconds to free the memory, and only then says that the process is gone."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = next((size for size in (16 * GIB, 8 * GIB, 2 * GIB) if size < free * 9 // 10), GIB // 4)
    size = rounds(GIB // 4, size)
    seconds = []
    for _ in range(rounds(1, 3)):
        async with this_host().spawn_procs(supervise=handled) as procs:
            large = procs.spawn("large", Large, size)
            assert await large.size.call_one() == size
            caller, _ = await killed(large)
            seconds.append(caller)
    promised(f"from kill to the caller's exception, {size / GIB:g} GiB resident", seconds, 50, CALLER_HEARS_S)
