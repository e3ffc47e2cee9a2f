"""Actors with a policy of their own: constructed anew in the process that lives on."""

import asyncio
from pathlib import Path

import pytest
from loops import handled, on_a_loop
from mortal import Mortal

from roost import Actor, ActorDied, Restart, endpoint, this_host, this_proc
from roost.errors import StoppedError

pytestmark = pytest.mark.usefixtures("nothing_left")

QUICK = Restart(limit=3, within_s=60, backoff_s=(0.01, 0.05))
WAITING = Restart(limit=3, within_s=60, backoff_s=(0.01, 0.05), while_down="wait")


class Late(Actor):
    def __init__(self, marker):
        if not Path(marker).exists():
            Path(marker).touch()
            raise OSError("not yet")

    @endpoint
    async def tries(self):
        return "made"


async def until(events, kind):
    async for event in events:
        if event.kind == kind:
            return event
    raise AssertionError(f"no {kind}")


@on_a_loop
async def test_an_actor_that_fails_is_constructed_anew():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        mortals = procs.options(restart=QUICK).spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        one = mortals.slice(gpus=1)
        await one.echo.call_one(1)
        events = one.events()
        one.boom.broadcast("nobody waits for this")
        failed = await until(events, "failed")
        assert "nobody waits for this" in failed.reason
        assert (await until(events, "recovered")).incarnation == 1
        assert list(await mortals.incarnation.call()) == [0, 1]
        assert await one.count.call_one() == 0
        assert list(await mortals.pid.call()) == list(pids)


@on_a_loop
async def test_what_waits_in_the_mailbox_goes_to_the_next_life():
    async with this_host().spawn_procs() as procs:
        mortal = procs.options(restart=WAITING).spawn("mortal", Mortal)
        await mortal
        mortal.boom.broadcast()
        replies = [mortal.incarnation.call_one() for _ in range(10)]
        assert await asyncio.gather(*replies) == [1] * 10


@on_a_loop
async def test_past_its_limit_an_actor_fails_with_what_came_before():
    heard = asyncio.Queue()

    async def supervise(failure):
        heard.put_nowait(failure)
        return True

    async with this_host().spawn_procs() as procs:
        mortal = procs.options(restart=QUICK, supervise=supervise).spawn("mortal", Mortal)
        events = mortal.events()
        for life in range(4):
            mortal.boom.broadcast(f"life {life}")
            await until(events, "recovered" if life < 3 else "failed")
        with pytest.raises(ActorDied) as caught:
            await mortal.ready()
        failure = await heard.get()
        assert heard.empty()
        assert caught.value.failure is failure
        assert (failure.kind, failure.mesh, failure.incarnation) == ("error", "mortal", 3)
        assert [past.incarnation for past in failure.reasons] == [0, 1, 2]
        assert isinstance(caught.value.__cause__, ValueError)
        assert "life 3" in failure.traceback


@on_a_loop
async def test_a_constructor_that_raises_at_first_is_tried_again(tmp_path):
    marker = tmp_path / "second time"
    async with this_host().spawn_procs() as procs:
        mortal = procs.options(restart=QUICK).spawn("late", Late, str(marker))
        await mortal
        assert await mortal.tries.call_one() == "made"


@on_a_loop
async def test_a_policy_on_procs_does_not_catch_a_constructors_error():
    async with this_host().spawn_procs(restart=QUICK) as procs:
        mortal = procs.options(supervise=handled).spawn("mortal", Mortal, "raise")
        with pytest.raises(ActorDied) as caught:
            await mortal.ready()
        assert caught.value.failure.kind == "error"
        assert (await procs.states())[0].incarnation == 0


@on_a_loop
async def test_a_restart_on_request_and_a_stop_of_an_actor_that_waits_for_its_next_life():
    mortal = this_proc().options(restart=Restart(limit=3, within_s=60, backoff_s=(5, 5))).spawn("mortal", Mortal)
    await mortal.restart("because")
    assert await mortal.incarnation.call_one() == 1
    events = mortal.events()
    mortal.boom.broadcast()
    await until(events, "restarting")
    await mortal.stop("no more")
    with pytest.raises(StoppedError, match="no more"):
        mortal.echo.call_one(1)
