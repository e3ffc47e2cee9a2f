"""Procs inside the process of a test: what holds for processes holds for them, and the test reaches into them."""

import asyncio
import os
import subprocess
import sys

import numpy as np
import pytest
from loops import handled, on_a_loop, until
from staged import LIVES, Trainer

import roost
from roost import ActorDied, Channel, MeshError, Restart, context, this_host, this_proc
from roost.errors import StoppedError
from roost.testing import in_process, kill, local_mesh

pytestmark = pytest.mark.usefixtures("nothing_left")

QUICK = Restart(limit=2, within_s=60, backoff_s=(0, 0))


def processes(sizes, **options):
    return this_host().spawn_procs(sizes, **options)


# What is shown with `both` holds alike for procs of either kind.
both = pytest.mark.parametrize("spawn", [local_mesh, processes])


@pytest.fixture(autouse=True)
def _no_lives():
    LIVES.clear()


@both
@on_a_loop
async def test_verbs_and_values(spawn):
    async with spawn({"gpus": 3}) as procs:
        trainers = procs.spawn("trainers", Trainer)
        assert list(await trainers.step.call(2)) == [2, 2, 2]
        assert await trainers.slice(gpus=1).work.call_one(2) == 4
        assert [value async for _, value in trainers.slice(gpus=0).numbers.stream(3)] == [0, 1, 2]
        assert list(await trainers.numbers.call(2)) == [[0, 1]] * 3
        mine = []
        assert list(await trainers.fill.call(mine)) == [[0], [1], [2]]
        assert mine == []
        large = np.arange(1 << 18)
        assert (await trainers.slice(gpus=0).fill.call_one([large]))[0].sum() == large.sum()
        with pytest.raises(MeshError) as caught:
            await trainers.boom.call()
        assert [type(error) for error in caught.value.exceptions] == [LookupError]
        await trainers.step.broadcast()
        assert list(await trainers.count.call()) == [2, 3, 2]


@both
@on_a_loop
async def test_they_talk_to_each_other(spawn):
    async with spawn({"gpus": 2}) as procs:
        trainers = procs.spawn("trainers", Trainer)
        first, second = trainers
        assert await first.ask.call_one(second) == 10
        port, receiver = Channel.open()
        await second.send.broadcast(port)
        assert [value async for value in receiver] == [0, 1, 2]
        await (await first.open.call_one()).send(1)


@both
@on_a_loop
async def test_a_kill_is_a_death(spawn):
    async with spawn({"gpus": 3}, name="workers", supervise=handled) as procs:
        trainers = procs.spawn("trainers", Trainer)
        await trainers
        pending = trainers.slice(gpus=1).sleep.call_one()
        others = trainers.slice(gpus=0).sleep.call_one(0.1)
        kill(procs.slice(gpus=1))
        with pytest.raises(
            ActorDied, match=r"workers\[gpus=1\] was killed by SIGKILL \(signal 9\) on host \S+: by the test"
        ) as caught:
            await pending
        failure = caught.value.failure
        assert (failure.kind, failure.origin, failure.signal) == ("signal", "process", 9)
        assert [one.name for one in failure.consequences] == ["trainers[gpus=1]"]
        with pytest.raises(ActorDied) as again:
            await trainers.slice(gpus=1).step.call_one()
        assert again.value.failure is failure
        await others
        assert [state.state for state in await procs.states()] == ["up", "failed", "up"]
        assert trainers.slice(gpus=1).step.broadcast() is not None
        assert context().job.dead_letters[-1].target == "trainers[gpus=1]"


@both
@on_a_loop
async def test_a_policy_brings_it_back(spawn):
    async with spawn({"gpus": 2}, restart=QUICK) as procs:
        trainers = procs.spawn("trainers", Trainer)
        await trainers.step.call()
        for life in (1, 2):
            with pytest.raises(ActorDied):
                await dying(trainers.slice(gpus=1))
            await trainers
            assert list(await trainers.life.call()) == [0, life]
            assert list(await trainers.count.call()) == [1, 0]


async def running(trainer):
    """Until it runs an endpoint."""
    while not (await trainer.states()).item().running:
        await asyncio.sleep(0)


async def dying(trainer):
    """Kill its proc while it runs; raises what its caller gets."""
    pending = trainer.sleep.call_one()
    await running(trainer)
    kill(trainer)
    await pending


@both
@on_a_loop
async def test_past_the_limit_the_hook_hears_once_of_all_deaths(spawn):
    heard = []

    async def hear(failure):
        heard.append(failure)
        return True

    async with spawn({"gpus": 2}, restart=QUICK, supervise=hear) as procs:
        trainers = procs.spawn("trainers", Trainer)
        await trainers
        for _ in range(3):
            await trainers.slice(gpus=0)
            kill(procs.slice(gpus=0))
            with pytest.raises(ActorDied):
                while True:
                    await trainers.slice(gpus=0).step.call_one()
        with pytest.raises(ActorDied):
            await procs
        assert await trainers.slice(gpus=1).step.call_one() == 1
    assert [[past.incarnation for past in failure.reasons] for failure in heard] == [[0, 1]]


@both
@on_a_loop
async def test_a_scope_takes_the_others_along(spawn):
    policy = Restart(limit=3, backoff_s=(0, 0), scope="rest")
    async with spawn({"gpus": 3}, restart=policy) as procs:
        trainers = procs.spawn("trainers", Trainer)
        await trainers
        # Asked afterwards, both may be there again.
        taken_along = trainers.slice(gpus=2).sleep.call_one()
        await running(trainers.slice(gpus=2))
        with pytest.raises(ActorDied):
            await dying(trainers.slice(gpus=1))
        with pytest.raises(ActorDied):
            await taken_along
        while [state.incarnation for state in await procs.states()] != [0, 1, 1]:
            await asyncio.sleep(0)
        await trainers
        assert list(await trainers.life.call()) == [0, 1, 1]


@both
@on_a_loop
async def test_calls_wait_for_the_next_life_where_the_policy_says_so(spawn):
    policy = Restart(limit=3, backoff_s=(0, 0), while_down="wait")
    async with spawn(None, restart=policy) as procs:
        trainer = procs.spawn("trainer", Trainer)
        pending, queued = trainer.sleep.call_one(), trainer.life.call_one()
        await running(trainer)
        kill(procs)
        with pytest.raises(ActorDied) as caught:
            await pending
        assert caught.value.maybe_executed
        # It had surely not started.
        assert await queued == 1


@both
@on_a_loop
async def test_what_nobody_heard_is_raised_at_the_end(spawn):
    with pytest.raises(MeshError) as caught:
        async with spawn({"gpus": 2}, name="workers") as procs:
            kill(procs.slice(gpus=1))
            await procs.slice(gpus=1).wait()
    assert caught.value.failures[0].name == "workers[gpus=1]"


@both
@on_a_loop
async def test_an_exit_ends_the_proc_with_its_code(spawn):
    async with spawn(None, supervise=handled) as procs:
        trainer = procs.spawn("trainer", Trainer)
        with pytest.raises(ActorDied) as caught:
            await trainer.leave.call_one(41)
        assert (caught.value.failure.kind, caught.value.failure.exit_code) == ("exit", 41)


@both
@on_a_loop
async def test_a_setup_that_raises_is_a_failed_start(spawn):
    with pytest.raises(ActorDied, match="setup raised ValueError: no") as caught:
        async with spawn({"gpus": 2}, setup=refuse):
            raise AssertionError("it was entered")
    assert caught.value.failure.kind == "start"


def refuse():
    raise ValueError("no")


@both
@on_a_loop
async def test_a_constructor_that_raises_fails_the_actor_alone(spawn):
    async with spawn(None) as procs:
        with pytest.raises(ActorDied) as caught:
            await procs.options(supervise=handled).spawn("trainer", Trainer, fails="raise")
        assert isinstance(caught.value.__cause__, ValueError)
        assert await procs.spawn("other", Trainer).step.call_one() == 1


@both
@on_a_loop
async def test_the_same_story_is_told(spawn):
    story = []
    async with spawn(
        {"gpus": 2}, name="workers", restart=Restart(limit=1, backoff_s=(0, 0)), supervise=handled
    ) as procs:
        events = procs.events()
        trainers = procs.spawn("trainers", Trainer)
        await trainers
        with pytest.raises(ActorDied):
            await dying(trainers.slice(gpus=0))
        await trainers
        with pytest.raises(ActorDied):
            await dying(trainers.slice(gpus=0))
        await procs.slice(gpus=0).wait()
    async for event in events:
        if event.name == "workers[gpus=0]":
            story.append((event.kind, event.incarnation))
    assert story == [("failed", 0), ("restarting", 0), ("recovered", 1), ("failed", 1)]


@both
@on_a_loop
async def test_use_after_the_stop(spawn):
    async with spawn({"gpus": 2}) as procs:
        trainers = procs.spawn("trainers", Trainer)
        await trainers
    with pytest.raises(StoppedError):
        trainers.step.call()
    assert [state.state for state in await procs.states()] == ["stopped", "stopped"]


@on_a_loop
async def test_they_are_in_this_process_where_the_test_reaches_them(monkeypatch):
    monkeypatch.setattr(Trainer, "double", lambda self, value: value * 2, raising=False)
    async with local_mesh({"gpus": 2}) as procs:
        patched = procs.spawn("patched", Patched)
        assert list(await patched.patched.call(4)) == [8, 8]
        assert {state.pid for state in await patched.states()} == {os.getpid()}
        # What a test defines is what its actors see, by whatever way it comes.
        seen = []

        class Noting(Trainer):
            @roost.endpoint
            async def note(self):
                seen.append(context().point.rank)

        await procs.spawn("noting", Noting).note.call()
        assert sorted(seen) == [0, 1]


class Patched(Trainer):
    @roost.endpoint
    async def patched(self, value):
        return self.double(value)


@on_a_loop
async def test_an_end_in_order_cleans_up_and_a_kill_does_not():
    async with local_mesh({"gpus": 2}, supervise=handled) as procs:
        trainers = procs.spawn("trainers", Trainer)
        await trainers
        with pytest.raises(ActorDied):
            await dying(trainers.slice(gpus=1))
        # What was cancelled by the kill has had its turn.
        assert ("woke", 1, 0) in LIVES
    assert [life for life in LIVES if life[0] == "cleaned up"] == [("cleaned up", 0, 0)]


@pytest.mark.parametrize("how", ["killed", "stopped", "restarted"])
@on_a_loop
async def test_tasks_of_an_actors_own_end_with_its_proc(how):
    async with local_mesh(supervise=handled) as procs:
        trainer = procs.spawn("trainer", Beating)
        await trainer.beat_on.call_one()
        task = LIVES.pop()
        if how == "killed":
            kill(procs)
        else:
            await (procs.stop() if how == "stopped" else procs.restart())
        with pytest.raises(asyncio.CancelledError):
            await task


class Beating(Trainer):
    @roost.endpoint
    async def beat_on(self):
        LIVES.append(asyncio.create_task(asyncio.sleep(60)))


@on_a_loop
async def test_a_program_that_spawns_procs_itself_is_tested_unchanged():
    async def program():
        async with this_host().spawn_procs({"gpus": 2}, gpus_per_proc=1, env={"NAME": "value"}) as procs:
            return list(await procs.spawn("trainers", Trainer).step.call()), [
                state.pid for state in await procs.states()
            ]

    with in_process():
        assert await program() == ([1, 1], [os.getpid()] * 2)
    _, pids = await program()
    assert os.getpid() not in pids


@on_a_loop
async def test_procs_of_actors_are_local_too_and_end_with_their_owner():
    async with local_mesh(name="above", supervise=handled) as procs:
        trainer = procs.spawn("trainer", Trainer)
        assert list(await trainer.below.call_one()) == [5, 5]
        kill(procs)
        await procs.wait()
        await until(lambda: sorted(LIVES) == [("cleaned up", 0, 0), ("cleaned up", 1, 0)])


@on_a_loop
async def test_services_are_found_from_them():
    with in_process():
        async with local_mesh({"gpus": 2}) as procs:
            assert sorted(await procs.spawn("askers", Asker).ask_service.call()) == [1, 2]
            assert await (await roost.lookup("service", Trainer)).count.call_one() == 2
            await roost.remove("service")


@on_a_loop
async def test_a_service_that_is_a_process_is_out_of_their_reach_and_the_error_says_what_to_do():
    async with local_mesh() as procs:
        asker = procs.spawn("asker", Asker)
        with pytest.raises(
            ActorDied, match=r"^service was lost on host \S+: it is a process, .*in_process.* or, .*get_or_spawn"
        ):
            await asker.ask_service.call_one()
        await roost.remove("service")
        await procs.get_or_spawn("service", Trainer)
        assert await asker.ask_service.call_one() == 1
        await roost.remove("service")


class Asker(Trainer):
    @roost.endpoint
    async def ask_service(self):
        service = await roost.get_or_spawn("service", Trainer)
        return await service.step.call_one()


@on_a_loop
async def test_beside_processes_of_the_same_job():
    async with processes({"gpus": 2}) as real:
        there = real.spawn("there", Trainer)
        await there
        async with local_mesh({"gpus": 2}, supervise=handled) as local:
            here = local.spawn("here", Trainer)
            assert list(await here.step.call()) == list(await there.step.call()) == [1, 1]
            # Processes come and go meanwhile.
            async with processes(None) as more:
                assert await more.spawn("more", Trainer).step.call_one() == 1
                assert list(await here.step.call()) == [2, 2]
            kill(local.slice(gpus=0))
            assert list(await there.step.call()) == [2, 2]
            assert await here.slice(gpus=1).step.call_one() == 3
            with pytest.raises(ActorDied, match="it is a process, which procs that live in"):
                await here.slice(gpus=1).ask.call_one(there.slice(gpus=0))


@on_a_loop
async def test_one_after_the_other_on_one_loop():
    for _ in range(3):
        async with local_mesh({"gpus": 2}) as procs:
            assert list(await procs.spawn("trainers", Trainer).step.call()) == [1, 1]
    assert await this_proc().spawn("own", Trainer).step.call_one() == 1


def test_a_job_that_ends_with_local_procs_up_stops_them_in_order(caplog):
    async def program():
        procs = local_mesh({"gpus": 2}, restart=QUICK)
        await procs.spawn("trainers", Trainer).step.call()

    asyncio.run(program())
    assert sorted(LIVES) == [("cleaned up", 0, 0), ("cleaned up", 1, 0)]
    assert not caplog.records


@on_a_loop
async def test_bad_input():
    with pytest.raises(TypeError, match=r"kill\('x'\): give a mesh of procs or of actors"):
        kill("x")
    with pytest.raises(ValueError, match="would end the test"):
        kill(this_proc())
    with pytest.raises(TypeError, match=r"give a roost\.Restart"):
        local_mesh(restart=3)


def test_without_a_loop_it_is_refused():
    with pytest.raises(
        RuntimeError, match="use in_process\\(\\) and local_mesh\\(\\) where that runs, in an `async def` test"
    ):
        local_mesh()


def test_nothing_of_it_is_imported_by_roost_or_by_a_proc():
    program = "import sys, roost, roost.serving; print([name for name in sys.modules if name in sys.argv[1:]])"
    names = [f"roost.{name}" for name in ("testing", "local_host", "local_proc", "faults", "injecting", "fake_clock")]
    run = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
