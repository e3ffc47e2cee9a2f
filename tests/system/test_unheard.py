"""Who has heard of a failure; what nobody heard is raised, never only logged."""

import asyncio
import gc
import logging
import os
import signal
import time

import pytest
from loops import on_a_loop
from mortal import Mortal

import roost
from roost import Actor, ActorDied, MeshError, endpoint, process, this_host, this_proc

pytestmark = pytest.mark.usefixtures("nothing_left")


async def ended(mesh):
    """Until all ranks have, without hearing of how."""
    await mesh.wait()
    await asyncio.sleep(0)


@on_a_loop
async def test_an_unheard_failure_is_raised_out_of_the_block_and_said_before(caplog):
    with pytest.raises(MeshError) as caught, caplog.at_level(logging.WARNING, logger="roost"):
        async with this_host().spawn_procs({"gpus": 2}, name="workers") as procs:
            pids = await procs.spawn("mortals", Mortal).pid.call()
            os.kill(pids[1], signal.SIGKILL)
            await procs.slice(gpus=1).wait()
            # The body goes on.
            assert await procs.slice(gpus=0).spawn("others", Mortal).echo.call_one(1) == 1
            async with asyncio.timeout(20):
                while not caplog.records:
                    await asyncio.sleep(0.01)
            said = [record.getMessage() for record in caplog.records if record.name == "roost"]
            assert len(said) == 1
            assert "workers[gpus=1] was killed by SIGKILL" in said[0]
    (failure,) = caught.value.failures
    assert failure.name == "workers[gpus=1]"
    assert [dict(point) for point, _ in caught.value.items()] == [{"gpus": 1}]


@on_a_loop
async def test_what_an_awaiting_caller_got_has_been_heard():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        calls = [mortals.sleep.call(60), mortals.slice(gpus=1).sleep.call_one(60)]
        os.kill(pids[1], signal.SIGKILL)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [MeshError, ActorDied]


@on_a_loop
async def test_a_verb_after_the_death_hears_of_it():
    async with this_host().spawn_procs() as procs:
        mortal = procs.spawn("mortal", Mortal)
        pid = await mortal.pid.call_one()
        os.kill(pid, signal.SIGKILL)
        await ended(procs)
        with pytest.raises(ActorDied):
            await mortal.echo.call_one(1)


@on_a_loop
async def test_ready_hears_of_it():
    async with this_host().spawn_procs() as procs:
        mortal = procs.spawn("mortal", Mortal, "raise")
        with pytest.raises(ActorDied):
            await mortal


@on_a_loop
async def test_the_blocks_own_error_is_raised_together_with_failures():
    with pytest.raises(MeshError) as caught:
        async with this_host().spawn_procs() as procs:
            mortal = procs.spawn("mortal", Mortal)
            await mortal
            mortal.kill.broadcast()
            await ended(procs)
            raise KeyError("the block's own")
    own, died = caught.value.exceptions
    assert isinstance(own, KeyError)
    assert isinstance(died, ActorDied)


@on_a_loop
async def test_an_error_that_is_the_failure_is_not_told_twice():
    with pytest.raises(ActorDied):
        async with this_host().spawn_procs() as procs:
            mortal = procs.spawn("mortal", Mortal)
            await mortal.kill.call_one()


@on_a_loop
async def test_a_bare_base_exception_is_raised_alone_with_notes():
    class Interrupt(BaseException):
        pass

    with pytest.raises(Interrupt) as caught:
        async with this_host().spawn_procs() as procs:
            mortal = procs.spawn("mortal", Mortal)
            await mortal
            mortal.kill.broadcast()
            await ended(procs)
            raise Interrupt
    assert "SIGKILL" in caught.value.__notes__[0]


@pytest.mark.parametrize("handles", [True, False])
@on_a_loop
async def test_the_hook_is_called_once_a_failed_rank_whether_a_caller_heard_or_not(handles):
    heard = []

    async def supervise(failure):
        heard.append(failure.name)
        return handles

    procs = this_host().spawn_procs({"gpus": 3}, supervise=supervise)

    async def body():
        async with procs:
            mortals = procs.spawn("mortals", Mortal)
            procs.spawn("others", Mortal)
            await mortals
            reply = mortals.slice(gpus=0).kill.call_one()
            mortals.slice(gpus=2).kill.broadcast()
            with pytest.raises(ActorDied):
                await reply
            await procs.slice(gpus=2).wait()

    if handles:
        await body()
    else:
        with pytest.raises(MeshError) as caught:
            await body()
        assert [failure.name for failure in caught.value.failures] == ["procs[gpus=2]"]
    assert sorted(heard) == ["procs[gpus=0]", "procs[gpus=2]"]


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
@on_a_loop
async def test_a_hook_that_raises_has_not_handled_it(error, caplog):
    async def supervise(failure):
        raise error("the hook is broken")

    with pytest.raises(MeshError):
        async with this_host().spawn_procs(supervise=supervise) as procs:
            procs.spawn("mortal", Mortal).kill.broadcast()
            await ended(procs)
    assert "the hook is broken" in caplog.text


class Forgetful(Actor):
    """Its hook does not say that it has handled anything."""

    async def __supervise__(self, failure):
        pass

    @endpoint
    async def go(self):
        this_host().spawn_procs(name="kids").spawn("mortal", Mortal).kill.broadcast()
        await asyncio.sleep(60)


@on_a_loop
async def test_who_fails_of_what_its_hook_forgot_to_handle_is_told_so():
    async with this_proc().spawn("owner", Forgetful) as owner:
        with pytest.raises(
            ActorDied, match="the supervise hook of kids returned None: return True where it is handled"
        ):
            await owner.go.call_one()


class Forwarding(Actor):
    """Its hook awaits something that is cancelled."""

    async def __supervise__(self, failure):
        raise asyncio.CancelledError

    @endpoint
    async def go(self):
        this_host().spawn_procs().spawn("mortal", Mortal).kill.broadcast()
        await asyncio.sleep(60)


@on_a_loop
async def test_so_has_one_of_an_actor_that_is_cancelled():
    async with this_proc().spawn("owner", Forwarding) as owner:
        with pytest.raises(ActorDied, match="was killed by SIGKILL"):
            await owner.go.call_one()


@on_a_loop
async def test_a_hook_that_does_not_end_holds_nobody_up():
    async def supervise(failure):
        await asyncio.sleep(600)

    begin = time.monotonic()
    with pytest.raises(MeshError):
        async with this_host().spawn_procs(supervise=supervise) as procs:
            procs.spawn("mortal", Mortal).kill.broadcast()
            await ended(procs)
    assert time.monotonic() - begin < 30


@on_a_loop
async def test_two_failures_of_one_number_are_two():
    """An actor that was restarted alone, and then with its process, has its number again."""
    heard = []

    async def supervise(failure):
        heard.append(failure.reason)
        return True

    async with this_host().spawn_procs() as procs:
        mortal = procs.options(supervise=supervise).spawn("mortal", Mortal)
        await mortal.ready()
        await mortal.restart()
        mortal.boom.broadcast("same")
        await ended(mortal)
        await procs.restart()
        await mortal.ready()
        mortal.boom.broadcast("same")
        await ended(mortal)
    assert len(heard) == 2, heard


@on_a_loop
async def test_two_time_outs_at_one_moment_leave_nothing_unheard():
    async with this_host().spawn_procs() as procs:
        mortal = procs.spawn("mortal", Mortal)
        await mortal.ready()
        for _ in range(30):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await mortal.sleep.options(timeout=0.02).call_one(5)
        gc.collect()
    assert process.current().hearing.dropped == []


@on_a_loop
async def test_an_error_without_a_caller_fails_its_actor_and_the_owner_hears():
    heard = asyncio.Queue()

    async def supervise(failure):
        heard.put_nowait(failure)
        return True

    async with this_host().spawn_procs({"gpus": 2}) as procs:
        mortals = procs.options(supervise=supervise).spawn("mortals", Mortal)
        mortals.slice(gpus=1).boom.broadcast("nobody asked")
        failure = await heard.get()
        assert (failure.kind, failure.origin, failure.name) == ("error", "user", "mortals[gpus=1]")
        assert "nobody asked" in failure.reason
        assert "in boom" in failure.traceback
        await mortals.slice(gpus=0).ready()
        assert [state.state for state in await mortals.states()] == ["up", "failed"]
        # Its process lives, and so does its neighbour.
        assert [state.state for state in await procs.states()] == ["up", "up"]
        with pytest.raises(MeshError) as caught:
            await mortals.echo.call(1)
        assert caught.value.failures == (failure,)
        assert isinstance(caught.value.exceptions[0].__cause__, ValueError)


@on_a_loop
async def test_a_stop_of_ones_own_is_no_failure():
    procs = this_host().spawn_procs({"gpus": 2})
    mortals = procs.spawn("mortals", Mortal)
    await mortals
    replies = [mortals.sleep.call(60) for _ in range(5)]
    async with procs:
        pass
    del replies


def test_run_raises_what_nobody_heard():
    async def main():
        procs = this_host().spawn_procs()
        procs.spawn("mortal", Mortal).kill.broadcast()
        await ended(procs)
        return "done"

    with pytest.raises(MeshError) as caught:
        roost.run(main())
    assert caught.value.failures[0].signal == 9


def test_run_asks_its_own_hook_last():
    heard = []

    async def supervise(failure):
        heard.append(failure.name)
        return True

    async def main():
        procs = this_host().spawn_procs()
        procs.spawn("mortal", Mortal).kill.broadcast()
        await ended(procs)
        return "done"

    assert roost.run(main(), supervise=supervise) == "done"
    assert heard == ["procs"]


def test_run_raises_a_failed_call_that_nobody_awaited():
    async def main():
        mortal = this_proc().spawn("mortal", Mortal)
        mortal.boom.call("into the void")
        await mortal.echo.call_one(1)

    with pytest.raises(MeshError) as caught:
        roost.run(main())
    assert "into the void" in str(caught.value)
