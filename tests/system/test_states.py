"""`states()`: how each rank is, and what it does at this moment."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from loops import in_the_job
from working import Worker, heard, let_go

from roost import Actor, endpoint, this_host, this_proc


class Guest(Actor):
    """Owns a mesh on procs that another owns."""

    @endpoint
    async def states_of(self, procs):
        mesh = await procs.spawn("guests", Worker)
        states = await mesh.states()
        await mesh.stop()
        return [state.pid for state in states]


async def seen(mesh, is_so):
    """The states as soon as they are so: messages are on their way, and a busy machine answers late."""
    async with asyncio.timeout(20):
        while not is_so(states := await mesh.states()):
            pass
    return states


@in_the_job
async def test_an_idle_actor_does_nothing(procs, workers):
    await workers.add.call(1)
    states = await workers.states()
    assert [(state.state, state.running, state.queued) for state in states] == [("up", (), 0)] * 3
    assert [state.pid for state in states] == [state.pid for state in await procs.states()]
    assert None not in [state.pid for state in states]


@in_the_job
async def test_what_runs_and_what_waits_is_told_with_its_time(workers, gate):
    first, second, _ = workers
    before = datetime.now(UTC) - timedelta(seconds=0.1)
    held = first.hold.call_one(gate, "one")
    queued = [first.add.call_one(1) for _ in range(5)]
    beside = second.hold_beside.call_one(gate, "two")
    await heard("one began")
    await heard("two began")
    one, two, idle = await seen(workers, lambda states: states[0].queued == 5 and states[1].running)
    (name, since), *none = one.running
    assert (name, none, one.queued) == ("hold", [], 5)
    assert before <= since <= datetime.now(UTC)
    assert [name for name, _ in two.running] == ["hold_beside"]
    assert (idle.running, idle.queued) == ((), 0)
    let_go("one")
    let_go("two")
    await held
    await beside
    assert [await reply for reply in queued] == [11] * 5
    await seen(workers, lambda states: [(state.running, state.queued) for state in states] == [((), 0)] * 3)


@in_the_job
async def test_also_while_the_loop_there_stands_still(worker, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stuck = worker.make.call_one(Path.read_text, fifo)
    (state,) = await seen(worker, lambda states: states[0].running)
    assert not stuck.done()
    assert [name for name, _ in state.running] == ["make"]
    fifo.write_text("go on")
    assert await stuck == "go on"


@in_the_job
async def test_in_this_process_and_after_the_end(gate):
    here = await this_proc().spawn("here", Worker)
    held = here.hold.call_one(gate, "here")
    await heard("here began")
    (state,) = await here.states()
    assert ([name for name, _ in state.running], state.pid) == (["hold"], os.getpid())
    let_go("here")
    await held
    await here.stop("done")
    (state,) = await here.states()
    assert (state.state, state.reason, state.running, state.queued, state.pid) == ("stopped", "done", (), 0, None)


@in_the_job
async def test_on_procs_that_another_owns(procs, worker):
    async with this_host().spawn_procs() as other:
        guest = other.spawn("guest", Guest)
        assert await guest.states_of.call_one(procs) == [state.pid for state in await procs.states()]
