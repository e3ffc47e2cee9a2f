"""D2, L3, L7, S4. Wires are cut: what heals in time is only late, and what does not is a host that is lost, and ends itself."""

import asyncio
import time

import pytest
from jobs import QUICK, REAL, Hearer, drive, gone, working

from roost import context
from roost.errors import HostLostError, PeerLostError
from streams import Sink, Source, Traffic, checked, flows_after, longest_gap, per_rank

FLOWS_S = 1.0
# How much longer than at a calm time others may wait while one is cut off, on a machine that has other things to do.
HARMLESS_S = 1.0
# Until a connection over which nothing comes is known to be broken, and one attempt more to make it anew.
SEEN_S = 6.0


def test_l3_many_hosts_and_one_is_cut_off_for_a_while(network, rounds, promised, figures):
    count, per_host, cuts = rounds((4, 2, [1.0]), (16, 4, [1.0, 5.0, 9.0]))
    network.grow(count)
    drive(one_is_cut_off(network, per_host, cuts, promised, figures), REAL)


async def one_is_cut_off(network, per_host, cuts, promised, figures):
    begin = time.monotonic()
    hearer = Hearer()
    async with working(network, per_host, hearer=hearer) as (mesh, procs, sinks):
        figures(f"{len(network.hosts)} hosts with {per_host} procs each were up after {time.monotonic() - begin:.1f} s")
        own = per_rank(sinks)
        sources = procs.spawn("sources", Source)
        # From each host's first proc to the second of the next.
        hosts = mesh.sizes["hosts"]
        ends = {host: (host + 1) % hosts * per_host + 1 for host in range(hosts)}
        for host, to in ends.items():
            await sources.slice(hosts=host, procs=0).begin.call_one(f"host{host}", {to: own[to]})
        traffic = Traffic("driver", {host * per_host: own[host * per_host] for host in range(hosts)}, pause_s=0.01)
        healed, spans = [], []
        for cut_s in cuts:
            await asyncio.sleep(0.5)
            cut = time.monotonic()
            network.hosts[1].cut()
            await asyncio.sleep(cut_s)
            network.hosts[1].heal()
            healed.append(time.monotonic())
            spans.append((cut, healed[-1]))
            await asyncio.sleep(2 * FLOWS_S)
        sent, times = await traffic.end()
        counts = {"driver": sent}
        for host in range(hosts):
            counts[f"host{host}"], answered = await sources.slice(hosts=host, procs=0).end.call_one()
            times[f"host{host}"] = answered[ends[host]]
        await checked(sinks, counts)
        concerned = {per_host, "host0", "host1"}
        promised(
            "from healing to the next answer",
            [flows_after(times[one], moment) for one in concerned for moment in healed], 100, FLOWS_S,
        )  # fmt: skip
        others = [longest_gap(times[one], *span) for one in times if one not in concerned for span in spans]
        promised("longest wait of others while it was cut off", others, 100, HARMLESS_S)
        assert max(others) < max(cuts) + FLOWS_S
        figures(f"{sum(sum(one.values()) for one in counts.values())} messages, none lost, doubled or swapped")
        assert hearer.failures == []
        # All of it goes on, and more can be spawned there.
        more = procs.spawn("more", Sink)
        assert len(await more.pid.call()) == len(own)
        await more.stop()


def test_l3_s4_what_is_cut_off_for_good_is_lost_once_and_ends_itself(network, rounds, promised, figures):
    network.grow(3)
    limits = rounds(QUICK, REAL)
    drive(two_are_cut_off_for_good(network, limits, promised), limits)


async def two_are_cut_off_for_good(network, limits, promised):
    """The wire of host 1 is mended after the verdict, that of host 2 when its lease is out."""
    _, mended, ended = network.hosts
    hearer = Hearer()
    async with working(network, hearer=hearer) as (mesh, _, sinks):
        events, told = mesh.events(), []
        listener = asyncio.ensure_future(collected(events, told))
        calls = [sinks.slice(hosts=host, procs=1).sleep.call_one(600) for host in (1, 2)]
        traffic = Traffic("driver", {0: sinks.slice(hosts=0, procs=0)})
        await asyncio.sleep(1.0)
        mended.cut()
        ended.cut()
        cut, died = time.monotonic(), []
        for call in calls:
            with pytest.raises(HostLostError):
                await call
            died.append(time.monotonic() - cut)
        promised("from the cut to the verdict", died, 100, limits.verdict_s + 2.0)
        assert min(died) >= limits.verdict_s
        assert mended.pids(), "its lease is not out"
        mended.heal()
        healed = time.monotonic()
        assert await gone(mended, limits.lease_s)
        promised("from healing to its end", [time.monotonic() - healed], 100, 2.0)
        assert await gone(ended, limits.lease_s + 5.0)
        promised("from the cut to its end by its lease", [time.monotonic() - cut], 100, limits.lease_s + 2.0)
        ended.heal()
        sent, _ = await traffic.end()
        await checked(sinks.slice(hosts=0), {"driver": sent})
        lost = [("failed", "hosts[hosts=1]"), ("failed", "hosts[hosts=2]")]
        assert sorted((event.kind, event.name) for event in told) == lost
        assert sorted((failure.kind, failure.name) for failure in hearer.failures) == [
            ("lost", name) for _, name in lost
        ]
        for failure in hearer.failures:
            followed = [one.name for one in failure.consequences]
            assert len(followed) == len(set(followed)), followed
        # Nothing of it comes back as if alive; the same agents may be attached anew.
        with pytest.raises(HostLostError):
            await sinks.slice(hosts=1, procs=0).pid.call_one()
        async with working(network, hosts=[mended, ended]) as (_, _, again):
            assert len(set(await again.pid.call())) == 4
        listener.cancel()


def test_d3_what_was_sent_to_a_lost_host_comes_back_once(network, rounds, promised):
    """Each call fails, and each broadcast is a dead letter, at once when its host is given up; what was there is unharmed."""
    network.grow(2)
    limits, count = rounds((QUICK, 200), (REAL, 1000))

    async def program():
        hearer, ended = Hearer(), []
        async with working(network, per_host=1, hearer=hearer) as (_, _, sinks):
            there, lost = sinks.slice(hosts=0), sinks.slice(hosts=1)
            await sinks.pid.call()
            network.hosts[1].cut()
            calls = [lost.take.call_one("calls", number) for number in range(1, count + 1)]
            for call in calls:
                call.add_done_callback(lambda _: ended.append(time.monotonic()))
            for number in range(1, count + 1):
                lost.take.broadcast("letters", number)
            with pytest.raises(HostLostError):
                await lost.pid.call_one()
            verdict = time.monotonic()
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(error) for error in errors} == {HostLostError}
            assert len(ended) == count
            promised(
                "from the first that hears of it to the last", [max(*ended, verdict) - min(*ended, verdict)], 100, 1.0
            )
            letters = [one for one in context().job.dead_letters if one.endpoint == "take"]
            assert len(letters) == count
            assert [failure.name for failure in hearer.failures] == ["hosts[hosts=1]"]
            await there.take.call_one("calls", 1)
            assert await there.told.call_one() == ({"calls": 1}, [])

    drive(program(), limits)


async def collected(events, told):
    async for event in events:
        told.append(event)


@pytest.mark.chaos  # half a minute, in any form
def test_l3_two_hosts_that_the_driver_sees_do_not_see_each_other(network, figures):
    """Their calls to each other end, with an error that says so; neither is lost, and once they see each other all is well."""
    one, other = network.grow(2)

    async def program():
        hearer = Hearer()
        async with working(network, per_host=1, hearer=hearer) as (_, procs, sinks):
            sources = procs.spawn("sources", Source)
            source = sources.slice(hosts=0)
            await source.begin.call_one("before", {1: sinks.slice(hosts=1)})
            one.cut(other=other)
            cut = time.monotonic()
            with pytest.raises(PeerLostError) as caught:
                await source.ended.call_one()
            heard_s = time.monotonic() - cut
            figures(f"from the cut to the error of a call: {heard_s:.1f} s")
            # Later than a host that the driver does not reach either, which would be what is to be heard.
            assert REAL.verdict_s + 2.0 <= heard_s
            assert heard_s < REAL.verdict_s + 2.0 + SEEN_S
            for one_said in (f"between {one.name} and {other.name}", f"{other.address}:{other.port}", "firewall"):
                assert one_said in str(caught.value)
            one.heal()
            for name in ("after", "again"):
                await source.begin.call_one(name, {1: sinks.slice(hosts=1)})
                sent, _ = await source.end.call_one()
                last, wrong = await sinks.slice(hosts=1).told.call_one()
                assert (last[name], wrong) == (sent[1], [])
            assert hearer.failures == []

    drive(program(), REAL)
