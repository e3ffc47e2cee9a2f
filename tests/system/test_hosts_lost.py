"""A host is lost: who hears of it, how often, and what goes on elsewhere."""

import asyncio
import os
import time

import far
import pytest
from loops import handled, next_of, on_a_loop, process_state, until

from roost import Failure, MeshError, ProcessHosts, Restart, this_host
from roost.errors import HostLostError

pytestmark = pytest.mark.usefixtures("nothing_left")


def lose(agents, number):
    """Kill the agent of a host."""
    agents.processes[number].kill()


@on_a_loop
async def test_it_is_heard_at_once_by_callers_and_is_one_event():
    agents = ProcessHosts(3)
    async with agents as hosts, hosts.spawn_procs({"gpus": 2}, supervise=handled) as procs:
        residents = await procs.spawn("residents", far.Resident)
        pids = [state.pid for state in await procs.slice(hosts=1).states()]
        events, hung = hosts.events(), residents.slice(hosts=1, gpus=0).hang.call_one()
        elsewhere = residents.slice(hosts=0, gpus=0).call_hung.call_one(residents.slice(hosts=1, gpus=1))
        hosts._record().explain = lambda rank: f"its scheduler has words for {rank}"
        began = time.monotonic()
        lose(agents, 1)
        with pytest.raises(HostLostError) as raised:
            await hung
        assert time.monotonic() - began < 2
        failure = raised.value.failure
        assert failure.reason.startswith("its host host1 is lost: its agent has ended")
        assert failure.reason.endswith("; its scheduler has words for 1")
        assert (failure.kind, failure.origin, failure.name) == ("lost", "host", "procs[hosts=1,gpus=0]")
        assert (failure.host, failure.cause.host, failure.cause.name) == ("host1", "host1", "hosts[hosts=1]")
        assert await elsewhere == ("HostLostError", "lost", "host1")
        event = await next_of(events, "failed")
        assert (event.name, event.failure) == ("hosts[hosts=1]", failure.cause)
        assert [state.state for state in await hosts.states()] == ["up", "failed", "up"]
        assert [state.state for state in await procs.states()] == ["up", "up", "failed", "failed", "up", "up"]
        with pytest.raises(HostLostError):
            await residents.slice(hosts=1, gpus=1).life.call_one()
        assert list(await residents.slice(hosts=slice(0, 3, 2)).parent.call()) != []
        await until(lambda: all(process_state(pid) in "ZX" for pid in pids))


@on_a_loop
async def test_its_owners_hook_hears_once_with_the_procs_as_consequences():
    heard = []

    async def hears(failure):
        heard.append(failure)
        return True

    agents = ProcessHosts(2)
    async with agents as hosts:
        procs = hosts.spawn_procs({"gpus": 2}, supervise=hears)
        more = hosts.spawn_procs(name="more", supervise=hears)
        await procs.spawn("residents", far.Resident)
        await more.ready()
        lose(agents, 0)
        await until(lambda: heard)
        await until(lambda: len(heard[0].consequences) == 3)
        [failure] = heard
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.origin, failure.host, failure.mesh) == ("lost", "host", "host0", "hosts")
        assert {one.name for one in failure.consequences} == {
            "procs[hosts=0,gpus=0]",
            "procs[hosts=0,gpus=1]",
            "more[hosts=0]",
        }
        assert {one.name for one in failure.consequences[0].consequences} <= {
            "residents[hosts=0,gpus=0]",
            "residents[hosts=0,gpus=1]",
        }


@on_a_loop
async def test_what_nobody_handles_is_raised_once_at_the_end():
    agents = ProcessHosts(2)
    with pytest.raises(MeshError) as raised:
        async with agents as hosts:
            procs = await hosts.spawn_procs({"gpus": 2})
            lose(agents, 0)
            await procs.slice(hosts=0).wait()
    [error] = raised.value.exceptions
    assert isinstance(error, HostLostError)
    assert error.failure.host == "host0"
    assert len(error.failure.consequences) == 2


@on_a_loop
async def test_a_caller_that_got_it_has_heard():
    agents = ProcessHosts(2)
    async with agents as hosts:
        residents = await hosts.spawn_procs({"gpus": 2}).spawn("residents", far.Resident)
        hung = residents.slice(hosts=0, gpus=1).hang.call_one()
        lose(agents, 0)
        with pytest.raises(HostLostError):
            await hung


@on_a_loop
async def test_nothing_lost_is_no_failure():
    agents = ProcessHosts(2)
    async with agents as hosts, hosts.slice(hosts=1).spawn_procs() as procs:
        events = hosts.events()
        lose(agents, 0)
        assert (await next_of(events, "failed")).failure.host == "host0"
        assert (await procs.spawn("resident", far.Resident).life.call_one())[0] == 0


@on_a_loop
async def test_each_owner_hears_once():
    agents = ProcessHosts(2)
    async with (
        agents as hosts,
        this_host().spawn_procs({"of": 2}) as near,
        hosts.spawn_procs(supervise=handled) as procs,
    ):
        owner, tenant = near.spawn("keepers", far.Keeper)
        await owner.keep.call_one(hosts, 2)
        await tenant.settle_on.call_one(procs)
        lose(agents, 1)
        while not (of_owner := await owner.what_was_heard.call_one()):
            await asyncio.sleep(0.01)
        while not (of_tenant := await tenant.what_was_heard.call_one()):
            await asyncio.sleep(0.01)
        await procs.slice(hosts=1).wait()
        [failure] = of_owner
        assert (failure.kind, failure.origin, failure.host) == ("lost", "host", "host1")
        assert {one.name for one in failure.consequences} <= {"kept[hosts=1,of=0]", "kept[hosts=1,of=1]"}
        [failure] = of_tenant
        assert (failure.kind, failure.name, failure.cause.name) == ("lost", "tenants[hosts=1]", "procs[hosts=1]")


@on_a_loop
async def test_any_host_may_take_what_was_there():
    agents = ProcessHosts(2)
    async with agents as hosts:
        policy = Restart(backoff_s=(0.01, 0.1), on="any_host", while_down="wait")
        async with hosts.spawn_procs(restart=policy) as procs:
            residents = await procs.spawn("residents", far.Resident)
            first, second = residents
            events = procs.events()
            lose(agents, 1)
            assert (await next_of(events, "failed")).failure.kind == "lost"
            await next_of(events, "recovered")
            assert (await second.life.call_one())[0] == 1
            assert await second.parent.call_one() == await first.parent.call_one()
            os.kill((await procs.states()).item(hosts=1).pid, 9)
            assert (await next_of(events, "failed")).failure.host == "host0"
            await next_of(events, "recovered")
            assert await second.spawn_here.call_one() == [await first.parent.call_one()] * 2


@on_a_loop
async def test_the_same_host_alone_does_not_mend_its_loss():
    agents = ProcessHosts(2)
    async with agents as hosts, hosts.spawn_procs(restart=Restart(), supervise=handled) as procs:
        events = procs.events()
        await procs.ready()
        lose(agents, 1)
        assert (await next_of(events, "failed")).failure.kind == "lost"
        assert (await procs.slice(hosts=1).wait()).item().state == "failed"
        with pytest.raises(HostLostError):
            await hosts.spawn_procs(supervise=handled)
