"""H1, D2, L2. Somebody sits between the driver and a host: what he may delay or cut is late, and what he changes is refused."""

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from jobs import QUICK, REAL, Hearer, drive, working
from proxy import (
    Proxy,
    cut_at,
    delayed,
    dribbled,
    fair,
    late_lanes,
    lengthened,
    repeated_at,
    rewritten_at,
    swallowed_at,
)
from times import shown

import roost
from roost import Actor, ActorDied, RoostError, endpoint
from roost.errors import HostLostError
from streams import Sink, Source, Traffic, checked, longest_gap, per_rank

REFUSED_S = 8.0
# Behind the preamble and its answer, 64 bytes each, in the head of the first record of TLS: the low byte of a version that every
# reader has to ignore (RFC 8446, 5.1).
IGNORED = 64 + 2


class Mortal(Actor):
    """Its last words."""

    @endpoint(concurrent=True)
    async def hang(self):
        await asyncio.Event().wait()

    @endpoint(concurrent=True)
    async def answer_and_die(self, number):
        """The answer has been written by then."""
        asyncio.get_running_loop().call_later(0.005, os.kill, os.getpid(), signal.SIGKILL)
        return number


@asynccontextmanager
async def in_between(network, hearer, count=1):
    """A host that works, and some of which whoever calls one calls its attacker."""
    fine, *watched = hosts = [network.add() for _ in range(1 + count)]
    fine.start()
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(Proxy(network, host)) for host in watched]
        for host, proxy in zip(watched, proxies, strict=True):
            host.start("--advertise", proxy.where)
        for host in hosts:
            await asyncio.to_thread(host.listens)
        addresses = [fine.where, *(proxy.where for proxy in proxies)]
        async with roost.attach(addresses, key_file=network.key) as mesh:
            procs = mesh.spawn_procs({"procs": 1}, name="procs", supervise=hearer)
            async with procs:
                yield proxies, procs


def test_l2_what_a_killed_proc_had_written_counts_though_news_of_its_death_are_faster(network, rounds, figures):
    """Lanes to its procs are slow, the host's own connection is not."""

    async def program():
        hearer, seconds = Hearer(), []
        async with in_between(network, hearer) as ((proxy,), procs):
            proxy.behave(late_lanes(0.03))
            for number in range(rounds(3, 100)):
                mortal = await procs.spawn("mortal", Mortal)
                call = mortal.slice(hosts=1).hang.call_one()
                begin = time.monotonic()
                assert await mortal.slice(hosts=1).answer_and_die.call_one(number) == number
                seconds.append(time.monotonic() - begin)
                with pytest.raises(ActorDied):
                    await call
                await procs.restart()
        figures(f"answers of the dead after {shown(seconds)}")
        assert [failure.signal for failure in hearer.failures] == [signal.SIGKILL] * len(seconds)

    drive(program(), REAL)


def test_d2_what_somebody_in_between_does_now_and_then_is_only_late(network, rounds, figures):
    """Also where he changes or doubles a byte of connections that go on, over and over: others take their place."""

    async def program():
        hearer = Hearer()
        async with in_between(network, hearer) as ((proxy,), procs):
            sinks = await procs.spawn("sinks", Sink)
            sources = procs.spawn("sources", Source)
            own = per_rank(sinks)
            # From host to host it goes through him as well.
            await sources.slice(hosts=0).begin.call_one("host0", {1: own[1]})
            await sources.slice(hosts=1).begin.call_one("host1", {0: own[0]})
            traffic = Traffic("driver", own)
            begins = {}
            for name in ("delayed", "dribbled", "cut", "rewritten", "repeated"):
                begins[name] = time.monotonic()
                await now_and_then(proxy, name, rounds(1.0, 20.0))
            begins["over"] = time.monotonic()
            sent, times = await traffic.end()
            counts = {"driver": sent}
            for host in (0, 1):
                counts[f"host{host}"], _ = await sources.slice(hosts=host).end.call_one()
            await checked(sinks, counts)
            assert hearer.failures == []
            total = sum(sum(one.values()) for one in counts.values())
            waits = [
                f"{name}: {longest_gap(times[1], begin, end):.2f} s"
                for (name, begin), end in zip(begins.items(), list(begins.values())[1:], strict=False)
            ]
            figures(f"{total} messages over {len(proxy.sent)} connections, longest waits {', '.join(waits)}")

    drive(program(), REAL)


async def now_and_then(proxy, name, seconds):
    """For a while, let all be and then not."""
    begin, number = time.monotonic(), 0
    while time.monotonic() < begin + seconds:
        place = number * 97 % 1000
        manners = {
            "delayed": delayed(0.02), "dribbled": dribbled(1 + number % 7), "cut": cut_at(place),
            "rewritten": rewritten_at(place), "repeated": repeated_at(place),
        }  # fmt: skip
        proxy.behave(manners[name])
        await asyncio.sleep(0.1)
        proxy.behave(fair)
        await asyncio.sleep(0.1)
        number += 1
    # A changed length may have both ends wait for the rest of a record: what comes next finds other connections.
    proxy.behave(cut_at(0))
    await asyncio.sleep(0.1)
    proxy.behave(fair)


def test_d2_what_seems_to_be_a_part_of_something_longer_is_sent_again(network, promised):
    """The connection stands, and both ends wait."""

    async def program():
        hearer = Hearer()
        async with in_between(network, hearer) as ((proxy,), procs):
            sinks = await procs.spawn("sinks", Sink)
            traffic = Traffic("driver", per_rank(sinks))
            await asyncio.sleep(0.2)
            proxy.behave(lengthened)
            await asyncio.sleep(0.2)
            proxy.behave(fair)
            begin = time.monotonic()
            while traffic.answered_at[1][-1] < begin:
                await asyncio.sleep(0.01)
            promised("until it flows again", [time.monotonic() - begin], 100, 7.0)
            sent, _ = await traffic.end()
            await checked(sinks, {"driver": sent})
            assert len(proxy.sent) > 3, "there was a new connection"
            assert hearer.failures == []

    drive(program(), REAL)


def test_h1_what_somebody_in_between_does_for_ever_is_the_loss_of_that_host(network, rounds, promised):
    limits = rounds(QUICK, REAL)
    manners = (rewritten_at, repeated_at, swallowed_at)

    async def program():
        hearer = Hearer()
        async with in_between(network, hearer, len(manners)) as (proxies, procs):
            sinks = await procs.spawn("sinks", Sink)
            traffic = Traffic("driver", {0: sinks.slice(hosts=0)})
            calls = [sinks.slice(hosts=1 + number).sleep.call_one(600) for number in range(len(manners))]
            await sinks.pid.call()
            begin, seconds = time.monotonic(), []
            for proxy, manner in zip(proxies, manners, strict=True):
                proxy.behave(manner(100))
            for call in calls:
                with pytest.raises(HostLostError):
                    await call
                seconds.append(time.monotonic() - begin)
            promised("from the first changed byte to the verdict", seconds, 100, limits.verdict_s + 2)
            sent, times = await traffic.end()
            await checked(sinks.slice(hosts=0), {"driver": sent})
            assert longest_gap(times[0], begin) < limits.verdict_s / 2
            assert sorted(one.name for one in hearer.failures) == [f"hosts[hosts={host}]" for host in (1, 2, 3)]

    drive(program(), limits)


def test_h1_changed_bytes_of_a_handshake_are_refused(network, rounds, figures):
    """At many of its bytes, in each of his manners; nothing is started, and a job on another host hears nothing of it."""
    network.grow(2)
    places = rounds([0, 30, 63, 70, 200, 700], [*range(0, 128, 3), *range(128, 1200, 40)])

    async def attempt(manner, place, *also):
        async with Proxy(network, network.hosts[1], network.another_address()) as proxy:
            proxy.behave(manner(place))
            begin = time.monotonic()
            with pytest.raises((RoostError, *also)) as caught:
                await roost.attach([proxy.where], key_file=network.key, timeout=20).ready()
            assert time.monotonic() - begin < REFUSED_S
            assert "host " in str(caught.value)
            return type(caught.value).__name__

    async def program():
        hearer, kinds = Hearer(), Counter()
        async with working(network, hosts=network.hosts[:1], hearer=hearer) as (_, _, sinks):
            traffic = Traffic("driver", {0: sinks.slice(hosts=0, procs=0)}, 0.01)
            for manner in (cut_at, rewritten_at, repeated_at):
                for place in places:
                    if (manner, place) != (rewritten_at, IGNORED):
                        kinds.update([await attempt(manner, place)])
            # These wait, so they do it together: of two that come as far as the host's name, one hears that it is there already.
            for begin in range(0, len(places), 10):
                some = (attempt(swallowed_at, place, ValueError) for place in places[begin : begin + 10])
                kinds.update(await asyncio.gather(*some))
            sent, _ = await traffic.end()
            await checked(sinks, {"driver": {0: sent[0]}})
            figures(f"{kinds.total()} attempts: {dict(kinds)}")
            assert hearer.failures == []
            assert network.hosts[1].pids() == []

    drive(program(), REAL)
