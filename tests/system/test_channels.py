"""Channels: values outside calls, between any two procs, with back-pressure, and with the death of either end."""

import asyncio
import gc
import os
import signal
import threading

import numpy as np
import pytest
from loops import handled, in_the_job
from travelling import NeverPickles, NeverUnpickles
from working import Worker

import roost.process
from roost import ActorDied, Channel, Port, this_host
from roost.errors import StoppedError

pytestmark = pytest.mark.usefixtures("job")


def all_ends():
    """What this process keeps of the channels that it sends to."""
    return list(roost.process.running().ports._senders.values())


def all_ends_shown():
    return [(end._proc, end._port) for end in all_ends()]


def open_ends():
    return sum(end.ended is None for end in all_ends())


class TestValues:
    @in_the_job
    async def test_from_a_worker_to_the_driver_in_order(self, worker):
        port, receiver = Channel.open()
        sending = worker.send_many.call_one(port, 500)
        assert [number async for number in receiver] == list(range(500))
        await sending

    @in_the_job
    async def test_within_the_driver(self):
        port, receiver = Channel[str].open()
        await port.send("a")
        await port.error(KeyError("b"))
        await port.close()
        assert await receiver.recv() == "a"
        with pytest.raises(KeyError):
            await receiver.recv()
        assert [one async for one in receiver] == []

    @in_the_job
    async def test_between_two_workers_that_never_talked(self, workers):
        first, second, third = workers
        port = await first.open_channel.call_one(senders=2)
        assert isinstance(port, Port)
        # Sent on from the driver to the second, and by that to the third.
        await second.send_to.call_one(port, "from the second")
        await second.pass_on.call_one(port, third, "send_to", "from the third")
        await second.close_port.call_one(port)
        await second.pass_on.call_one(port, third, "close_port")
        assert sorted(await first.take_all.call_one()) == ["from the second", "from the third"]

    @in_the_job
    async def test_who_has_closed_a_channel_keeps_nothing_of_it_when_its_receiver_has_ended(self, worker):
        for _ in range(20):
            port, receiver = Channel.open()
            await worker.send_many.call_one(port, 3)
            assert [number async for number in receiver] == [0, 1, 2]
            receiver.close()
        # What is said of the last goes ahead of this.
        assert await worker.make.call_one(open_ends) == 0

    @in_the_job
    async def test_who_has_answered_a_call_for_another_keeps_nothing_of_its_port(self, workers):
        first, second, third = workers
        before = len(await second.make.call_one(all_ends_shown)), len(await third.make.call_one(all_ends_shown))
        for number in range(20):
            assert await first.answer_by_another.call_one(second, "send_to", number) == number
            assert await first.answer_by_another.call_one(second, "pass_on", third, "send_to", number) == number
            answers = first.answer_by_another.stream(second, "send_many", 3)
            assert [one async for _, one in answers] == [0, 1, 2]
        # What the first says of the last goes ahead of this.
        for other in (second, third):
            await first.ask_from_a_thread.call_one(other, 0)
        after = len(await second.make.call_one(all_ends_shown)), len(await third.make.call_one(all_ends_shown))
        assert after == before

    @in_the_job
    async def test_of_channels_that_ended_long_ago_nothing_is_kept(self):
        for _ in range(1100):
            port, receiver = Channel.open()
            await port.send(1)
            assert await receiver.recv() == 1
            receiver.close()
            with pytest.raises(StoppedError):
                await port.send(2)
        assert len(all_ends()) <= 1000

    @in_the_job
    async def test_what_is_sent_before_there_is_a_connection_waits_for_it(self):
        async with this_host().spawn_procs({"gpus": 2}) as procs:
            first, second = procs.spawn("workers", Worker)
            port = await first.open_channel.call_one(limit=1000)
            # The second has no connection to the first yet: this asks for one, and all of it waits.
            assert await second.send_all.call_one(port, 100) == 100
            await second.close_port.call_one(port)
            assert await first.take_all.call_one() == list(range(100))

    @in_the_job
    async def test_it_ends_when_every_sender_has_closed(self, workers):
        port, receiver = Channel.open(senders=3)
        reply = workers.send_many.call(port, 20)
        got = [number async for number in receiver]
        assert sorted(got) == sorted([*range(20)] * 3)
        await reply

    @in_the_job
    async def test_large_values_are_private(self, worker):
        port, receiver = Channel.open()
        array = np.arange(1 << 19)
        await port.send(array)
        array[:] = 0
        got = await receiver.recv()
        assert (got == np.arange(1 << 19)).all()
        got[0] = 7
        await worker.send_to.call_one(port, got, 2, got)
        first, two, second = [await receiver.recv() for _ in range(3)]
        assert two == 2
        assert first[0] == second[0] == 7
        first[0] = 8
        assert second[0] == 7

    @in_the_job
    async def test_values_from_threads(self):
        port, receiver = Channel.open(limit=4)

        def send():
            for number in range(50):
                port.send(number).result(10)
            port.close().result(10)

        thread = threading.Thread(target=send)
        thread.start()
        assert [number async for number in receiver] == list(range(50))
        thread.join()

    @in_the_job
    async def test_what_does_not_pickle_is_refused_and_the_next_goes(self):
        port, receiver = Channel.open()
        with pytest.raises((TypeError, RuntimeError), match="this stays here"):
            port.send(NeverPickles())
        await port.send(NeverUnpickles())
        await port.send("fine")
        with pytest.raises(ValueError, match="poison"):
            await receiver.recv()
        assert await receiver.recv() == "fine"

    @in_the_job
    async def test_two_tasks_may_receive(self):
        port, receiver = Channel.open()

        async def take():
            return [number async for number in receiver]

        tasks = [asyncio.create_task(take()) for _ in range(3)]
        for number in range(30):
            await port.send(number)
        await port.close()
        got = await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert sorted(number for taken in got for number in taken) == list(range(30))

    @in_the_job
    async def test_a_receiver_that_gave_up_loses_nothing(self):
        port, receiver = Channel.open()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receiver.recv(), 0.01)
        await port.send("kept")
        assert await receiver.recv() == "kept"


class TestBackPressure:
    @in_the_job
    async def test_a_sender_waits_for_room(self, worker):
        port, receiver = Channel.open(limit=4)
        assert await worker.send_all.call_one(port, 20) == 4
        waiting = worker.sent_all.call_one()
        got = [await receiver.recv() for _ in range(20)]
        assert got == list(range(20))
        assert await waiting == ["NoneType"] * 20

    @in_the_job
    async def test_each_sender_has_room_of_its_own(self, workers):
        port, receiver = Channel.open(limit=3, senders=3)
        assert list(await workers.send_all.call(port, 5)) == [3, 3, 3]
        assert sorted([await receiver.recv() for _ in range(15)]) == sorted([*range(5)] * 3)

    @pytest.mark.parametrize(("limit", "senders"), [(0, 1), (-1, 1), (1, 0)])
    @in_the_job
    async def test_bounds_below_one_are_refused(self, limit, senders):
        with pytest.raises(ValueError, match="at least one"):
            Channel.open(limit=limit, senders=senders)


class TestEnds:
    @pytest.mark.parametrize("how", ["closed", "dropped"])
    @in_the_job
    async def test_a_receiver_that_takes_no_more_frees_its_senders(self, worker, how):
        port, receiver = Channel.open(limit=2)
        assert await worker.send_all.call_one(port, 5) == 2
        waiting = worker.sent_all.call_one()
        assert await receiver.recv() == 0
        if how == "closed":
            receiver.close()
        del receiver
        gc.collect()
        results = await asyncio.wait_for(waiting, 10)
        assert results[:3] == ["NoneType"] * 3
        assert results[3:] == ["StoppedError"] * 2
        with pytest.raises(StoppedError, match="receiver is closed"):
            await port.send("too late")

    @in_the_job
    async def test_a_dead_sender_raises_in_the_receiver_which_goes_on(self, worker):
        async with this_host().spawn_procs(supervise=handled) as procs:
            doomed = procs.spawn("doomed", Worker)
            port, receiver = Channel.open(senders=2)
            await doomed.send_to.call_one(port, "last words")
            os.kill((await procs.states())[0].pid, signal.SIGKILL)
            assert await receiver.recv() == "last words"
            with pytest.raises(ActorDied) as caught:
                await receiver.recv()
            assert caught.value.failure.signal == signal.SIGKILL
            await worker.send_many.call_one(port, 1)
            assert [one async for one in receiver] == [0]

    @in_the_job
    async def test_a_dead_receiver_raises_in_send(self, worker):
        async with this_host().spawn_procs(supervise=handled) as procs:
            doomed = procs.spawn("doomed", Worker)
            port = await doomed.open_channel.call_one(limit=2)
            assert await worker.send_all.call_one(port, 4) == 2
            waiting = worker.sent_all.call_one()
            os.kill((await procs.states())[0].pid, signal.SIGKILL)
            assert await asyncio.wait_for(waiting, 10) == ["NoneType"] * 2 + ["ActorDied"] * 2
            with pytest.raises(ActorDied):
                await port.send("too late")

    @in_the_job
    async def test_the_death_of_who_holds_a_reply_port_fails_the_call(self, worker):
        async with this_host().spawn_procs(supervise=handled) as procs:
            doomed = procs.spawn("doomed", Worker)
            reply = worker.answer_by_another.call_one(doomed, "keep")
            assert await worker.add.call_one(1) == 11, "its endpoint has returned"
            os.kill((await procs.states())[0].pid, signal.SIGKILL)
            with pytest.raises(ActorDied) as caught:
                await asyncio.wait_for(reply, 10)
            assert caught.value.failure.mesh == "procs"
