"""D1, D2. A wire that loses packets, and connections that are reset over and over: messages are late, and nothing else."""

import asyncio
import time

import pytest
from jobs import REAL, Hearer, drive, working

from streams import Source, Traffic, checked, longest_gap, per_rank

PARTS = 200_000


@pytest.mark.parametrize("fault", ["loss", "resets"])
def test_d2_a_bad_wire_loses_nothing(fault, network, rounds, figures):
    network.grow(3)
    drive(over_a_bad_wire(network, fault, rounds(2.0, 30.0), figures), REAL)


async def over_a_bad_wire(network, fault, seconds, figures):
    """Host 1 has the bad wire: it talks with the driver and with the others in both directions."""
    hearer = Hearer()
    async with working(network, per_host=1, hearer=hearer) as (_, procs, sinks):
        own = per_rank(sinks)
        sources = procs.spawn("sources", Source)
        ends = {0: [1], 1: [0, 2], 2: [1]}
        for host, to in ends.items():
            await sources.slice(hosts=host).begin.call_one(f"host{host}", {one: own[one] for one in to})
        traffic = Traffic("driver", own)
        bad = network.hosts[1]
        begin = time.monotonic()
        sizes = 0
        if fault == "resets":
            bad.reset(5)
        while (now := time.monotonic()) < begin + seconds:
            if fault == "loss":
                bad.lose(1 + 4 * (now - begin) / seconds)
            # Large ones on the way, too, whole or not at all.
            assert await own[1].size.call_one(bytes(PARTS)) == PARTS
            sizes += 1
            await asyncio.sleep(0.05)
        resets = bad.resets() if fault == "resets" else 0
        bad.heal()
        sent, times = await traffic.end()
        counts = {"driver": sent}
        for host in ends:
            counts[f"host{host}"], _ = await sources.slice(hosts=host).end.call_one()
        await checked(sinks, counts)
        assert hearer.failures == []
        assert fault != "resets" or resets >= seconds
        total = sum(sum(one.values()) for one in counts.values())
        gap = longest_gap(times[1], begin)
        figures(
            f"{total} messages and {sizes} of {PARTS} bytes in {seconds:g} s, {resets} resets, longest wait {gap:.2f} s"
        )
