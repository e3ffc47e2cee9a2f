"""A stop of who is about to be constructed anew: it ends then, for good, and its owner hears of it at once."""

import asyncio
import time

import pytest
from loops import handled, on_a_loop, until

from roost import Actor, ActorDied, Restart, context, endpoint, this_host
from roost.errors import StoppedError
from roost.testing import kill

pytestmark = pytest.mark.usefixtures("nothing_left")

CLEANUP_S = 0.5


class Lingering(Actor):
    """Takes its time to end, and writes down each of its lives."""

    def __init__(self, path):
        self.path = path
        self.write("born")

    def write(self, text):
        with open(self.path, "a") as file:
            file.write(f"{text}\n")

    async def __cleanup__(self, _error):
        self.write("cleans up")
        await asyncio.sleep(CLEANUP_S)

    @endpoint
    async def fail(self):
        raise ValueError("its own fault")

    @endpoint
    async def leave(self):
        context().stop("no more to do")


def written(path):
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("restarts", ["policy", "always", "owner"])
@pytest.mark.parametrize("whole", [True, False], ids=["mesh", "rank"])
@on_a_loop
async def test_it_ends_in_its_own_time_and_stays_down(restarts, whole, tmp_path, caplog):
    policy = (
        None if restarts == "owner" else Restart(when="always" if restarts == "always" else "failed", backoff_s=(0, 0))
    )
    path = tmp_path / "lives"
    async with this_host().spawn_procs({"gpus": 2}, supervise=handled) as procs:
        actors = await procs.options(restart=policy, supervise=handled).spawn("lingering", Lingering, path)
        one = actors.slice(gpus=0)
        (one.leave if restarts == "always" else one.fail).broadcast()
        await until(lambda: "cleans up" in written(path))
        again = one.restart("its owner wants it back") if restarts == "owner" else None
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await (actors if whole else one).stop("not wanted any more")
        # Without word of its end it would count as stuck when the grace is over.
        assert time.monotonic() - began < 2.0 + CLEANUP_S
        assert (await actors.states())[0].state == "stopped"
        if again is not None:
            with pytest.raises(Exception, match="its own fault"):
                await again
    assert written(path).count("born") == 2
    assert not [record for record in caplog.records if "was told to stop" in record.getMessage()]


@on_a_loop
async def test_one_that_was_mended_and_then_stopped_has_stopped_and_not_failed(tmp_path):
    policy = Restart(backoff_s=(0, 0), while_down="wait")
    async with this_host().spawn_procs() as procs:
        actor = procs.options(restart=policy).spawn("lingering", Lingering, tmp_path / "lives")
        events = actor.events()
        actor.fail.broadcast()
        async for event in events:
            if event.kind == "recovered":
                break
        await actor.stop("enough")
        state = (await actor.states()).item()
        assert (state.state, state.reason, state.incarnation) == ("stopped", "enough", 1)
        with pytest.raises(StoppedError, match="enough"):
            await actor.ready()


@pytest.mark.parametrize("whole", [True, False], ids=["mesh", "rank"])
@on_a_loop
async def test_those_that_failed_and_were_stopped_do_not_come_back_with_their_procs(whole, tmp_path):
    path = tmp_path / "lives"
    async with this_host().spawn_procs({"gpus": 2}, supervise=handled) as procs:
        actors = await procs.options(supervise=handled).spawn("lingering", Lingering, path)
        one = actors if whole else actors.slice(gpus=0)
        kill(procs)
        await actors.wait()
        await one.stop("not wanted any more")
        await procs.restart("once more")
        again = await procs.spawn("others", Lingering, path)
        # Whatever their procs have to say of them has been said before what others say that came after them.
        await again.stop()
        assert {state.state for state in await one.states()} <= {"failed", "stopped"}
        if whole:
            assert written(path).count("born") == 4
        else:
            assert await actors.slice(gpus=1).ready()
        began = time.monotonic()
        await actors.stop()
        assert time.monotonic() - began < 2.0 + CLEANUP_S


@pytest.mark.parametrize("ends", ["killed", "stopped"])
@on_a_loop
async def test_an_actor_without_a_proc_cannot_be_restarted_and_is_not_waited_for(ends, tmp_path):
    async with this_host().spawn_procs({"gpus": 2}, supervise=handled) as procs:
        actors = await procs.options(supervise=handled).spawn("lingering", Lingering, tmp_path / "lives")
        one = actors.slice(gpus=0)
        if ends == "killed":
            kill(procs.slice(gpus=0))
        else:
            await procs.slice(gpus=0).stop("not needed")
        await one.wait()
        with pytest.raises(
            ActorDied, match=r"lingering\[gpus=0\] cannot be restarted without its proc: restart that first"
        ):
            await one.restart()
        assert [state.state for state in await actors.states()] == ["failed" if ends == "killed" else "stopped", "up"]
        await procs.slice(gpus=0).restart()
        if ends == "stopped":
            await one.restart()
        await actors.ready()
        began = time.monotonic()
        await actors.stop()
        assert time.monotonic() - began < 2.0 + CLEANUP_S


@pytest.mark.parametrize("scope", ["all", "rest"])
@on_a_loop
async def test_the_scope_of_a_policy_takes_nobody_along_that_is_being_stopped(scope, tmp_path):
    path = tmp_path / "lives"
    async with this_host().spawn_procs({"gpus": 3}, supervise=handled) as procs:
        policy = Restart(scope=scope, backoff_s=(0, 0))
        actors = await procs.options(restart=policy).spawn("lingering", Lingering, path)
        await actors.slice(gpus=0).fail.broadcast()
        # Word of the failure is here and not looked at when they are told to stop.
        await asyncio.sleep(0)
        time.sleep(0.3)
        began = time.monotonic()
        await actors.stop("not wanted any more")
        assert time.monotonic() - began < 2.0 + CLEANUP_S
        assert [state.state for state in await actors.states()] == ["stopped"] * 3
    assert written(path).count("born") == 3


@pytest.mark.parametrize("whole", [True, False], ids=["mesh", "rank"])
@pytest.mark.parametrize("while_down", ["fail", "wait"])
@on_a_loop
async def test_a_stop_while_their_proc_is_down_is_no_wait_for_the_grace(while_down, whole, tmp_path, caplog):
    policy = Restart(backoff_s=(0.5, 0.5), while_down=while_down)
    async with this_host().spawn_procs(restart=policy) as procs:
        actors = await procs.options(per_proc={"envs": 2}).spawn("lingering", Lingering, tmp_path / "lives")
        one = actors if whole else actors.slice(envs=0)
        events = procs.events()
        kill(procs)
        async for event in events:
            if event.kind == "restarting":
                break
        began = time.monotonic()
        await one.stop("not wanted any more")
        assert time.monotonic() - began < 2.0 + CLEANUP_S
        await procs.ready()
        assert {state.state for state in await one.states()} == {"stopped"}
        if not whole:
            await actors.slice(envs=1).ready()
    assert not [record for record in caplog.records if "was told to stop" in record.getMessage()]


@pytest.mark.parametrize("turns", [0, 1, 3])
@pytest.mark.parametrize("whole", [True, False], ids=["mesh", "rank"])
@on_a_loop
async def test_a_stop_while_their_proc_is_brought_back_by_its_owner_is_none_either(whole, turns, tmp_path):
    async with this_host().spawn_procs(supervise=handled) as procs:
        actors = await procs.options(per_proc={"envs": 2}).spawn("lingering", Lingering, tmp_path / "lives")
        one = actors if whole else actors.slice(envs=0)
        kill(procs)
        await procs.wait()
        again = procs.restart()
        for _ in range(turns):
            await asyncio.sleep(0)
        began = time.monotonic()
        await one.stop("not wanted any more")
        assert time.monotonic() - began < 2.0 + CLEANUP_S
        await again
        # What its proc had to say of it came before this.
        await (await procs.spawn("others", Lingering, tmp_path / "others")).stop()
        assert {state.state for state in await one.states()} == {"stopped"}
        if not whole:
            await actors.slice(envs=1).ready()
