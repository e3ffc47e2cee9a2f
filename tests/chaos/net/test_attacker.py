"""H1, D2. Somebody sits between the driver and a host: what he may delay or cut is late, and what he changes is refused."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from jobs import QUICK, REAL, Hearer, drive, working
from proxy import Proxy, cut_at, delayed, dribbled, fair, repeated_at, rewritten_at, swallowed_at

import roost
from roost import RoostError
from roost.errors import HostLostError
from streams import Sink, Source, Traffic, checked, longest_gap, per_rank

REFUSED_S = 8.0


@asynccontextmanager
async def in_between(network, hearer):
    """Two hosts that work; whoever calls the second, calls the attacker."""
    fine, watched = network.add(), network.add()
    fine.start().listens()
    async with Proxy(network, watched) as proxy:
        watched.start("--advertise", proxy.where)
        await asyncio.to_thread(watched.listens)
        async with roost.attach([fine.where, proxy.where], key_file=network.key) as mesh:
            procs = mesh.spawn_procs({"procs": 1}, name="procs", supervise=hearer)
            async with procs:
                yield proxy, procs


@pytest.mark.parametrize("manner", ["delayed", "dribbled", "cut", "rewritten", "repeated"])
def test_d2_what_somebody_in_between_does_now_and_then_is_only_late(manner, network, rounds, figures):
    """Also where he changes or doubles a byte of connections that go on, over and over: others take their place."""

    async def program():
        hearer = Hearer()
        async with in_between(network, hearer) as (proxy, procs):
            sinks = await procs.spawn("sinks", Sink)
            sources = procs.spawn("sources", Source)
            own = per_rank(sinks)
            # From host to host it goes through him as well.
            await sources.slice(hosts=0).begin.call_one("host0", {1: own[1]})
            await sources.slice(hosts=1).begin.call_one("host1", {0: own[0]})
            traffic = Traffic("driver", own)
            begin, number = time.monotonic(), 0
            while time.monotonic() < begin + rounds(1.5, 20.0):
                place = number * 97 % 1000
                manners = {
                    "delayed": delayed(0.02), "dribbled": dribbled(1 + number % 7), "cut": cut_at(place),
                    "rewritten": rewritten_at(place), "repeated": repeated_at(place),
                }  # fmt: skip
                proxy.behave(manners[manner])
                await asyncio.sleep(0.1)
                proxy.behave(manners[manner] if manner in ("delayed", "dribbled") else fair)
                await asyncio.sleep(0.2)
                number += 1
            proxy.behave(fair)
            sent, times = await traffic.end()
            counts = {"driver": sent}
            for host in (0, 1):
                counts[f"host{host}"], _ = await sources.slice(hosts=host).end.call_one()
            await checked(sinks, counts)
            assert hearer.failures == []
            total = sum(sum(one.values()) for one in counts.values())
            gaps = ", ".join(f"{longest_gap(times[one], begin):.2f} s" for one in (0, 1))
            figures(f"{total} messages over {len(proxy.sent)} connections, longest waits {gaps}")

    drive(program(), REAL)


@pytest.mark.parametrize("manner", ["rewritten", "repeated", "swallowed"])
def test_h1_what_somebody_in_between_does_for_ever_is_the_loss_of_that_host(manner, network, rounds, promised):
    limits = rounds(QUICK, REAL)
    manners = {"rewritten": rewritten_at, "repeated": repeated_at, "swallowed": swallowed_at}

    async def program():
        hearer = Hearer()
        async with in_between(network, hearer) as (proxy, procs):
            sinks = await procs.spawn("sinks", Sink)
            traffic = Traffic("driver", {0: sinks.slice(hosts=0)})
            call = sinks.slice(hosts=1).sleep.call_one(600)
            begin = time.monotonic()
            proxy.behave(manners[manner](100))
            with pytest.raises(HostLostError):
                await call
            promised(
                "from the first changed byte to the verdict", [time.monotonic() - begin], 100, limits.verdict_s + 2
            )
            sent, times = await traffic.end()
            await checked(sinks.slice(hosts=0), {"driver": sent})
            assert longest_gap(times[0], begin) < limits.verdict_s / 2
            assert [failure.name for failure in hearer.failures] == ["hosts[hosts=1]"]

    drive(program(), limits)


def test_h1_changed_bytes_of_a_handshake_are_refused(network, rounds, figures):
    """At many of its bytes, in each of his manners, all at once; a job that runs on the same host hears nothing of it."""
    network.grow(2)
    places = rounds([0, 5, 30, 55, 63, 70, 90, 200, 700], [*range(0, 128, 3), *range(128, 1200, 40)])

    async def attempt(manner, place):
        async with Proxy(network, network.hosts[1], network.another_address()) as proxy:
            proxy.behave(manner(place))
            begin = time.monotonic()
            with pytest.raises(RoostError) as caught:
                await roost.attach([proxy.where], key_file=network.key, timeout=20).ready()
            assert time.monotonic() - begin < REFUSED_S
            return f"{type(caught.value).__name__}: {caught.value}"

    async def program():
        hearer = Hearer()
        async with working(network, hosts=network.hosts[:1], hearer=hearer) as (_, _, sinks):
            traffic = Traffic("driver", {0: sinks.slice(hosts=0, procs=0)}, 0.01)
            kinds = {}
            for manner in (cut_at, swallowed_at, rewritten_at, repeated_at):
                for place, text in zip(
                    places, await asyncio.gather(*(attempt(manner, place) for place in places)), strict=True
                ):
                    kinds.setdefault(text.split(":")[0], []).append((manner.__name__, place, text))
            sent, _ = await traffic.end()
            await checked(sinks, {"driver": {0: sent[0]}})
            print(kinds)
            figures({kind: len(which) for kind, which in kinds.items()})
            assert hearer.failures == []
            assert network.hosts[1].pids() == []

    drive(program(), REAL)
