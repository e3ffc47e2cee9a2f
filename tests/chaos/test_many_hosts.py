"""B4. Many hosts with many procs: one call and one cast reach all of them, and who is idle costs no connection."""

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from loops import until

from roost import Actor, Config, ProcessHosts, endpoint, run

pytestmark = pytest.mark.usefixtures("nothing_left")

PEER_BYTES_MAX = 64 << 10


class Counter(Actor):
    """What it was sent, added up."""

    def __init__(self):
        self.total = 0

    @endpoint
    async def add(self, amount):
        self.total += amount

    @endpoint
    async def get(self):
        return self.total


def sockets():
    """How many sockets the event loop's side of this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder's own
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_b4_one_cast_reaches_all_and_who_is_idle_costs_no_connection(rounds, promised, figures):
    hosts_count, per_host = rounds(short=(3, 2), long=(32, 8))

    async def main():
        async with ProcessHosts(hosts_count, timeout=120) as hosts:
            before, held = sockets(), resident_bytes()
            async with hosts.spawn_procs({"procs": per_host}) as procs:
                counters = await procs.spawn("counters", Counter)
                count = len(counters)
                began = time.process_time()
                for _ in range(10):
                    counters.add.broadcast(1)
                casting = (time.process_time() - began) / 10
                begun = time.monotonic()
                assert list(await counters.get.call()) == [10] * count
                calling = time.monotonic() - begun
                connected = sockets() - before
                assert connected > 0
                await until(lambda: sockets() <= before, 60)
                each = (resident_bytes() - held) // count
                figures(
                    f"{hosts_count} hosts, {count} procs: {connected} connections, idle none; {each / 1024:.0f} KiB held for each; "
                    f"a cast {casting * 1e6 / count:.1f} us of processor for each"
                )
                promised("a call to all", [calling], 100, 2.0)
                assert rounds(short=True, long=each <= PEER_BYTES_MAX)
                assert list(await counters.get.call()) == [10] * count

    run(main(), config=Config(idle_s=2.0, start_timeout_s=300))
