"""Connections between hosts that nobody uses: closed, and made anew by whoever has something to say."""

import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest
from loops import until

from roost import Actor, Channel, Config, ProcessHosts, endpoint, run

pytestmark = pytest.mark.usefixtures("nothing_left")

IDLE = Config(idle_s=0.2)


def connections():
    """How many TCP connections this process has to others' procs: those of its control thread are not in this table."""
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    established = {fields[9] for fields in map(str.split, lines) if fields[3] == "01"}
    own = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder's own
            own.add(os.readlink(f"/proc/self/fd/{name}"))
    return sum(f"socket:[{inode}]" in own for inode in established)


class Peer(Actor):
    """Keeps what it was told, and tells others."""

    def __init__(self):
        self.seen = []

    @endpoint
    async def rest(self):
        """Wait until this process has no connection to any other host."""
        await until(lambda: connections() == 0)

    @endpoint
    async def add(self, sender, number):
        self.seen.append((sender, number))

    @endpoint
    async def take(self):
        return self.seen

    @endpoint
    async def tell(self, other, number):
        await other.add.call_one("peer", number)

    @endpoint
    async def pass_on(self, port, number):
        """To the driver, which nobody can dial, once there is no connection to it."""
        await until(lambda: connections() == 0)
        port.send(number)

    @endpoint(concurrent=True)
    async def flood(self, sender, others, port, seed):
        """Numbers to all of them and to the port, with pauses; after how many one of its two connections was closed."""
        dice, closed = random.Random(seed), 0
        for number in range(60):
            for other in others:
                other.add.broadcast(sender, number)
            port.send((sender, number))
            await asyncio.sleep(dice.choice((0.0, 0.001, dice.uniform(0.0, 0.06))))
            closed += connections() < 2
        return closed


def test_what_is_idle_is_closed_and_made_anew_by_either_end():
    async def main():
        async with ProcessHosts(2) as hosts, hosts.spawn_procs() as procs:
            peers = procs.spawn("peers", Peer)
            first, second = peers.slice(hosts=0), peers.slice(hosts=1)
            await first.tell.call_one(second, 0)
            # One to each proc; on a slow machine the first may be idle before the other is looked for.
            while connections() != 2:
                await peers.take.call()
            port, receiver = Channel.open()
            # The answer to this call waits until its own connection is closed.
            resting = first.rest.call_one(), second.rest.call_one()
            await until(lambda: connections() == 0)
            await asyncio.gather(*resting)
            first.pass_on.broadcast(port, 7)
            assert await receiver.recv() == 7
            await first.tell.call_one(second, 1)
            await first.rest.call_one()
            await second.tell.call_one(first, 2)
            assert await second.take.call_one() == [("peer", 0), ("peer", 1)]
            assert await first.take.call_one() == [("peer", 2)]

    run(main(), config=IDLE)


def test_nothing_is_lost_doubled_or_swapped_where_connections_close_all_the_time():
    async def main():
        async with ProcessHosts(2) as hosts, hosts.spawn_procs() as procs:
            peers = procs.spawn("peers", Peer)
            first, second = peers.slice(hosts=0), peers.slice(hosts=1)
            port, receiver = Channel.open(limit=1000)
            async with asyncio.timeout(60):
                closed = await asyncio.gather(
                    first.flood.call_one("first", [second], port, 1),
                    second.flood.call_one("second", [first], port, 2),
                )
                assert all(closed)
                told = [await receiver.recv() for _ in range(120)]
            for sender, other in (("first", second), ("second", first)):
                expected = [(sender, number) for number in range(60)]
                assert await other.take.call_one() == expected
                assert [one for one in told if one[0] == sender] == expected

    run(main(), config=Config(idle_s=0.02))
