"""Named services: one winner, told ends, room for a new one; asked from everywhere."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from loops import handled, next_of, on_a_loop, process_state, until, wait_until_gone
from served import Asker, Broken, First, Leaver, OtherStore, Second, Slow, Store, waiting_at_the_desk
from working import Gate, forget_gates, heard, let_go

import roost
from roost import ActorDied, MeshError, Restart, this_host, this_proc
from roost.errors import ServiceExistsError, StoppedError

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "constructed")


def constructed(file):
    return Path(file).read_text().split()


# One winner ------------------------------------------------------------------------------------------------------------
@on_a_loop
async def test_the_first_to_ask_spawns_it_in_a_proc_of_its_own_and_all_get_the_same(file):
    store = await roost.get_or_spawn("store", Store, file, value=5)
    assert await store.pid.call_one() != os.getpid()
    assert await roost.get_or_spawn("store", Store, file, value=6) == store
    assert await roost.lookup("store", Store) == store
    assert await store.add.call_one(1) == 6
    assert constructed(file) == ["5"]


@on_a_loop
async def test_of_many_that_race_from_many_procs_one_wins_and_no_other_constructor_runs(file):
    async with this_host().spawn_procs({"procs": 4}) as procs:
        askers = procs.options(per_proc={"askers": 8}).spawn("askers", Asker)
        await askers
        for turn in range(5):
            name = f"store {turn}"
            asked = askers.add.call(name, file, turn)
            asked_here = [roost.get_or_spawn(name, Store, file, turn) for _ in range(8)]
            values = list(await asked)
            stores = await asyncio.gather(*asked_here)
            assert sorted(values) == [turn + 1 + number for number in range(len(askers))]
            assert len(set(stores)) == 1
        assert constructed(file) == ["0", "1", "2", "3", "4"]


@on_a_loop
async def test_never_two_live_however_many_ask_kill_and_remove_at_once(file):
    async with this_host().spawn_procs({"procs": 3}) as procs:
        askers = procs.options(per_proc={"askers": 4}).spawn("askers", Asker)
        seen = await askers.jostle.call("alone", file, roost.each(range(len(askers))), 10)
        assert set().union(*seen) <= {"ActorDied", "StoppedError", "LookupError"}
        assert waiting_at_the_desk() == {}
        # One that was killed last has nobody else who hears of it.
        with suppress(LookupError):
            await roost.remove("alone")


@on_a_loop
async def test_procs_of_procs_ask_too_and_so_do_threads(file):
    async with this_host().spawn_procs() as procs:
        asker = procs.spawn("asker", Asker)
        inner = await asker.spawn_askers.call_one(2)
        values = list(await inner.add.call("store", file, 0))
        assert sorted(values) == [1, 2]
        assert list(await inner.add_on_a_thread.call("store", 0)) == [2, 2]
        assert await inner.slice(askers=1).look.call_one("store") == await roost.lookup("store", Store)
    # It is the job's, and outlives who asked for it.
    assert await (await roost.lookup("store", Store)).add.call_one(0) == 2


@on_a_loop
async def test_one_asked_for_while_it_starts_is_waited_for():
    forget_gates()
    gate = this_proc().spawn("gate", Gate)
    asked = [roost.get_or_spawn("slow", Slow, gate), roost.lookup("slow", Slow)]
    await heard("slow starts")
    assert not any(one.done() for one in asked)
    let_go("slow")
    first, second = await asyncio.gather(*asked)
    assert first == second


@on_a_loop
async def test_services_may_ask_for_each_other_and_themselves_while_they_start():
    async with asyncio.timeout(20):
        first = await roost.get_or_spawn("first", First)
        second = await roost.get_or_spawn("second", Second)
        assert await first.other_pid.call_one() == await second.pid.call_one()
        assert await second.other_pid.call_one() == await first.pid.call_one()


@on_a_loop
async def test_a_class_that_a_function_in_a_proc_defines():
    async with this_host().spawn_procs() as procs:
        assert await procs.spawn("asker", Asker).local_class.call_one("local") == (True, 1)


# What is there -----------------------------------------------------------------------------------------------------------
@on_a_loop
async def test_lookup_never_makes_one_and_says_what_there_is():
    with pytest.raises(LookupError, match="the job has no service 'store'; there is none"):
        await roost.lookup("store", Store)
    await roost.get_or_spawn("other", Store)
    with pytest.raises(LookupError, match="the job has no service 'store'; there is 'other'; get_or_spawn"):
        await roost.lookup("store", Store)
    with pytest.raises(LookupError, match="the job has no service 'store'; there is 'other'"):
        await roost.remove("store")


@on_a_loop
async def test_another_class_under_its_name_is_an_error_that_says_what_to_do():
    store = await roost.get_or_spawn("store", Store)
    for ask in (roost.get_or_spawn, roost.lookup):
        with pytest.raises(
            ServiceExistsError, match=r"'store' is a served\.Store, not a served\.OtherStore: ask for it by"
        ):
            await ask("store", OtherStore)
    assert await store.add.call_one(1) == 1


@on_a_loop
@pytest.mark.parametrize("name", ["", 3, None, b"store"])
async def test_a_name_is_a_str_that_is_not_empty(name):
    wanted = ValueError if name == "" else TypeError
    for ask in (roost.get_or_spawn, roost.lookup, this_proc().get_or_spawn, this_proc().options().get_or_spawn):
        with pytest.raises(wanted, match="name"):
            ask(name, Store)
    with pytest.raises(wanted, match="name"):
        roost.remove(name)


@on_a_loop
@pytest.mark.parametrize("actor", [int, Store(), "Store", None])
async def test_a_class_is_an_actors(actor):
    for ask in (roost.get_or_spawn, roost.lookup):
        with pytest.raises(TypeError, match=r"store.*derives from roost\.Actor"):
            ask("store", actor)


@on_a_loop
async def test_arguments_are_checked_before_anything_is_asked():
    with pytest.raises(TypeError, match=r"Store.*unexpected keyword argument 'colour'"):
        roost.get_or_spawn("store", Store, colour="red")
    with pytest.raises(LookupError):
        await roost.lookup("store", Store)


# Ends --------------------------------------------------------------------------------------------------------------------
@on_a_loop
async def test_a_killed_one_is_told_with_its_reason_to_who_asks_and_touches_no_other(file):
    async with this_host().spawn_procs() as procs:
        asker = procs.spawn("asker", Asker)
        store, other = await asyncio.gather(
            roost.get_or_spawn("store", Store, file), roost.get_or_spawn("other", Store)
        )
        pending = asyncio.gather(*(store.kill.call_one() for _ in range(2)), return_exceptions=True)
        assert [type(error) for error in await pending] == [ActorDied, ActorDied]
        for ask in (
            lambda: roost.get_or_spawn("store", Store),
            lambda: roost.lookup("store", Store),
            lambda: asker.add.call_one("store", file, 1),
            lambda: asker.look.call_one("store"),
        ):
            with pytest.raises(ActorDied, match="store was killed by SIGKILL") as caught:
                await ask()
            assert (caught.value.failure.kind, caught.value.failure.signal) == ("signal", signal.SIGKILL)
            assert any("roost.remove('store') makes room" in note for note in caught.value.__notes__)
        assert await other.add.call_one(1) == 1
        await asker.remove.call_one("store")
        assert await asker.add.call_one("store", file, 7) == 8
        assert constructed(file) == ["0", "7"]


@on_a_loop
async def test_a_constructor_that_raises_is_told_to_all_who_asked():
    asked = [roost.get_or_spawn("broken", Broken) for _ in range(3)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(result) for result in results] == [ActorDied] * 3
    assert all("the constructor said no" in str(result) for result in results)
    with pytest.raises(ActorDied, match="the constructor said no") as caught:
        await roost.lookup("broken", Broken)
    assert caught.value.failure.kind == "error"
    await roost.remove("broken")
    with pytest.raises(LookupError):
        await roost.lookup("broken", Broken)


@on_a_loop
async def test_one_that_fails_by_a_broadcast_or_ends_by_itself():
    store = await roost.get_or_spawn("store", Store)
    store.fail.broadcast()
    await store.wait()
    with pytest.raises(ActorDied, match="the store burnt"):
        await roost.get_or_spawn("store", Store)
    await roost.remove("store")
    store = await roost.get_or_spawn("store", Store)
    await store.end.call_one("sold out")
    await store.wait()
    with pytest.raises(StoppedError, match="sold out"):
        await roost.get_or_spawn("store", Store)


def test_what_nobody_asked_about_is_raised_at_the_end():
    async def main():
        store = await roost.get_or_spawn("store", Store)
        store.kill.broadcast()
        await store.wait()

    with pytest.raises(MeshError, match="that nobody handled") as caught:
        roost.run(main())
    assert [failure.name for failure in caught.value.failures] == ["store"]


def test_the_last_hook_before_the_root_hears_of_it_too():
    told = []

    async def main():
        store = await roost.get_or_spawn("store", Store)
        store.kill.broadcast()
        await store.wait()

    async def supervise(failure):
        told.append(failure.name)
        return True

    roost.run(main(), supervise=supervise)
    assert told == ["store"]


# Room for a new one ------------------------------------------------------------------------------------------------------
@on_a_loop
async def test_remove_stops_a_live_one_and_leaves_nothing_of_it(file):
    store = await roost.get_or_spawn("store", Store, file, 1)
    pid = await store.pid.call_one()
    await asyncio.gather(roost.remove("store"), roost.remove("store"))
    assert process_state(pid) in "ZX"
    with pytest.raises(StoppedError, match="service store was removed"):
        await store.add.call_one(1)
    with pytest.raises(LookupError):
        await roost.lookup("store", Store)


def test_the_failure_of_one_that_is_removed_has_been_seen_to():
    async def main():
        for known in (False, True):
            store = await roost.get_or_spawn("store", Store)
            pid = await store.pid.call_one()
            removing = None if known else roost.remove("store")
            os.kill(pid, signal.SIGKILL)
            # Without a turn of the loop, in which the driver would hear of it.
            wait_until_gone(pid)
            if removing is None:
                await store.wait()
            await (removing or roost.remove("store"))

    roost.run(main())


@on_a_loop
async def test_who_asks_while_it_is_removed_gets_the_new_one(file):
    await roost.get_or_spawn("store", Store, file, 1)
    removing = roost.remove("store")
    asked = [roost.get_or_spawn("store", OtherStore, file, 2) for _ in range(5)]
    looked = roost.lookup("store", Store)
    with pytest.raises(LookupError):
        await looked
    stores = await asyncio.gather(*asked)
    assert removing.done()
    assert len(set(stores)) == 1
    assert await stores[0].add.call_one(1) == 3
    assert constructed(file) == ["1", "2"]


@on_a_loop
async def test_who_waits_for_one_that_is_removed_before_it_is_up_gets_the_next():
    forget_gates()
    gate = this_proc().spawn("gate", Gate)
    asked, looked = roost.get_or_spawn("slow", Slow, gate), roost.lookup("slow", Slow)
    await heard("slow starts")
    again = roost.get_or_spawn("slow", Slow, gate, "again")
    await roost.remove("slow")
    with pytest.raises(LookupError, match="no service 'slow'"):
        await looked
    let_go("slow", "again")
    assert await asked == await again == await roost.lookup("slow", Slow)


@on_a_loop
async def test_a_service_may_remove_itself(file):
    store = await roost.get_or_spawn("store", Store, file)
    with pytest.raises(StoppedError, match="removed"):
        await store.remove_oneself.call_one("store")
    assert (await roost.get_or_spawn("store", Store, file)) != store


@on_a_loop
async def test_a_remover_that_gives_up_does_not_keep_the_name():
    await roost.get_or_spawn("store", Store)
    removing = roost.remove("store")
    with pytest.raises(LookupError):
        await roost.lookup("store", Store)
    removing.cancel()
    assert await (await roost.get_or_spawn("store", OtherStore)).add.call_one(2) == 2


# Placed ------------------------------------------------------------------------------------------------------------------
@on_a_loop
async def test_placed_on_procs_with_options():
    restart = Restart(limit=3, within_s=60, backoff_s=(0.01, 0.02))
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        asking = procs.options(per_proc={"n": 2}, restart=restart).get_or_spawn("stores", Store)
        stores = await asking
        assert dict(stores.sizes) == {"gpus": 2, "n": 2}
        assert await roost.lookup("stores", Store) == stores
        pids = set(await stores.pid.call())
        assert pids == {state.pid for state in await procs.states()}
        # The policy mends it.
        events = stores.events()
        stores.slice(gpus=0, n=0).fail.broadcast()
        await next_of(events, "recovered")
        assert await roost.lookup("stores", Store) == stores
        with pytest.raises(TypeError, match="Restart"):
            await procs.options(restart=3).get_or_spawn("odd", Store)
        await procs.stop("the procs are over")
        with pytest.raises(StoppedError, match="the procs are over"):
            await roost.lookup("stores", Store)
        await roost.remove("stores")
    await roost.get_or_spawn("stores", Store)


@on_a_loop
async def test_placed_by_an_actor_on_procs_that_it_owns():
    async with this_host().spawn_procs() as procs:
        asker = procs.spawn("asker", Asker)
        stores = await asker.place.call_one("stores")
        assert len(stores) == 2
        assert await roost.lookup("stores", Store) == stores
        assert len(set(await stores.pid.call())) == 2
        await asker.stop_places.call_one()
        await stores.wait()
        with pytest.raises(StoppedError, match="enough"):
            await roost.lookup("stores", Store)


# Ends of those who ask ---------------------------------------------------------------------------------------------------
@on_a_loop
async def test_who_dies_while_it_asks_leaves_nothing_at_the_desk():
    forget_gates()
    gate = this_proc().spawn("gate", Gate)
    async with this_host().spawn_procs({"procs": 2}, supervise=handled) as procs:
        askers = procs.spawn("askers", Asker)
        pids = await askers.pid.call()
        asked = [one.find.call_one("slow", Slow, gate) for one in askers]
        await heard("slow starts")
        await until(lambda: len(waiting_at_the_desk()) == 2)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(ActorDied):
            await asked[0]
        assert len(waiting_at_the_desk()) == 1
        let_go("slow")
        slow = await asked[1]
        assert await slow.pid.call_one() in {one.pid for one in await slow.states()}
        assert waiting_at_the_desk() == {}


@on_a_loop
async def test_who_gives_up_leaves_nothing_at_the_desk_and_the_service_goes_on():
    forget_gates()
    gate = this_proc().spawn("gate", Gate)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await roost.get_or_spawn("slow", Slow, gate)
    await until(lambda: not waiting_at_the_desk())
    let_go("slow")
    assert await (await roost.lookup("slow", Slow)).pid.call_one()


def test_a_driver_that_ends_hangs_for_nobody(file):
    async def main():
        forget_gates()
        gate = this_proc().spawn("gate", Gate)
        procs = this_host().spawn_procs({"procs": 2})
        askers = procs.spawn("askers", Asker)
        askers.find.call("slow", Slow, gate)
        await heard("slow starts")
        await procs.spawn("leaver", Leaver, file)

    roost.run(main())
    assert Path(file).read_text().startswith("StoppedError: service late stopped: the job ends")


@on_a_loop
async def test_services_that_come_and_go_leave_nothing(file):
    for turn in range(20):
        store = await roost.get_or_spawn("store", Store, file, turn)
        assert await store.add.call_one(0) == turn
        await roost.remove("store")
    assert waiting_at_the_desk() == {}


# Plain scripts -----------------------------------------------------------------------------------------------------------
SCRIPT = """
import roost
from roost import Actor, endpoint

class Store(Actor):
    def __init__(self, value: int) -> None:
        self.value = value

    @endpoint
    async def add(self, value: int) -> int:
        self.value += value
        return self.value

store = roost.get_or_spawn("store", Store, 1).result(20)
assert store.add.call_one(1).result(20) == 2
assert roost.lookup("store", Store).result(20) == store
monitor = roost.monitor(store)
roost.remove("store").result(20)
assert monitor.result(20).item().state == "stopped"
try:
    roost.lookup("store", Store).result(20)
except LookupError:
    print("done")
"""


def test_a_plain_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")
