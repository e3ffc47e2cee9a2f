"""D6, D7. No call hangs, and each rank of a call or a broadcast is accounted for."""

import asyncio
import os
import random
import signal
import time

import pytest
from loops import handled, on_a_loop, until
from mortal import Mortal

from roost import ActorDied, CallTimeoutError, Config, MeshError, context, run, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

DEADLINE_KEPT_S = 0.05


@on_a_loop
async def test_d6_a_call_ends_at_its_deadline_or_with_its_peer(rounds, promised):
    """Of an actor that sleeps, of one that a signal stopped, of one that is stuck in C; and of one that is killed before."""
    late = []
    async with this_host().spawn_procs({"ranks": 4}, supervise=handled) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        asleep, stopped, stuck, doomed = mortals
        asleep.sleep.call_one(600)
        stuck.hold_gil.call_one(600)
        os.kill(pids[1], signal.SIGSTOP)
        try:

            async def ends_in_time(one, timeout):
                begin = time.perf_counter()
                with pytest.raises(CallTimeoutError):
                    await one.options(timeout=timeout).echo.call_one("nobody answers")
                late.append(time.perf_counter() - begin - timeout)

            async def ends_with_its_peer():
                with pytest.raises(ActorDied):
                    await doomed.options(timeout=600).sleep.call_one(600)

            for _ in range(rounds(3, 100)):
                async with asyncio.TaskGroup() as group:
                    for one in (asleep, stopped, stuck):
                        for _ in range(10):
                            group.create_task(ends_in_time(one, random.uniform(0.01, 0.5)))
            async with asyncio.TaskGroup() as group:
                for _ in range(100):
                    group.create_task(ends_with_its_peer())
                await asyncio.sleep(0.05)
                os.kill(pids[3], signal.SIGKILL)
        finally:
            os.kill(pids[1], signal.SIGCONT)
        os.kill(pids[2], signal.SIGKILL)
    assert min(late) > -0.005, "not before its deadline either"
    promised("after the deadline", late, 99, DEADLINE_KEPT_S)


def test_d7_the_living_get_it_and_the_dead_are_named(rounds, figures):
    """Slices of meshes of random shapes, of which more and more ranks are dead."""
    config = Config(dead_letters_max=100_000)
    counted = run(one_death_after_the_other(rounds(2, 60)), config=config)
    figures(f"{counted} calls and broadcasts, each with all ranks accounted for")


async def one_death_after_the_other(count):
    counted = 0
    for _ in range(count):
        sizes = {"a": random.choice([1, 2]), "b": random.choice([2, 3])}
        async with this_host().spawn_procs(sizes, supervise=handled) as procs:
            mortals = procs.spawn("mortals", Mortal)
            pids = list(await mortals.pid.call())
            order = random.sample(range(len(pids)), len(pids))
            for dead in range(len(pids)):
                victim = order[dead]
                os.kill(pids[victim], signal.SIGKILL)
                await procs.flatten("all").slice(all=victim).wait()
                killed = set(order[: dead + 1])
                counted += await all_accounted_for(mortals, killed, sizes, dead)
    return counted


async def all_accounted_for(mortals, killed, sizes, number):
    """One call and one broadcast to the whole and to slices of it."""
    slices = [
        mortals,
        *(mortals.slice(a=at) for at in range(sizes["a"])),
        *(mortals.slice(b=at) for at in range(sizes["b"])),
    ]
    ranks_of = [set(range(sizes["a"] * sizes["b"]))]
    ranks_of += [{a * sizes["b"] + b for b in range(sizes["b"])} for a in range(sizes["a"])]
    ranks_of += [{a * sizes["b"] + b for a in range(sizes["a"])} for b in range(sizes["b"])]
    for mesh, ranks in zip(slices, ranks_of, strict=True):
        ordered = sorted(ranks)
        dead = [rank for rank in ordered if rank in killed]
        outcomes = list(await mesh.echo.call(number).outcomes())
        assert [isinstance(one, ActorDied) for one in outcomes] == [rank in killed for rank in ordered]
        assert all(one == number for one, rank in zip(outcomes, ordered, strict=True) if rank not in killed)
        if dead:
            with pytest.raises(MeshError) as caught:
                await mesh.echo.call(number)
            assert [ordered[point.rank] for point, _ in caught.value.items()] == dead
        letters = len(context().job.dead_letters)
        await mesh.note.broadcast(number)
        await until(lambda letters=letters, dead=dead: len(context().job.dead_letters) == letters + len(dead))
        told = [letter.point.rank for letter in context().job.dead_letters[letters:]]
        assert sorted(told) == dead
        living = [one for one, rank in zip(mesh, ordered, strict=True) if rank not in killed]
        assert [(await one.notes.call_one())[-1] for one in living] == [number] * len(living)
    return 2 * len(slices)


@on_a_loop
async def test_d7_three_of_six_are_killed_at_once():
    heard = []

    async def supervise(failure):
        heard.append(failure)
        return True

    async with this_host().spawn_procs({"gpus": 6}, name="workers", supervise=supervise) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        pending = procs.spawn("busy", Mortal).sleep.call(600)
        for rank in (1, 3, 4):
            os.kill(pids[rank], signal.SIGKILL)
        for rank in (1, 3, 4):
            await procs.slice(gpus=rank).wait()
        # Slices without them answer, one or several ranks large.
        assert list(await mortals.slice(gpus=slice(0, 6, 5)).echo.call("here")) == ["here"] * 2
        assert await mortals.slice(gpus=2).echo.call_one("here") == "here"
        for mesh in (mortals, mortals.slice(gpus=slice(1, 5))):
            with pytest.raises(MeshError) as caught:
                await mesh.echo.call("all of you?")
            assert sorted(failure.name for failure in caught.value.failures) == [
                f"workers[gpus={rank}]" for rank in (1, 3, 4)
            ]
        # Who waited since before heard of the first at once, and has all three.
        with pytest.raises(MeshError) as caught:
            await pending
        deaths = [*caught.value.exceptions, *caught.value.later]
        assert sorted(death.failure.point.rank for death in deaths) == [1, 3, 4]
    assert sorted(failure.point.rank for failure in heard) == [1, 3, 4]
