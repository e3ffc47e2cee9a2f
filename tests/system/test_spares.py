"""Spares: a warm process takes the place of a rank that died, and nobody sees a difference but in the time."""

import os
import signal
import sys
import time

import pytest
from loops import handled, on_a_loop, process_state, until, wait_until_gone
from mortal import Mortal
from slow_import import Slow
from warm import Owner, SetUp, Warm, ran

from roost import ActorDied, Bind, Restart, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

# A pause far longer than any test: who is back before it was not started, but took a place.
SLOW = Restart(limit=20, within_s=60, backoff_s=(60, 60))


async def killed(mesh, number=signal.SIGKILL):
    """Kill a rank's process; done when it is known. Gives the process."""
    pid = await mesh.pid.call_one()
    pending = mesh.sleep.call_one(60)
    os.kill(pid, number)
    with pytest.raises(ActorDied):
        await pending
    return pid


@on_a_loop
async def test_a_spare_takes_the_place_with_name_point_and_next_incarnation(tmp_path):
    host = this_host()
    async with host.spawn_procs(
        {"gpus": 2}, name="workers", restart=SLOW, spares=1, setup=SetUp(tmp_path / "ran")
    ) as procs:
        warm = procs.spawn("warm", Warm)
        other = await warm.slice(gpus=0).pid.call_one()
        one = warm.slice(gpus=1)
        events = procs.events()
        for life in (1, 2, 3):
            await until(lambda life=life: len(ran(tmp_path / "ran")) == 2 + life)
            before = ran(tmp_path / "ran")
            dead = await killed(one)
            await warm.ready()
            pid = await one.pid.call_one()
            assert pid in before, "it was there before, and had run setup"
            assert pid not in (dead, other)
            assert await one.incarnation.call_one() == life
            assert await one.count.call_one() == 0, "the constructor ran"
            point, actor_name, *_, argv = await one.place.call_one()
            assert (point, actor_name, argv) == ({"gpus": 1}, "warm", sys.argv)
            assert (await procs.states())[1].pid == pid
        assert list(await warm.echo.call("x")) == ["x", "x"]
        assert await warm.slice(gpus=0).relay.call_one(one, "echo", 5) == 5
        await procs.stop()
        kinds = [event.kind for event in [event async for event in events] if event.name == "workers[gpus=1]"]
        assert kinds == ["failed", "restarting", "recovered"] * 3 + ["stopped"]
        assert len(set(ran(tmp_path / "ran"))) == len(ran(tmp_path / "ran")), "nobody ran setup twice"


@on_a_loop
async def test_recovery_costs_no_setup_and_no_pause(tmp_path):
    took = {}
    for spares in (0, 1):
        file = tmp_path / f"ran{spares}"
        policy = Restart(limit=3, within_s=60, backoff_s=(0.1, 0.1))
        async with this_host().spawn_procs(restart=policy, spares=spares, setup=SetUp(file, 1.0)) as procs:
            warm = procs.spawn("warm", Warm)
            await warm.ready()
            await until(lambda file=file, spares=spares: len(ran(f"{file}.done")) == 1 + spares)
            begun = time.monotonic()
            await killed(warm)
            await warm.ready()
            took[spares] = time.monotonic() - begun
    print(f"back after {took[0]:.3f} s without spares, {took[1]:.3f} s with one")
    assert took[0] > 1.0
    assert took[1] < took[0] / 2


@on_a_loop
async def test_the_actors_modules_are_imported_ahead(tmp_path):
    imports = tmp_path / "imports"
    async with this_host().spawn_procs(restart=SLOW, spares=1, env={"IMPORTS": str(imports)}) as procs:
        slow = await procs.spawn("slow", Slow)
        await until(lambda: len(ran(imports)) == 2)
        before = ran(imports)
        await killed(slow)
        await slow.ready()
        assert await slow.pid.call_one() in before


@pytest.mark.parametrize("what", ["exit", "signal", "segfault"])
@on_a_loop
async def test_how_one_that_took_a_place_ends_is_told_as_ever(what):
    heard = []

    async def supervise(failure):
        heard.append(failure)
        return True

    policy = Restart(limit=1, within_s=60, backoff_s=(60, 60))
    async with this_host().spawn_procs(restart=policy, spares=1, supervise=supervise) as procs:
        warm = procs.spawn("warm", Warm)
        await killed(warm)
        await warm.ready()
        await warm.say.call_one("last words")
        with pytest.raises(ActorDied) as caught:
            await {"exit": warm.os_exit, "signal": warm.kill, "segfault": warm.segfault}[what].call_one(
                *((41,) if what == "exit" else ())
            )
        assert (await procs.wait())[0].state == "failed"
        failure = caught.value.failure
        assert (failure.exit_code, failure.signal) == {"exit": (41, None), "signal": (None, 9), "segfault": (None, 11)}[
            what
        ]
        assert "last words" in failure.stderr
        assert failure.incarnation == 1
        await until(lambda: heard)
        assert [one.reasons[0].signal for one in heard] == [9]


@on_a_loop
async def test_what_is_the_ranks_own_it_gets_with_its_rank(tmp_path):
    cpu = max(os.sched_getaffinity(0))
    async with this_host().spawn_procs(
        {"gpus": 2},
        restart=SLOW,
        spares=2,
        env=lambda point, incarnation: {"RANK": f"{point['gpus']}/{incarnation}"},
        bind=lambda point, incarnation: Bind(cpus=(cpu,)) if incarnation else None,
        gpus_per_proc=2,
        setup=SetUp(tmp_path / "ran", asks="rank"),
    ) as procs:
        warm = procs.spawn("warm", Warm)
        one = warm.slice(gpus=1)
        assert await one.variable.call_one("SEEN_BY_SETUP") == "1/0"
        await killed(one)
        await warm.ready()
        assert await one.variable.call_one("RANK") == "1/1"
        assert await one.variable.call_one("SEEN_BY_SETUP") == "1/1"
        assert await one.variable.call_one("HIP_VISIBLE_DEVICES") == "2,3"
        assert (await one.place.call_one())[3] == {cpu}
        assert len(ran(tmp_path / "ran")) == 3, "setup waited for the rank"


@on_a_loop
async def test_a_setup_that_asks_who_it_is_runs_when_that_is_known(tmp_path):
    async with this_host().spawn_procs(restart=SLOW, spares=1, setup=SetUp(tmp_path / "ran", asks="proc")) as procs:
        warm = procs.spawn("warm", Warm)
        proc = await warm.variable.call_one("SEEN_BY_SETUP")
        await killed(warm)
        await warm.ready()
        assert await warm.variable.call_one("SEEN_BY_SETUP") == proc


@on_a_loop
async def test_the_death_of_a_spare_is_nobodys_failure_and_it_is_replaced(tmp_path):
    policy = Restart(limit=1, within_s=60, backoff_s=(1, 1))
    async with this_host().spawn_procs(restart=policy, spares=1, setup=SetUp(tmp_path / "ran")) as procs:
        warm = procs.spawn("warm", Warm)
        rank = await warm.pid.call_one()
        await until(lambda: len(ran(tmp_path / "ran")) == 2)
        (spare,) = set(ran(tmp_path / "ran")) - {rank}
        os.kill(spare, signal.SIGKILL)
        await until(lambda: len(ran(tmp_path / "ran")) == 3)
        assert [state.state for state in await procs.states()] == ["up"]
        await killed(warm)
        await warm.ready()
        assert await warm.pid.call_one() == ran(tmp_path / "ran")[2]


@on_a_loop
async def test_spares_that_crash_over_and_over_are_given_up_with_a_warning(tmp_path, caplog):
    policy = Restart(limit=1, within_s=60, backoff_s=(0, 0))
    async with this_host().spawn_procs(
        restart=policy, spares=1, setup=SetUp(tmp_path / "ran", fails_in_spares=True)
    ) as procs:
        warm = procs.spawn("warm", Warm)
        await until(lambda: "is not replaced: setup raised RuntimeError: no more of us" in caplog.text)
        assert await warm.echo.call_one(1) == 1
        assert len(ran(tmp_path / "ran")) == 3, "the rank, and two tries"


@on_a_loop
async def test_spares_end_with_their_mesh_and_with_its_owner(tmp_path):
    file = tmp_path / "ran"
    async with this_host().spawn_procs(restart=SLOW, spares=3, setup=SetUp(file)) as procs:
        await until(lambda: len(ran(file)) == 4)
        await procs.stop()
        assert {process_state(pid) for pid in ran(file)} <= set("ZX"), "who waits for the end waits for theirs"
    async with this_host().spawn_procs(supervise=handled) as procs:
        owner = procs.spawn("owner", Owner)
        inner = tmp_path / "inner"
        await owner.own_procs.call_one(inner, SLOW)
        await killed(owner)
        for pid in ran(inner):
            wait_until_gone(pid)


@on_a_loop
async def test_what_it_starts_lives_and_dies_with_it(tmp_path):
    async with this_host().spawn_procs({"gpus": 2}, restart=SLOW, spares=1) as procs:
        warm = procs.spawn("warm", Warm)
        one, other = warm.slice(gpus=0), warm.slice(gpus=1)
        await killed(one)
        await warm.ready()
        orphan = await one.leave_an_orphan.call_one()
        gone = await killed(other)
        wait_until_gone(gone)
        # The template looks for orphans at each death; this comes after it.
        await one.leave_an_orphan.call_one()
        assert process_state(orphan) not in "ZX", "that of another's death is not its"
        os.kill(await one.pid.call_one(), signal.SIGKILL)
        wait_until_gone(orphan)


@pytest.mark.parametrize("start", ["template", "exec"])
@on_a_loop
async def test_all_ranks_at_once_with_fewer_spares_than_ranks(start):
    policy = Restart(limit=20, within_s=60, backoff_s=(0.05, 0.05), scope="all")
    async with this_host().spawn_procs({"gpus": 3}, restart=policy, spares=2, start=start) as procs:
        mortals = procs.spawn("mortals", Mortal)
        before = set(await mortals.pid.call())
        events = procs.events()
        await killed(mortals.slice(gpus=1))
        left = 3
        async for event in events:
            left -= event.kind == "recovered" and event.mesh == "mortals"
            if not left:
                break
        assert not before & set(await mortals.pid.call())
        assert list(await mortals.incarnation.call()) == [1, 1, 1]


@on_a_loop
async def test_one_that_takes_a_place_as_soon_as_it_is_ready_does_not_wait_for_what_has_happened():
    # The pause between two spares is short, the one before a rank starts without a spare soon long.
    policy = Restart(limit=20, within_s=60, backoff_s=(0.01, 60))
    async with this_host().spawn_procs(restart=policy, spares=1) as procs:
        warm = await procs.spawn("warm", Warm)
        for _ in range(10):
            begun = time.monotonic()
            # The next spare is not ready yet: it takes the place in the moment in which it says that it is.
            await killed(warm)
            await warm.ready()
            assert time.monotonic() - begun < 8
