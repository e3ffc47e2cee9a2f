"""What is too large for a frame and cannot travel by shared memory: an error for whoever waits, never a stall."""

import asyncio
import contextlib

import numpy as np
import pytest
from bulky import MIB, Bulky, go_blind, see_again, shared, unshared
from loops import in_the_job

from roost import Channel, MeshError, context, this_host, this_proc
from roost.errors import MessageTooLargeError

UNSHARED = "cannot travel by shared memory passes the limit of 62914560"


@pytest.fixture
def bulky(procs):
    return procs.slice(gpus=0).spawn("bulky", Bulky)


@contextlib.asynccontextmanager
async def heard_blindly():
    """An actor whose process can have no segment mapped by this one."""
    async with this_host().spawn_procs() as procs:
        go_blind()
        try:
            yield procs.spawn("bulky", Bulky)
        finally:
            see_again()


class TestKnownBefore:
    @in_the_job
    async def test_a_verb_raises(self, bulky):
        values = unshared()
        for verb in (bulky.take.call_one, bulky.take.call, bulky.take.broadcast):
            with pytest.raises(MessageTooLargeError, match=UNSHARED) as caught:
                verb(values)
            assert (caught.value.setting, caught.value.limit) == ("", 60 * MIB)
            assert caught.value.size > 69 * MIB
        assert await bulky.taken.call_one() == 0
        assert await bulky.take.call_one(unshared(200)) == 200

    @in_the_job
    async def test_on_another_thread_too(self, bulky):
        values = unshared()
        with pytest.raises(MessageTooLargeError):
            await asyncio.to_thread(lambda: bulky.take.call_one(values).result(20))
        with pytest.raises(MessageTooLargeError):
            await asyncio.to_thread(lambda: bulky.take.broadcast(values).result(20))
        assert await bulky.taken.call_one() == 0

    @in_the_job
    async def test_a_constructor_raises(self, procs):
        with pytest.raises(MessageTooLargeError, match=UNSHARED):
            procs.spawn("bulky", Bulky, np.zeros(70 * MIB, np.uint8))
        assert list(await procs.spawn("bulky", Bulky, np.zeros(20 * MIB, np.uint8)).taken.call()) == [1, 1, 1]

    @in_the_job
    async def test_what_a_class_carries_raises(self, bulky):
        class Heavy:
            carried = bytes(70 * MIB)

        for _ in range(2):
            with pytest.raises(MessageTooLargeError, match=r"definition of a class .* passes the limit"):
                bulky.take.call_one([Heavy()])

        class Light:
            pass

        assert await bulky.take.call_one([Light()]) == 1
        # A function is a part of the message, which goes by shared memory.
        carried = bytes(70 * MIB)
        assert await bulky.give.call_one(lambda: len(carried)) == 70 * MIB

    @in_the_job
    async def test_an_answer_is_its_callers_error(self, bulky):
        with pytest.raises(MessageTooLargeError, match=UNSHARED):
            await bulky.give.call_one(unshared)
        assert len(await bulky.give.call_one(shared)) == 70

    @in_the_job
    async def test_a_port_raises(self, bulky):
        port, receiver = Channel.open()
        with pytest.raises(MessageTooLargeError, match=UNSHARED):
            await bulky.send.call_one(port, unshared)
        await bulky.send.call_one(port, lambda: 1)
        assert await receiver.recv() == 1

    @in_the_job
    async def test_within_one_process_only_the_limit_of_a_message_counts(self):
        here = this_proc().spawn("here", Bulky)
        assert await here.take.call_one(unshared()) == 280
        await here.stop()


class TestWithoutSharedMemory:
    """A receiver that cannot map a segment is sent its bytes, as far as they fit a frame."""

    @in_the_job
    async def test_a_call_fails_and_the_next_one_works(self):
        async with this_host().spawn_procs() as procs:
            bulky = procs.spawn("bulky", Bulky)
            await bulky.go_blind.call_one()
            assert await bulky.take.call_one(shared(3)) == 3
            with pytest.raises(MessageTooLargeError, match=UNSHARED):
                await bulky.take.call_one(shared())
            with pytest.raises(MeshError) as caught:
                await bulky.take.call(shared())
            assert isinstance(caught.value.exceptions[0], MessageTooLargeError)
            # Its credit came back: these would pass what is left of the window.
            assert [await bulky.take.call_one(shared(40)) for _ in range(3)] == [40] * 3

    @in_the_job
    async def test_a_broadcast_is_a_dead_letter(self):
        async with this_host().spawn_procs() as procs:
            bulky = procs.spawn("bulky", Bulky)
            await bulky.go_blind.call_one()
            await bulky.take.broadcast(shared())
            await bulky.take.call_one([])
            letter = context().job.dead_letters[-1]
            assert (letter.target, letter.endpoint) == ("bulky", "take")
            assert "cannot travel by shared memory" in letter.reason

    @in_the_job
    async def test_an_answer_is_its_callers_error(self):
        async with heard_blindly() as bulky:
            with pytest.raises(MessageTooLargeError, match=UNSHARED):
                await bulky.give.call_one(shared)
            assert len(await bulky.give.call_one(lambda: shared(2))) == 2

    @in_the_job
    async def test_a_stream_ends_with_the_error(self):
        async with heard_blindly() as bulky:
            stream = bulky.give_each.stream(*[shared, *[lambda: 1] * 100])
            with pytest.raises(MessageTooLargeError, match=UNSHARED):
                await anext(stream)
            assert await bulky.taken.call_one() == 0, "its generator does not wait for a reader"

    @in_the_job
    async def test_who_receives_from_a_port_hears(self):
        async with heard_blindly() as bulky:
            port, receiver = Channel.open()
            await bulky.send.call_one(port, shared)
            with pytest.raises(MessageTooLargeError, match=UNSHARED):
                await receiver.recv()
            await bulky.send.call_one(port, lambda: 1)
            assert await receiver.recv() == 1
