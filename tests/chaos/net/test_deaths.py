"""L2, L5, L7, S4–S6, D4. Agents, procs and drivers on different hosts die, stand still, or are replaced by others."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import QUICK, REAL, Hearer, attached, drive, gone, working
from leftovers import eventually

from roost import ActorDied
from roost.errors import HostLostError
from streams import Traffic

PROC_HEARD_S, AGENT_HEARD_S, AGENT_GONE_S, WOKEN_GONE_S = 1.0, 2.0, 2.0, 1.0
PROGRAM = Path(__file__).parent / "driver_over_hosts.py"


def test_l2_a_proc_of_another_host_is_killed(network, rounds, promised):
    network.grow(2)

    async def program():
        seconds = []
        hearer = Hearer()
        for number in range(rounds(2, 20)):
            async with working(network, hearer=hearer) as (_, _, sinks):
                one = sinks.slice(hosts=number % 2, procs=0)
                pid = await one.pid.call_one()
                call = one.sleep.call_one(600)
                await sinks.slice(hosts=1 - number % 2).pid.call()
                begin = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                with pytest.raises(ActorDied) as caught:
                    await call
                seconds.append(time.monotonic() - begin)
                assert caught.value.failure.signal == signal.SIGKILL
        assert [failure.signal for failure in hearer.failures] == [signal.SIGKILL] * len(seconds)
        promised("from kill to the caller's exception", seconds, 100, PROC_HEARD_S)

    drive(program(), QUICK)


def test_s6_an_agent_is_killed(network, rounds, promised):
    network.grow(2)

    async def program():
        heard, left = [], []
        for _ in range(rounds(1, 10)):
            killed = network.hosts[1]
            hearer = Hearer()
            async with working(network, hearer=hearer) as (mesh, _, sinks):
                traffic = Traffic("driver", {0: sinks.slice(hosts=0, procs=0)})
                call = sinks.slice(hosts=1, procs=1).sleep.call_one(600)
                await sinks.pid.call()
                begin = time.monotonic()
                killed.kill()
                with pytest.raises(HostLostError):
                    await call
                heard.append(time.monotonic() - begin)
                assert await gone(killed, 60)
                left.append(time.monotonic() - begin)
                assert [failure.name for failure in hearer.failures] == ["hosts[hosts=1]"]
                assert [state.state for state in await mesh.states()] == ["up", "failed"]
                sent, _ = await traffic.end()
                assert (await sinks.slice(hosts=0, procs=0).told.call_one()) == ({"driver": sent[0]}, [])
            killed.start().listens()
        promised("from kill to the caller's exception", heard, 100, AGENT_HEARD_S)
        promised("from kill to the end of its procs", left, 100, AGENT_GONE_S)

    drive(program(), rounds(QUICK, REAL))


@contextmanager
def another_driver(network, hosts, lease_s, host=None):
    """A program of another job, in the driver's place or on a host, once it is up or has it tried."""
    place = [] if host is None else ["ip", "netns", "exec", host.namespace]
    command = [*place, sys.executable, str(PROGRAM), str(network.key), str(lease_s), *(one.where for one in hosts)]
    program = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield program
    finally:
        program.kill()
        program.wait()
        program.stdin.close()
        program.stdout.close()


def test_s5_a_driver_is_killed(network, rounds, promised):
    """Its job ends on all hosts, which wait for the next."""
    lease_s = rounds(QUICK, REAL).lease_s
    network.grow(2)
    seconds = []
    for _ in range(rounds(1, 3)):
        with another_driver(network, network.hosts, lease_s) as program:
            assert program.stdout.readline() == "up\n"
            assert all(len(host.pids()) >= 2 for host in network.hosts)
            program.kill()
            begin = time.monotonic()
            assert eventually(lambda: not any(host.pids() for host in network.hosts), lease_s + 30)
            seconds.append(time.monotonic() - begin)
    assert max(seconds) < lease_s + 5
    promised("from kill to the end of its procs on other hosts", seconds, 100, lease_s + 5)

    async def program():
        async with working(network) as (_, _, sinks):
            assert len(await sinks.pid.call()) == 4

    drive(program(), QUICK)


def test_l5_an_agent_stands_still(network, rounds, promised):
    """Not for as long as a verdict takes: nothing happens. Longer: it is lost, and ends its procs when it wakes up."""
    limits, short_s = rounds((QUICK, 1.0), (REAL, 5.0))
    network.grow(2)

    async def program():
        hearer = Hearer()
        async with working(network, hearer=hearer) as (_, _, sinks):
            stopped = network.hosts[1]
            traffic = Traffic("driver", {host: sinks.slice(hosts=host, procs=0) for host in (0, 1)})
            stopped.kill(signal.SIGSTOP)
            await asyncio.sleep(short_s)
            stopped.kill(signal.SIGCONT)
            await asyncio.sleep(2 * limits.beat_s)
            sent, _ = await traffic.end()
            for host, (last, wrong) in enumerate(list(await sinks.slice(procs=0).told.call())):
                assert (last, wrong) == ({"driver": sent[host]}, [])
            assert hearer.failures == []
            call = sinks.slice(hosts=1, procs=0).sleep.call_one(600)
            begin = time.monotonic()
            stopped.kill(signal.SIGSTOP)
            with pytest.raises(HostLostError):
                await call
            verdict = time.monotonic() - begin
            assert limits.verdict_s <= verdict
            promised("from SIGSTOP to the verdict", [verdict], 100, limits.verdict_s + 2)
            await asyncio.sleep(limits.verdict_s / 4)
            assert stopped.pids(), "its procs have their lease"
            stopped.kill(signal.SIGCONT)
            begin = time.monotonic()
            assert await gone(stopped, 60)
            promised("from SIGCONT to the end of its procs", [time.monotonic() - begin], 100, WOKEN_GONE_S)
            assert len(hearer.failures) == 1

    drive(program(), limits)


def test_l7_a_wire_is_cut_in_one_direction(network, rounds, promised):
    """Both ends agree in the end: the host is lost, and ends itself. Host 1 hears nothing, host 2 is heard no more."""
    limits = rounds(QUICK, REAL)
    network.grow(3)

    async def program():
        hearer = Hearer()
        async with working(network, per_host=1, hearer=hearer) as (_, _, sinks):
            cut = network.hosts[1:]
            traffic = Traffic("driver", {0: sinks.slice(hosts=0)})
            calls = [sinks.slice(hosts=host).sleep.call_one(600) for host in (1, 2)]
            await sinks.pid.call()
            begin = time.monotonic()
            for host, way in zip(cut, ("in", "out"), strict=True):
                host.cut(way)
            verdicts, ends = [], []
            for call in calls:
                with pytest.raises(HostLostError):
                    await call
                verdicts.append(time.monotonic() - begin)
            promised("from the cut to the verdict", verdicts, 100, limits.verdict_s + 2)
            for host in cut:
                assert await gone(host, limits.lease_s + 30)
                ends.append(time.monotonic() - begin)
            promised("from the cut to its own end", ends, 100, limits.lease_s + 5)
            assert sorted(failure.name for failure in hearer.failures) == ["hosts[hosts=1]", "hosts[hosts=2]"]
            await traffic.end()

    drive(program(), limits)


def test_d4_an_address_is_taken_over_by_another_job(network, rounds):
    """While this driver cannot see it, an agent dies, another takes its address, and another job takes that."""
    limits = rounds(QUICK, REAL)
    network.grow(2)
    hosts = list(network.hosts)
    taken, other = hosts[1], network.add()

    async def program():
        hearer = Hearer()
        async with working(network, hosts=hosts, hearer=hearer) as (_, _, sinks):
            traffic = Traffic("driver", {0: sinks.slice(hosts=0, procs=0)})
            one = sinks.slice(hosts=1, procs=0)
            lost = asyncio.ensure_future(Traffic("driver", {1: one}).end())
            calls = [one.take.call_one("driver", number) for number in range(3, 1000)]
            taken.cut(other=network.driver)
            taken.kill()
            assert await gone(taken, 10)
            taken.start().listens()
            with another_driver(network, [taken], 30.0, other) as program:
                assert await asyncio.to_thread(program.stdout.readline) == "up\n"
                taken.heal()
                for call in [*calls, one.pid.call_one()]:
                    try:
                        await call
                    except HostLostError:
                        continue
                    assert call is not calls[-1]
                await asyncio.gather(lost, return_exceptions=True)
                assert [failure.name for failure in hearer.failures] == ["hosts[hosts=1]"]
                with pytest.raises(Exception, match="serves another job"):
                    async with attached(network, [taken]):
                        pass
                program.stdin.write("\n")
                program.stdin.flush()
                assert await asyncio.to_thread(program.stdout.readline) == "as sent\n"
            sent, _ = await traffic.end()
            assert (await sinks.slice(hosts=0, procs=0).told.call_one())[0] == {"driver": sent[0]}

    drive(program(), limits)
