"""`events()`: what happened to a mesh, in order; and broadcasts that reached nobody."""

import asyncio
import gc
import logging
import os
import signal
import weakref

import pytest
from loops import handled, on_a_loop
from mortal import Mortal

from roost import ActorDied, Config, Restart, context, run, this_host, this_proc

pytestmark = pytest.mark.usefixtures("nothing_left")

QUICK = Restart(limit=1, within_s=60, backoff_s=(0.01, 0.01))


async def killed(mesh, pid):
    pending = mesh.sleep.call_one(60)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorDied):
        await pending


@on_a_loop
async def test_the_whole_story_of_a_mesh_in_order():
    procs = this_host().spawn_procs({"gpus": 2}, name="workers", restart=QUICK, supervise=handled)
    of_procs = procs.events()
    mortals = procs.spawn("mortals", Mortal)
    of_actors, of_job = mortals.events(), context().job.events()
    one = mortals.slice(gpus=1)
    await mortals
    for _ in range(2):
        await killed(one, await one.pid.call_one())
        if (await procs.states())[1].state != "failed":
            await procs.ready()
            await mortals.ready()
    await procs.stop("the story ends")
    told = [event async for event in of_procs]
    story = ["started", "failed", "restarting", "recovered", "failed", "escalated"]
    assert [event.kind for event in told if event.name == "workers[gpus=1]"][:5] == story[:5]
    assert [event.kind for event in told if event.name == "mortals[gpus=1]"] == story[:5]
    assert [event.kind for event in told if event.name == "workers[gpus=0]"] == ["started", "stopped"]
    assert [event.kind for event in told if event.name == "mortals[gpus=0]"] == ["started", "stopped"]
    assert [event.at for event in told] == sorted(event.at for event in told)
    assert all(event.at.tzinfo is not None for event in told)
    failed = next(event for event in told if event.kind == "failed")
    assert failed.failure.signal == 9
    assert next(event for event in told if event.kind == "stopped").reason == "the story ends"
    recovered = next(event for event in told if event.kind == "recovered" and event.mesh == "workers")
    assert (recovered.incarnation, dict(recovered.point)) == (1, {"gpus": 1})
    # An actor mesh's stream has its own ranks alone; the job's has everything.
    assert {event.mesh async for event in of_actors} == {"mortals"}
    assert {"mortals", "workers"} <= {of_job._events[at].mesh for at in range(len(of_job._events))}


@on_a_loop
async def test_a_stream_tells_of_what_happens_after_its_call_and_of_its_slice():
    async with this_host().spawn_procs({"gpus": 2}, supervise=handled) as procs:
        mortals = procs.spawn("mortals", Mortal)
        await mortals
        events = procs.slice(gpus=0).events()
        pids = await mortals.pid.call()
        await killed(mortals.slice(gpus=1), pids[1])
        await killed(mortals.slice(gpus=0), pids[0])
    assert {event.name async for event in events} == {"procs[gpus=0]", "mortals[gpus=0]"}


@on_a_loop
async def test_a_stream_that_is_let_go_is_not_kept():
    async with this_host().spawn_procs() as procs:
        mortal = procs.spawn("mortal", Mortal)
        streams = [one.events() for one in (procs, mortal, context().job) for _ in range(10)]
        streams += [mortal.events()]
        references = [weakref.ref(one) for one in streams[:-1]]
        kept = streams.pop()
        streams.clear()
        gc.collect()
        assert not any(reference() for reference in references)
        await mortal.ready()
        assert (await anext(kept)).kind == "started"


def test_a_slow_reader_finds_a_gap():
    async def main():
        mortal = this_proc().options(supervise=handled).spawn("mortal", Mortal)
        await mortal
        events = mortal.events()
        await mortal.stop()
        for number in range(10):
            context().job._runtime.owned[mortal._id].tell("waiting", 0, str(number))
        return [event async for event in events]

    told = run(main(), config=Config(events_max=4))
    assert told[0].kind in ("stopped", "gap")
    assert len(told) <= 4


@on_a_loop
async def test_a_broadcast_to_the_dead_is_a_dead_letter_and_never_raises(caplog):
    async with this_host().spawn_procs({"gpus": 2}, name="workers", supervise=handled) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        await killed(mortals.slice(gpus=1), pids[1])
        events = mortals.events()
        with caplog.at_level(logging.WARNING, logger="roost.dead_letters"):
            await mortals.note.broadcast("are you there?")
        (letter,) = context().job.dead_letters
        assert (letter.sender, letter.target, letter.endpoint) == ("driver", "mortals[gpus=1]", "note")
        assert dict(letter.point) == {"gpus": 1}
        assert letter.failure.signal == 9
        assert "SIGKILL" in letter.reason
        assert [record.getMessage() for record in caplog.records if record.name == "roost.dead_letters"] == [
            str(letter)
        ]
        event = await anext(events)
        assert (event.kind, event.mesh, event.name, event.failure) == (
            "dead_letter",
            "mortals",
            "mortals[gpus=1]",
            letter.failure,
        )
        assert await mortals.slice(gpus=0).notes.call_one() == ["are you there?"]


@on_a_loop
async def test_a_broadcast_in_a_dead_mailbox_is_a_dead_letter_too():
    async with this_host().spawn_procs(supervise=handled) as procs:
        mortal = procs.spawn("mortal", Mortal)
        pid = await mortal.pid.call_one()
        running = mortal.sleep.call_one(60)
        for number in range(20):
            mortal.note.broadcast(number)
        await asyncio.sleep(0.2)  # they have been read, and are acknowledged with the next message
        other = procs.spawn("other", Mortal)
        await other
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ActorDied):
            await running
        letters = context().job.dead_letters
        assert [letter.endpoint for letter in letters] == ["note"] * 20
        assert {letter.target for letter in letters} == {"mortal"}


@on_a_loop
async def test_a_broadcast_that_was_taken_does_not_come_back_when_its_quiet_proc_dies():
    async with this_host().spawn_procs(supervise=handled) as procs:
        # Two actors: what a lone one has started is known from its proc's own page.
        mortals = procs.options(per_proc={"actor": 2}).spawn("mortals", Mortal)
        one = mortals.slice(actor=0)
        pid = await one.pid.call_one()
        for number in range(20):
            one.note.broadcast(number)
        # Its loop goes on meanwhile, and says what was taken before it answers.
        await one.sleep.call_one(0.1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ActorDied):
            await one.sleep.call_one(60)
        assert list(context().job.dead_letters) == []


@on_a_loop
async def test_a_broadcast_to_an_actor_that_failed_or_stopped_comes_back_to_its_sender():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        mortals = procs.options(supervise=handled).spawn("mortals", Mortal)
        one, other = mortals
        await mortals
        other.boom.broadcast("now it has failed")
        assert (await other.wait())[0].state == "failed"
        # Sent by an actor, which is told: the driver's letters are its own.
        assert await one.tell.call_one(other, "note", "hello") is None
        assert await one.letters.call_one(1) == [("procs[gpus=0]", "mortals[gpus=1]", "note")]
        other.note.broadcast("hello")
        while not context().job.dead_letters:
            await asyncio.sleep(0.01)
        (letter,) = context().job.dead_letters
        assert letter.failure.kind == "error"
        assert "now it has failed" in letter.reason


@on_a_loop
async def test_a_broadcast_that_does_not_load_is_a_dead_letter():
    async with this_host().spawn_procs() as procs:
        mortal = procs.spawn("mortal", Mortal)
        await mortal
        mortal.note.broadcast(Poison())
        while not context().job.dead_letters:
            await asyncio.sleep(0.01)
        (letter,) = context().job.dead_letters
        assert (letter.target, letter.endpoint) == ("mortal", "note")
        assert "poison" in letter.reason
        assert await mortal.echo.call_one(1) == 1


def _poisoned():
    raise ValueError("poison")


class Poison:
    def __reduce__(self):
        return _poisoned, ()
