"""Restart in place: the same point and name, the next incarnation, and nothing meant for the old one."""

import asyncio
import os
import signal

import pytest
from loops import handled, next_of, on_a_loop, wait_until_idle
from mortal import Mortal

from roost import ActorDied, Restart, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

QUICK = Restart(limit=5, within_s=60, backoff_s=(0.01, 0.05))
WAITING = Restart(limit=100, within_s=60, backoff_s=(0.01, 0.05), while_down="wait")


async def killed(mesh, pid, number=signal.SIGKILL):
    """Kill a rank's process; done when a call to it has failed of that."""
    pending = mesh.sleep.call_one(60)
    os.kill(pid, number)
    with pytest.raises(ActorDied) as caught:
        await pending
    return caught.value


@on_a_loop
async def test_the_next_incarnation_is_constructed_anew_under_the_same_name():
    async with this_host().spawn_procs({"gpus": 2}, name="workers", restart=QUICK) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        one = mortals.slice(gpus=1)
        assert await one.echo.call_one("x") == "x"
        assert await one.count.call_one() == 1
        for life in (1, 2):
            error = await killed(one, await one.pid.call_one())
            assert error.failure.incarnation == life - 1
            assert await mortals.ready() is mortals
            assert await one.incarnation.call_one() == life
            # A new object, in a new process; the handle is the old one.
            assert await one.count.call_one() == 0
            assert await one.pid.call_one() not in (pids[0], pids[1])
            await one.echo.call_one("once more")
        states = await procs.states()
        assert [(state.state, state.incarnation) for state in states] == [("up", 0), ("up", 2)]
        assert (await mortals.states())[1].incarnation == 2
        assert await mortals.slice(gpus=0).pid.call_one() == pids[0]


@on_a_loop
async def test_calls_while_it_is_down_fail_at_once_and_say_why():
    async with this_host().spawn_procs(restart=Restart(limit=5, within_s=60, backoff_s=(0.5, 0.5))) as procs:
        mortal = procs.spawn("mortal", Mortal)
        await killed(mortal, await mortal.pid.call_one())
        with pytest.raises(ActorDied) as caught:
            await mortal.echo.call_one(1)
        assert caught.value.failure.signal == 9
        assert not caught.value.maybe_executed
        assert (await procs.states())[0].state == "restarting"
        await procs.ready()
        assert await mortal.echo.call_one(2) == 2


@on_a_loop
async def test_what_waits_goes_to_the_next_incarnation_and_what_may_have_run_does_not():
    async with this_host().spawn_procs(restart=WAITING) as procs:
        mortal = procs.spawn("mortal", Mortal)
        pid = await mortal.pid.call_one()
        running = mortal.sleep.call_one(60)
        queued = [mortal.echo.call_one(number) for number in range(200)]
        mortal.note.broadcast("sent before")
        await asyncio.sleep(0)  # they leave at the end of this turn
        wait_until_idle(pid)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ActorDied) as caught:
            await running
        assert caught.value.maybe_executed
        mortal.note.broadcast("sent while it was down")
        while_down = mortal.notes.call_one()
        assert await asyncio.gather(*queued) == list(range(200))
        assert await while_down == ["sent before", "sent while it was down"]
        assert await mortal.incarnation.call_one() == 1
        assert await mortal.count.call_one() == 200


@on_a_loop
async def test_past_the_limit_the_failure_climbs_with_what_came_before():
    heard = asyncio.Queue()

    async def supervise(failure):
        heard.put_nowait(failure)
        return True

    policy = Restart(limit=2, within_s=60, backoff_s=(0.01, 0.01))
    async with this_host().spawn_procs(name="workers", restart=policy, supervise=supervise) as procs:
        mortal = procs.spawn("mortal", Mortal)
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGABRT):
            await killed(mortal, await mortal.pid.call_one(), number)
            if number != signal.SIGABRT:
                await mortal.ready()
        with pytest.raises(ActorDied) as caught:
            await procs.ready()
        failure = await heard.get()
        assert heard.empty()
        assert caught.value.failure is failure
        assert (failure.signal, failure.incarnation) == (signal.SIGABRT, 2)
        assert [(past.signal, past.incarnation) for past in failure.reasons] == [(15, 0), (9, 1)]
        assert "before that, restarted after:" in str(failure)
        assert (await procs.states())[0].state == "failed"
        assert (await mortal.states())[0].state == "failed"
        with pytest.raises(ActorDied):
            await mortal.echo.call_one(1)


@on_a_loop
async def test_pauses_grow():
    policy = Restart(limit=4, within_s=60, backoff_s=(0.05, 10))
    async with this_host().spawn_procs(restart=policy, supervise=handled) as procs:
        mortal = procs.spawn("mortal", Mortal)
        events = procs.events()
        for _ in range(3):
            await killed(mortal, await mortal.pid.call_one())
            await mortal.ready()
        await procs.stop()
        told = [event async for event in events if event.mesh == "procs" and event.kind in ("failed", "recovered")]
        assert [event.kind for event in told] == ["failed", "recovered"] * 3, told
        pauses = [
            (recovered.at - failed.at).total_seconds() for failed, recovered in zip(told[::2], told[1::2], strict=True)
        ]
        assert pauses[0] >= 0.04
        assert pauses[1] >= 0.08
        assert pauses[2] >= 0.16


@on_a_loop
async def test_env_start_and_bind_are_asked_again_at_each_restart():
    asked = []

    def env(point, incarnation):
        asked.append(("env", dict(point), incarnation))
        return {"LIFE": f"{point['gpus']}/{incarnation}"}

    def start(point, incarnation):
        asked.append(("start", dict(point), incarnation))
        return "exec" if incarnation else "template"

    async with this_host().spawn_procs({"gpus": 2}, env=env, start=start, restart=QUICK) as procs:
        mortals = procs.spawn("mortals", Mortal)
        assert list(await mortals.variable.call("LIFE")) == ["0/0", "1/0"]
        one = mortals.slice(gpus=1)
        await killed(one, await one.pid.call_one())
        await mortals.ready()
        assert list(await mortals.variable.call("LIFE")) == ["0/0", "1/1"]
    assert [one for one in asked if one[2] == 1] == [("env", {"gpus": 1}, 1), ("start", {"gpus": 1}, 1)]


@on_a_loop
async def test_a_function_that_raises_at_a_restart_is_a_failure_to_start():
    def env(_point, incarnation):
        if incarnation:
            raise LookupError("no second life for you")
        return {}

    policy = Restart(limit=1, within_s=60, backoff_s=(0.01, 0.01))
    async with this_host().spawn_procs(env=env, restart=policy, supervise=handled) as procs:
        mortal = procs.spawn("mortal", Mortal)
        await killed(mortal, await mortal.pid.call_one())
        with pytest.raises(ActorDied) as caught:
            await procs.ready()
        assert caught.value.failure.kind == "start"
        assert "no second life for you" in str(caught.value)


@pytest.mark.parametrize(("scope", "restarted"), [("one", [0, 1, 0]), ("all", [1, 1, 1]), ("rest", [0, 1, 1])])
@on_a_loop
async def test_the_scope_says_who_restarts_together(scope, restarted):
    policy = Restart(limit=5, within_s=60, backoff_s=(0.01, 0.01), scope=scope)
    async with this_host().spawn_procs({"gpus": 3}, restart=policy) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        events = procs.events()
        await killed(mortals.slice(gpus=1), pids[1])
        left = sum(restarted)
        async for event in events:
            left -= event.kind == "recovered" and event.mesh == "mortals"
            if not left:
                break
        assert list(await mortals.incarnation.call()) == restarted


@on_a_loop
async def test_restart_on_request_is_no_failure():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        await procs.slice(gpus=0).restart("because")
        await mortals.ready()
        assert list(await mortals.incarnation.call()) == [1, 0]
        assert (await mortals.pid.call())[1] == pids[1]


@on_a_loop
async def test_a_failed_rank_may_be_restarted_from_its_hook():
    async def supervise(failure):
        procs.restart(f"again, after {failure.signal}")
        return True

    procs = this_host().spawn_procs(supervise=supervise)
    async with procs:
        mortal = procs.spawn("mortal", Mortal)
        events = mortal.events()
        await killed(mortal, await mortal.pid.call_one())
        await next_of(events, "recovered")
        assert await mortal.incarnation.call_one() == 1


@on_a_loop
async def test_actors_of_a_failed_rank_that_is_restarted_are_waited_for_and_stopped_like_others():
    restarted = asyncio.Event()

    async def supervise(failure):
        await procs.slice(**failure.point).restart("its owner wants it back")
        restarted.set()
        return True

    procs = this_host().spawn_procs({"gpus": 2}, supervise=supervise)
    async with procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        for life in range(1, 6):
            await killed(mortals.slice(gpus=1), pids[1])
            await restarted.wait()
            restarted.clear()
            # The process is up, its actor may not be yet: neither is what it was before.
            assert await mortals.ready() == mortals
            pids = await mortals.pid.call()
            assert list(await mortals.incarnation.call()) == [0, life]
        await killed(mortals.slice(gpus=1), pids[1])
        await restarted.wait()
        async with asyncio.timeout(3):  # less than the grace
            await mortals.stop()


@on_a_loop
async def test_when_always_restarts_after_an_exit_in_order():
    policy = Restart(limit=5, within_s=60, backoff_s=(0.01, 0.01), when="always")
    async with this_host().spawn_procs(restart=policy) as procs:
        mortal = procs.spawn("mortal", Mortal)
        with pytest.raises(ActorDied) as caught:
            await mortal.exit.call_one(0)
        assert caught.value.failure.exit_code == 0
        await mortal.ready()
        assert await mortal.incarnation.call_one() == 1


@on_a_loop
async def test_a_peer_that_does_not_own_the_restarted_reaches_it_again():
    async with this_host().spawn_procs({"gpus": 2}, restart=QUICK) as procs:
        mortals = procs.spawn("mortals", Mortal)
        one, other = mortals
        assert await one.relay.call_one(other, "echo", 1) == 1
        await killed(other, await other.pid.call_one())
        await mortals.ready()
        assert await one.relay.call_one(other, "incarnation") == 1
        with pytest.raises(ValueError, match="boom"):
            await one.relay.call_one(other, "boom")
