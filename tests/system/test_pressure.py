"""Full sockets, full mailboxes, peers that send rubbish: nobody sticks, and nothing is changed on its way."""

import asyncio

import numpy as np
import pytest
from loops import handled, on_a_loop
from pressed import Pressed

from roost import ActorDied, MeshError, this_host
from roost._roost import Done
from roost.errors import MailboxFullError, RemoteError

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("size", [200_000, 2 << 20])
@on_a_loop
async def test_what_waits_for_a_full_socket_is_not_changed_any_more(size):
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        pressed = procs.spawn("pressed", Pressed)
        await pressed.pid.call()
        one, array = pressed.slice(ranks=0), np.zeros(size, np.uint8)
        blocked = one.block.call_one(1.0)
        replies = []
        for number in range(20):
            array[:] = number
            replies.append(one.values.call_one(array))
            # Some of them leave at once, the socket is full then.
            await asyncio.sleep(0)
        array[:] = 99
        await blocked
        assert [await reply for reply in replies] == [(number, number) for number in range(20)]


@on_a_loop
async def test_two_that_flood_each_other_both_get_through():
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        first, second = procs.spawn("pressed", Pressed)
        count, size = 150, 300_000
        sums = await asyncio.gather(
            first.flood.call_one(second, count, size), second.flood.call_one(first, count, size)
        )
        assert sums == [count * size] * 2


@on_a_loop
async def test_a_window_of_ten_thousand_runs():
    async with this_host().spawn_procs() as procs:
        pressed = procs.spawn("pressed", Pressed)
        replies = [pressed.keep.call_one(number) for number in range(10_000)]
        assert await asyncio.gather(*replies) == list(range(10_000))
        assert await pressed.kept.call_one() == list(range(10_000))


@on_a_loop
async def test_an_idle_actor_beside_a_full_one_is_not_refused():
    async with this_host().spawn_procs({"ranks": 1}) as procs:
        both = procs.options(per_proc={"twins": 2}).spawn("pressed", Pressed)
        full, idle = both.slice(twins=0), both.slice(twins=1)
        await both.pid.call()
        resting = full.rest.call_one()
        sent = []
        with pytest.raises(MailboxFullError):
            while True:
                sent.append(full.keep.call_one(len(sent)))
                assert len(sent) < 200_000
        assert await idle.keep.call_one(1) == 1
        with pytest.raises(MailboxFullError):
            both.keep.broadcast(-1)
        resting.cancel()
        assert await asyncio.gather(*sent) == list(range(len(sent)))
        assert await idle.kept.call_one() == [1]


@on_a_loop
async def test_beyond_the_bound_the_verb_raises_and_nobody_got_it():
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        pressed = procs.spawn("pressed", Pressed)
        first = pressed.slice(ranks=0)
        await pressed.pid.call()
        blocked = first.block.call_one(2.0)
        sent = []
        with pytest.raises(MailboxFullError, match="too many messages wait"):
            while True:
                sent.append(first.keep.call_one(len(sent)))
                assert len(sent) < 200_000
        refused_broadcast = False
        try:
            pressed.keep.broadcast(-1)
        except MailboxFullError:
            refused_broadcast = True
        assert refused_broadcast
        await blocked
        # All that was taken runs, in order; what was refused reached no rank; and there is room again.
        assert await asyncio.gather(*sent) == list(range(len(sent)))
        assert await pressed.slice(ranks=1).kept.call_one() == []
        await pressed.keep.call(-2)
        assert (await first.kept.call_one())[-2:] == [len(sent) - 1, -2]


@on_a_loop
async def test_a_thread_that_waits_for_its_broadcasts_waits_for_room():
    async with this_host().spawn_procs() as procs:
        pressed = procs.spawn("pressed", Pressed)
        await pressed.pid.call_one()
        resting = pressed.rest.call_one()
        count = 0
        while isinstance(pressed.keep.broadcast(count), Done):
            count += 1
        waiting = [await asyncio.to_thread(pressed.keep.broadcast, -number) for number in (1, 2)]
        assert not any(one.done() for one in waiting)
        resting.cancel()
        await asyncio.to_thread(lambda: [one.result(60) for one in waiting])
        assert await pressed.kept.call_one() == [*range(count + 1), -1, -2]
        # Where there is room nobody waits.
        await asyncio.to_thread(lambda: pressed.keep.broadcast(0).result(60))


@pytest.mark.parametrize("how", ["cancel", "cancel and wait", "raise"])
@on_a_loop
async def test_an_endpoint_that_spoils_its_task_does_not_hurt_the_next(how):
    async with this_host().spawn_procs() as procs:
        pressed = procs.spawn("pressed", Pressed)
        spoilt = pressed.spoil_task.call_one(how)
        after = [pressed.keep.call_one(number) for number in range(5)]
        if how == "cancel":
            assert await spoilt == how
        else:
            with pytest.raises(RemoteError, match="CancelledError"):
                await spoilt
        assert await asyncio.gather(*after) == list(range(5))


@on_a_loop
async def test_a_call_and_its_cancel_that_are_read_together_start_nothing():
    async with this_host().spawn_procs() as procs:
        blocking, idle = procs.spawn("blocking", Pressed), procs.spawn("idle", Pressed)
        await asyncio.gather(blocking.pid.call_one(), idle.pid.call_one())
        blocked = blocking.block.call_one(0.5)
        await asyncio.sleep(0.1)
        # Their loop stands still, so all of this is there when it goes on; the actor itself has nothing to do.
        for number in range(50):
            idle.keep.call_one(number).cancel()
        await idle.keep.call_one(50)
        await blocked
        assert await idle.kept.call_one() == [50]


@on_a_loop
async def test_a_proc_that_sends_what_is_no_frame_is_ended_and_its_owner_hears_why():
    async with this_host().spawn_procs({"ranks": 2}, supervise=handled) as procs:
        pressed = procs.spawn("pressed", Pressed)
        await pressed.pid.call()
        with pytest.raises(ActorDied, match="connection is broken"):
            await pressed.slice(ranks=0).write_rubbish.call_one()
        assert await pressed.slice(ranks=1).keep.call_one(1) == 1
        with pytest.raises(MeshError):
            await pressed.pid.call()
