"""A proc whose event loop stands still is stalled, and not dead: an event says where it is stuck."""

import os
import signal

import pytest
from loops import next_of
from mortal import Mortal

from roost import Config, run, this_host

STALL_S = 0.6


def stalled(body, stall_s=STALL_S):
    """Run a program in which a loop that stands still for a moment counts as stalled."""

    async def main():
        async with this_host().spawn_procs({"gpus": 2}) as procs:
            mortals = procs.spawn("mortals", Mortal)
            pids = await mortals.pid.call()
            events = procs.events()
            return await body(procs, mortals, pids, events)

    return run(main(), config=Config(stall_s=stall_s))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("endpoint", ["hold_gil", "block_loop"])
def test_an_event_says_where_it_is_stuck_and_that_it_goes_on(endpoint, caplog):
    async def body(procs, mortals, _pids, events):
        stuck = mortals.slice(gpus=1).call_one(endpoint, 2)
        event = await next_of(events, "stalled", "failed")
        # Nobody else is disturbed, and it is not dead.
        assert await mortals.slice(gpus=0).echo.call_one("hello") == "hello"
        assert [state.state for state in await procs.states()] == ["up", "up"]
        again = await next_of(events, "recovered", "failed")
        assert await stuck in ("held", "blocked")
        return event, again

    event, again = stalled(body)
    assert (event.kind, event.name, event.failure.kind) == ("stalled", "procs[gpus=1]", "stalled")
    assert f"has not moved for {STALL_S:.3f} s" in event.reason
    assert f"in {endpoint}" in event.failure.traceback
    assert (again.kind, again.name) == ("recovered", "procs[gpus=1]")
    warnings = [record.message for record in caplog.records if "is stalled" in record.message]
    assert len(warnings) == 1
    assert f"in {endpoint}" in warnings[0]


@pytest.mark.usefixtures("nothing_left")
def test_one_that_a_signal_has_stopped_is_stalled_too():
    async def body(_procs, mortals, pids, events):
        os.kill(pids[0], signal.SIGSTOP)
        event = await next_of(events, "stalled", "failed")
        waiting = mortals.slice(gpus=0).echo.call_one("late")
        os.kill(pids[0], signal.SIGCONT)
        again = await next_of(events, "recovered", "failed")
        assert await waiting == "late"
        return event, again

    event, again = stalled(body)
    assert (event.kind, event.name) == ("stalled", "procs[gpus=0]")
    assert "SIGSTOP" in event.reason
    assert (again.kind, again.name) == ("recovered", "procs[gpus=0]")


@pytest.mark.usefixtures("nothing_left")
def test_a_thread_that_works_is_no_stall():
    async def body(_procs, mortals, _pids, events):
        assert list(await mortals.block_thread.call(3)) == ["blocked"] * 2
        return events

    events = stalled(body, 1.5)
    assert [event.kind for event in events._events if event.kind == "stalled"] == []
