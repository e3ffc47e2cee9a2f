"""Many actors in one proc: made together, handled by few tasks, and each still alone."""

import asyncio
import os

import pytest
from crowd import Marking, One
from loops import on_a_loop
from mortal import Mortal

from roost import Restart, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")


@on_a_loop
async def test_a_thousand_spawned_one_by_one_come_back_with_their_proc():
    async with this_host().spawn_procs(restart=Restart(limit=3, within_s=60)) as procs:
        mortal = procs.spawn("mortal", Mortal)
        crowd = [procs.spawn(f"one{number}", One, number) for number in range(1000)]
        answers = await asyncio.gather(*(one.which.call_one() for one in crowd))
        assert answers == [(number, 0, True) for number in range(1000)]
        recovered = procs.events()
        os.kill(await mortal.pid.call_one(), 9)
        async for event in recovered:
            if event.kind == "recovered" and event.name == "one999":
                break
        answers = await asyncio.gather(*(one.which.call_one() for one in crowd))
        assert answers == [(number, 1, True) for number in range(1000)]


class Counted(list):
    """The states of a mesh's ranks, and how often one was looked at."""

    looks = 0

    def __getitem__(self, place):
        self.looks += 1
        return super().__getitem__(place)

    def __iter__(self):
        for one in super().__iter__():
            self.looks += 1
            yield one


@on_a_loop
async def test_the_owner_looks_at_each_of_many_a_few_times():
    """Once for each change of any other, the stop of 10,000 took more than a minute."""
    async with this_host().spawn_procs({"cpus": 2}) as procs:
        many = procs.options(per_proc={"n": 500}).spawn("many", One)
        record = many._record()
        states = record._states = Counted(record._states)
        ended = many.wait()
        await many
        await many.stop()
        assert {state.state for state in (await ended).values()} == {"stopped"}
        assert record._states is states
        assert 1000 < states.looks < 30 * 1000


@on_a_loop
async def test_what_one_leaves_in_its_context_reaches_no_other():
    async with this_host().spawn_procs() as procs:
        first, second = procs.spawn("first", One), procs.spawn("second", One)
        await first.leave_mark.call_one("mine")
        assert await second.find_mark.call_one() == "none"
        assert await first.find_mark.call_one() == "none"
        marking = procs.spawn("marking", Marking)
        assert await marking.find_mark.call_one() == "none"
        assert await second.find_mark.call_one() == "none"


@on_a_loop
async def test_one_that_waits_holds_up_nobody():
    async with this_host().spawn_procs() as procs:
        waiting = procs.options(per_proc={"n": 200}).spawn("waiting", One)
        replies = waiting.linger.call(0.2)
        quick = procs.spawn("quick", One)
        assert await quick.which.call_one() == (0, 0, True)
        assert not replies.done()
        assert list(await replies) == [True] * 200
        # And the tasks that waited are as good as new.
        assert list(await waiting.linger.call(0.01)) == [True] * 200


@on_a_loop
async def test_two_that_never_wait_leave_the_loop_its_turns():
    async with this_host().spawn_procs() as procs:
        first, second = procs.spawn("first", One), procs.spawn("second", One)
        await asyncio.gather(first.which.call_one(), second.which.call_one())
        first.play.broadcast(second)
        async with asyncio.timeout(20):
            while await second.count.call_one() < 1000:
                pass
