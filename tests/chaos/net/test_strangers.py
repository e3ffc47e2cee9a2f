"""H1, H2, H5, H6, H9. Strangers at a host's port: they are refused, cost little, start nothing, and harm no job that runs there."""

import asyncio
import resource
import time
from contextlib import asynccontextmanager

import pytest
from jobs import REAL, Hearer, drive, working
from proxy import Proxy
from strangers import (
    CALLED,
    PREAMBLE,
    certificate_of_another,
    connects_and_leaves,
    dribbles,
    opened,
    says,
    speaks_tls,
    until_closed,
)

import roost
from streams import Sink, Traffic, checked, longest_gap, per_rank

HELD_BYTES = 64 << 10
CROWD = 1000


@pytest.fixture
def many_descriptors():
    """As many as a crowd takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * CROWD)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def unharmed(network, host, sinks, hearer):
    """Traffic to all sinks while strangers are at work: nothing of it suffers, and nothing is started there."""
    before = set(host.pids())
    traffic = Traffic("driver", per_rank(sinks), 0.01)
    yield
    sent, times = await traffic.end()
    await checked(sinks, {"driver": sent})
    assert max(longest_gap(one) for one in times.values()) < 5.0
    assert set(host.pids()) == before
    assert hearer.failures == []


def test_h2_h6_a_crowd_that_says_nothing(network, many_descriptors, figures):
    """Also while it is there the root's connection may be cut: it is made anew."""
    (host,) = network.grow(1)

    async def program():
        hearer = Hearer()
        async with working(network, hearer=hearer) as (_, _, sinks), unharmed(network, host, sinks, hearer):
            before = host.rss()
            sources = [network.another_address() for _ in range(4)]
            crowd = [await opened(host, sources[number % 4]) for number in range(CROWD)]
            grown = host.rss() - before
            figures(f"{CROWD} silent strangers: {grown / CROWD / 1024:.1f} KiB each")
            assert grown / CROWD <= HELD_BYTES
            host.reset(100)
            await asyncio.sleep(1.0)
            host.heal()
            assert len(await sinks.pid.call()) == 2
            begin = time.monotonic()
            await asyncio.gather(*(until_closed(*one) for one in crowd))
            figures(f"the last was let go after {time.monotonic() - begin:.1f} s")

    drive(program(), REAL)


def test_h1_h5_h9_who_has_no_right_is_refused(network, tmp_path, rounds, figures):
    """Noise, other protocols, and what was recorded of the job that runs there, sent again."""
    (host,) = network.hosts or [network.add()]

    async def program():
        hearer = Hearer()
        async with Proxy(network, host) as proxy:
            host.start("--advertise", proxy.where)
            await asyncio.to_thread(host.listens)
            async with roost.attach([proxy.where], key_file=network.key) as mesh:
                procs = mesh.spawn_procs({"procs": 2}, supervise=hearer)
                async with procs:
                    sinks = await procs.spawn("sinks", Sink)
                    await sinks.pid.call()
                    async with unharmed(network, host, sinks, hearer):
                        recorded = [bytes(one) for one in proxy.sent]
                        await strangers(
                            network, host, recorded, certificate_of_another(tmp_path), rounds(1, 5), figures
                        )

    drive(program(), REAL)


async def strangers(network, host, recorded, certificate, times, figures):
    # The agent itself has called its advertised address, and said nothing.
    whole = [one for one in recorded if len(one) > 2 * PREAMBLE]
    join = next(one for one in whole if not any(one[CALLED]))
    lane = next(one for one in whole if any(one[CALLED]))
    source = network.another_address
    otherwise = bytearray(lane[:PREAMBLE])
    otherwise[30] ^= 1
    await asyncio.gather(*(connects_and_leaves(host, source()) for _ in range(20)))
    answers = {}
    for _ in range(times):
        attempts = {
            "http": says(host, source(), b"GET / HTTP/1.1\r\nHost: roost\r\n\r\n" + bytes(100)),
            "noise": says(host, source(), bytes(range(256)) * 4),
            "a byte": says(host, source(), b"R"),
            "dribbled": dribbles(host, source(), join[: PREAMBLE - 1]),
            "another job's name": says(host, source(), bytes(otherwise) + lane[PREAMBLE:]),
            "garbage for a proc": says(host, source(), lane[:PREAMBLE] + bytes(1000)),
            "half a hello for a proc": says(host, source(), lane[: PREAMBLE + 100]),
            "a join, replayed": says(host, source(), join),
            "a lane, replayed": says(host, source(), lane),
            "tls at once": speaks_tls(host, source(), b""),
            "tls for a proc": speaks_tls(host, source(), lane[:PREAMBLE]),
            "another's certificate for a proc": speaks_tls(host, source(), lane[:PREAMBLE], certificate),
            "another's certificate for the host": speaks_tls(host, source(), join[:PREAMBLE], certificate),
        }
        for name, said in zip(attempts, await asyncio.gather(*attempts.values()), strict=True):
            assert b"let me in" not in said, name
            answers[name] = len(said)
    figures("bytes said to " + ", ".join(f"{name}: {count}" for name, count in answers.items()))
