"""Monitors: anybody is told once of the end of what another owns, and leaves nothing there."""

import asyncio
import gc
import os
import signal

import pytest
from loops import handled, next_of, on_a_loop, until
from mortal import Mortal
from served import Asker, Broken, Store, waiting_at_the_desk

import roost
from roost import MeshError, Restart, ValueMesh, process, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")


async def asked_from(asker, ref):
    """A monitor in another proc, once the owner knows of it."""
    told = asker.monitor.call_one(ref)
    await until(waiting_at_the_desk)
    return told


# Ends --------------------------------------------------------------------------------------------------------------------
@on_a_loop
async def test_a_stop_a_death_and_a_failed_constructor_are_told_with_their_reasons():
    async with this_host().spawn_procs({"gpus": 2}, supervise=handled) as procs:
        asker = this_host().spawn_procs(name="asker").spawn("asker", Asker)
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        told = await asked_from(asker, mortals.slice(gpus=0))
        await mortals.slice(gpus=0).stop("enough of it")
        one = (await told).item()
        assert (one.state, one.reason) == ("stopped", "enough of it")
        broken = procs.options(supervise=handled).spawn("broken", Broken)
        states = await asker.monitor.call_one(broken)
        assert [state.state for state in states] == ["failed", "failed"]
        assert all("the constructor said no" in state.failure.reason for state in states)
        told = await asked_from(asker, procs)
        os.kill(pids[0], signal.SIGKILL)
        await procs.slice(gpus=0).wait()
        assert not told.done()
        await procs.slice(gpus=1).stop("that too")
        states = await told
        assert dict(states.sizes) == {"gpus": 2}
        assert [state.state for state in states] == ["failed", "stopped"]
        assert (states[0].failure.kind, states[0].failure.signal) == ("signal", signal.SIGKILL)
        assert states[0].failure.name == "procs[gpus=0]"


@on_a_loop
async def test_what_has_ended_is_told_at_once():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        asker = procs.slice(gpus=0).spawn("asker", Asker)
        store = procs.slice(gpus=1).spawn("store", Store)
        await store.end.call_one("sold out")
        await store.wait()
        for _ in range(3):
            one = (await asker.monitor.call_one(store)).item()
            assert (one.state, one.reason) == ("stopped", "sold out")
        assert await roost.monitor(store) == await store.wait()


@on_a_loop
async def test_what_an_actor_owns_is_told_to_the_driver():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        owner, other = procs.spawn("owners", Asker)
        stores = await owner.spawn_stores.call_one()
        whole, rank, elsewhere = (
            roost.monitor(stores),
            roost.monitor(stores.slice(stores=1)),
            other.monitor.call_one(stores),
        )
        await stores.slice(stores=1).end.call_one("one less")
        assert (await rank).item().reason == "one less"
        await owner.stop_stores.call_one()
        assert [state.reason for state in await whole] == ["sold", "one less"]
        assert list(await elsewhere) == list(await whole)


@on_a_loop
async def test_the_end_of_its_owner_is_the_end_of_a_mesh():
    async with this_host().spawn_procs({"gpus": 2}, name="owners", supervise=handled) as procs:
        owner, other = procs.spawn("owners", Asker)
        stores = await owner.spawn_stores.call_one()
        await stores.pid.call()
        here, there = roost.monitor(stores), other.monitor.call_one(stores)
        await stores.pid.call()
        os.kill(await owner.pid.call_one(), signal.SIGKILL)
        for states in (await here, await there, await roost.monitor(stores)):
            assert [state.state for state in states] == ["failed", "failed"]
            assert states[0].reason.startswith("its owner has ended: owners[gpus=0] was killed by SIGKILL")
            assert states[0].failure.signal == signal.SIGKILL


@on_a_loop
async def test_an_owner_that_ends_in_order_says_how_what_it_owned_ended(capfd):
    async with this_host().spawn_procs({"gpus": 2}, name="owners") as procs:
        owner, other = procs.spawn("owners", Asker)
        stores = await owner.spawn_stores.call_one()
        itself, its_proc = await owner.myself.call_one()
        told = [roost.monitor(stores), other.monitor.call_one(stores), roost.monitor(its_proc), roost.monitor(itself)]
        await stores.pid.call()
        await procs.slice(gpus=0).stop("closing time")
        for one in told:
            states = await one
            assert {state.state for state in states} == {"stopped"}
            assert all("closing time" in state.reason for state in states)
    assert capfd.readouterr() == ("", "")


@on_a_loop
async def test_a_restart_is_no_end():
    policy = Restart(limit=3, within_s=60, backoff_s=(0.01, 0.02))
    async with this_host().spawn_procs({"gpus": 2}, restart=policy) as procs:
        asker, victim = procs.spawn("askers", Asker)
        told, here = await asked_from(asker, procs.slice(gpus=1)), roost.monitor(procs.slice(gpus=1))
        events = procs.events()
        os.kill(await victim.pid.call_one(), signal.SIGKILL)
        await next_of(events, "recovered")
        assert not told.done()
        assert not here.done()
        await procs.slice(gpus=1).stop("now")
        assert [(await one).item().incarnation for one in (told, here)] == [1, 1]


@on_a_loop
async def test_the_owners_next_life_knows_nothing_of_what_the_last_one_owned():
    policy = Restart(limit=3, within_s=60, backoff_s=(0.01, 0.02))
    async with this_host().spawn_procs(restart=policy) as procs:
        owner = procs.spawn("owner", Asker)
        stores = await owner.spawn_stores.call_one()
        events = procs.events()
        os.kill(await owner.pid.call_one(), signal.SIGKILL)
        await next_of(events, "recovered")
        states = await roost.monitor(stores)
        assert [state.state for state in states] == ["stopped", "stopped"]
        assert "its owner has forgotten it" in states[0].reason


@on_a_loop
async def test_a_proc_that_is_handed_out_is_told_of_by_its_end():
    async with this_host().spawn_procs({"gpus": 2}, supervise=handled) as procs:
        asker, other = procs.spawn("askers", Asker)
        itself, its_proc = await asker.myself.call_one()
        here, there, actor = roost.monitor(its_proc), other.monitor.call_one(its_proc), roost.monitor(itself)
        os.kill(await asker.pid.call_one(), signal.SIGKILL)
        for told in (here, there, actor):
            one = (await told).item()
            assert (one.state, one.failure.signal) == ("failed", signal.SIGKILL)


# It only hears -------------------------------------------------------------------------------------------------------------
@on_a_loop
async def test_to_hear_by_a_monitor_is_not_to_handle():
    with pytest.raises(MeshError) as caught:
        async with this_host().spawn_procs({"gpus": 2}, name="workers") as procs:
            mortals = procs.spawn("mortals", Mortal)
            asker = procs.slice(gpus=0).spawn("asker", Asker)
            stores = await asker.spawn_stores.call_one()
            told = [roost.monitor(procs.slice(gpus=0)), roost.monitor(stores)]
            os.kill(await mortals.slice(gpus=0).pid.call_one(), signal.SIGKILL)
            for one in told:
                assert (await one)[0].state == "failed"
    assert [failure.name for failure in caught.value.failures] == ["workers[gpus=0]"]


# Nothing is left -------------------------------------------------------------------------------------------------------------
@on_a_loop
async def test_cancelled_or_dropped_monitors_leave_nothing_at_the_owner():
    async with this_host().spawn_procs() as procs:
        here = [roost.monitor(procs) for _ in range(10)]
        await until(lambda: len(waiting_at_the_desk().get(process.current().proc, ())) == 10)
        for one in here[:5]:
            one.cancel()
        del here, one
        gc.collect()
        await until(lambda: not waiting_at_the_desk())
        asker = procs.spawn("asker", Asker)
        await asker.keep_monitors.call_one(procs, 10)
        await until(waiting_at_the_desk)
        await asker.drop_monitors.call_one()
        await until(lambda: not waiting_at_the_desk())
        # What waited is gone from the owner's table too.
        again = roost.monitor(procs)
        await until(waiting_at_the_desk)
        assert len(procs._record().waiters) == 1
        again.cancel()
        await until(lambda: not waiting_at_the_desk())


@on_a_loop
async def test_the_death_of_who_monitors_leaves_nothing_at_the_owner():
    async with this_host().spawn_procs({"gpus": 2}, supervise=handled) as procs:
        first, second = procs.spawn("askers", Asker)
        await first.keep_monitors.call_one(procs, 10)
        await second.keep_monitors.call_one(procs.slice(gpus=0), 10)
        await until(lambda: [len(one) for one in waiting_at_the_desk().values()] == [10, 10])
        os.kill(await first.pid.call_one(), signal.SIGKILL)
        states = await second.kept_monitors.call_one()
        assert [one.item().state for one in states] == ["failed"] * 10
        assert waiting_at_the_desk() == {}


@on_a_loop
async def test_many():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        asker = procs.slice(gpus=0).spawn("asker", Asker)
        await asker.keep_monitors.call_one(procs.slice(gpus=1), 2000)
        await procs.slice(gpus=1).stop("all at once")
        states = await asker.kept_monitors.call_one()
        assert [one.item().reason for one in states] == ["all at once"] * 2000
        assert waiting_at_the_desk() == {}


# It is a reply ---------------------------------------------------------------------------------------------------------------
@on_a_loop
async def test_it_is_awaited_as_every_reply_is():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        asker = procs.slice(gpus=0).spawn("asker", Asker)
        ref = procs.slice(gpus=1)
        on_a_thread = asker.monitor_on_a_thread.call_one(ref)
        monitor = roost.monitor(ref)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.shield(monitor)
        assert await asyncio.wait([monitor], timeout=0.01) == (set(), {monitor})
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asked) for asked in (roost.monitor(ref), monitor)]
            # Nobody else holds these monitors, and who waits for them is woken all the same.
            tasks += [group.create_task(_await(ref)) for _ in range(3)]
            await asyncio.sleep(0)
            gc.collect()
            await ref.stop("enough")
        told = await on_a_thread
        assert isinstance(told, ValueMesh)
        assert all(task.result() == told for task in tasks)
        assert told.item().reason == "enough"


async def _await(ref):
    return await roost.monitor(ref)


@on_a_loop
async def test_a_deadline_of_the_caller_is_not_that_of_a_monitor():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        asker = procs.slice(gpus=0).spawn("asker", Asker)
        await procs.ready()
        await asker.ready()
        await asker.keep_monitors.options(timeout=1.0).call_one(procs.slice(gpus=1), 1)
        await asyncio.sleep(1.1)
        await procs.slice(gpus=1).stop("later")
        (told,) = await asker.kept_monitors.call_one()
        assert told.item().reason == "later"


@on_a_loop
@pytest.mark.parametrize("ref", [None, "store", Store, this_host()])
async def test_what_is_no_mesh_is_refused(ref):
    with pytest.raises(TypeError, match="give a mesh, a slice of one"):
        roost.monitor(ref)
