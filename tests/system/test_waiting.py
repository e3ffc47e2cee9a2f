"""A message that waits long behind a busy endpoint is an event that names what runs."""

import asyncio

import pytest
from loops import next_of
from mortal import Mortal

from roost import Config, run, this_host

WAITS_S = 0.4


@pytest.mark.usefixtures("nothing_left")
def test_an_event_names_what_runs_and_since_when():
    async def main():
        async with this_host().spawn_procs({"gpus": 2}) as procs:
            mortals = procs.spawn("mortals", Mortal)
            await mortals.pid.call()
            events = mortals.events()
            slow = mortals.slice(gpus=1)
            busy = slow.sleep.call_one(60)
            waiting = [slow.echo.call_one(number) for number in range(3)]
            event = await next_of(events, "waiting", "failed")
            # Once for each that waits in front, and not again.
            busy.cancel()
            assert await asyncio.gather(*waiting) == [0, 1, 2]
            more = [event.kind for event in events._events]
            return event, more

    event, more = run(main(), config=Config(queue_warning_s=WAITS_S))
    assert (event.kind, event.name) == ("waiting", "mortals[gpus=1]")
    assert event.reason.startswith("echo has waited for ")
    assert " behind sleep, which runs since " in event.reason
    assert event.reason.endswith(", with 2 more behind it")
    assert more == []


@pytest.mark.usefixtures("nothing_left")
def test_a_queue_that_moves_is_none():
    async def main():
        async with this_host().spawn_procs() as procs:
            mortals = procs.spawn("mortals", Mortal)
            await mortals.pid.call()
            events = mortals.events()
            # There is always one that waits, and never the same.
            replies = [mortals.sleep.call_one(0.05) for _ in range(30)]
            await asyncio.gather(*replies)
            return [event.kind for event in events._events]

    assert run(main(), config=Config(queue_warning_s=WAITS_S)) == []
