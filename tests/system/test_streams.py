"""Streams: values as they come, held back for a slow reader, ended with it; and calls that a port answers."""

import asyncio
import copy
import gc
import pickle

import numpy as np
import pytest
from loops import in_the_job
from working import Worker, heard, was_heard

from roost import Accumulator, MeshError, RoostError, this_proc
from roost.errors import StoppedError

pytestmark = pytest.mark.usefixtures("job")

# More than may be on the way before a generator waits for its reader.
MANY = 1000


class TestStreams:
    @in_the_job
    async def test_every_value_of_every_rank_in_the_order_of_its_rank(self, workers):
        got = {0: [], 1: [], 2: []}
        async for point, number in workers.count.stream(300):
            got[point["gpus"]].append(number)
        assert got == {rank: list(range(300)) for rank in range(3)}

    @in_the_job
    async def test_call_gives_lists(self, workers, worker):
        assert list(await workers.count.call(3)) == [[0, 1, 2]] * 3
        assert await worker.count.call_one(3) == [0, 1, 2]
        assert await worker.count_beside.choose(2) == [0, 1]

    @in_the_job
    async def test_a_stream_of_a_plain_endpoint_gives_its_answers_as_they_come(self, workers):
        got = [(point["gpus"], value) async for point, value in workers.stream(Worker.add, 1)]
        assert sorted(got) == [(0, 11), (1, 11), (2, 11)]

    @pytest.mark.parametrize("way", [copy.copy, pickle.dumps])
    @in_the_job
    async def test_it_is_not_copied_and_stays_whole(self, worker, way):
        stream = worker.count.stream(3)
        with pytest.raises(TypeError, match="a stream is read by whoever made the call"):
            way(stream)
        assert [number async for _, number in stream] == [0, 1, 2]

    @in_the_job
    async def test_an_empty_one_ends(self, workers):
        assert [value async for _, value in workers.count.stream(0)] == []

    @in_the_job
    async def test_a_slow_reader_holds_the_generator_back(self, worker):
        stream = worker.count_beside.stream(MANY)
        assert (await anext(stream))[1] == 0
        for _ in range(5):
            made = await worker.made_so_far.call_one()
        assert made < MANY // 2, "it runs ahead of its reader by a window only"
        assert [number async for _, number in stream] == list(range(1, MANY))

    @pytest.mark.parametrize("how", ["closed", "dropped"])
    @in_the_job
    async def test_a_reader_that_lets_go_ends_the_generator(self, worker, gate, how):
        stream = worker.count.stream(MANY, gate)
        async for _, number in stream:
            if number == 3:
                break
        assert not was_heard("count ended"), "an async for that ends early does not tell the iterator"
        if how == "closed":
            await stream.aclose()
            assert [one async for one in stream] == []
        del stream
        gc.collect()
        await heard("count ended")
        assert len(await worker.notes.call_one()) < MANY // 2
        assert await worker.add.call_one(1) == 11

    @in_the_job
    async def test_after_an_error_of_a_rank_it_goes_on(self, workers):
        stream = workers.boom.stream(rank=1)
        got, errors = [], []
        while True:
            try:
                async for point, value in stream:
                    got.append((point["gpus"], value))
                break
            except LookupError as error:
                errors.append(error.args)
        assert sorted(got) == [(0, "fine"), (2, "fine")]
        assert errors == [("boom",)]

    @in_the_job
    async def test_an_error_after_some_values(self, worker):
        got = []
        with pytest.raises(LookupError, match="at 2"):
            async for _, number in worker.count.stream(5, fails_at=2):
                got.append(number)
        assert got == [0, 1]
        with pytest.raises(LookupError, match="at 2"):
            await worker.count.call_one(5, fails_at=2)

    @in_the_job
    async def test_outcomes_never_raises(self, workers):
        got = {point["gpus"]: value async for point, value in workers.boom.stream(rank=2).outcomes()}
        assert got[0] == got[1] == "fine"
        assert isinstance(got[2], LookupError)

    @in_the_job
    async def test_two_tasks_may_read_one_stream(self, worker):
        stream = worker.count.stream(50)

        async def read():
            return [number async for _, number in stream]

        one, two = await asyncio.wait_for(asyncio.gather(read(), read()), 10)
        assert sorted(one + two) == list(range(50))

    @in_the_job
    async def test_of_two_readers_the_last_to_give_up_ends_it(self, worker):
        stream = worker.count.stream(MANY)
        readers = [asyncio.create_task(anext(stream)) for _ in range(2)]
        await asyncio.sleep(0)
        readers[0].cancel()
        await asyncio.wait([readers[0]])
        assert (await readers[1])[1] == 0
        assert (await anext(stream))[1] == 1
        await stream.aclose()

    @in_the_job
    async def test_a_reader_that_is_out_of_time_ends_it_before_it_says_so(self, worker):
        stream = worker.count.stream(10**9)
        try:
            async with asyncio.timeout(0.05):
                async for _ in stream:
                    pass
        except TimeoutError:
            # Not once the error is forgotten, whose traceback holds the stream: the actor is free for this.
            assert await worker.add.call_one(1) == 11
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    @in_the_job
    async def test_so_does_the_end_of_its_block(self, worker):
        async with worker.count.stream(MANY) as numbers:
            async for _, number in numbers:
                if number == 3:
                    break
        assert await worker.add.call_one(1) == 11
        with pytest.raises(StopAsyncIteration):
            await anext(numbers)

    @in_the_job
    async def test_large_values(self, worker):
        array = np.arange(1 << 19)
        got = [value async for _, value in worker.echo.stream(array)]
        assert len(got) == 1
        assert (got[0] == array).all()

    @in_the_job
    async def test_a_caller_that_ends_ends_the_generator(self, workers, gate):
        first, second = workers.slice(gpus=0), workers.slice(gpus=1)
        reply = first.ask_broken_off.call_one(second, "hold", gate, "for one that ends", within_s=60)
        await heard("for one that ends began")
        reply.cancel()
        await heard("for one that ends cancelled")

    @in_the_job
    async def test_in_the_drivers_own_process(self):
        own = this_proc().spawn("own", Worker)
        assert [number async for _, number in own.count.stream(MANY)] == list(range(MANY))
        await own.stop()

    @in_the_job
    async def test_nothing_is_kept_of_streams_that_ended(self, worker):
        for _ in range(20):
            assert len([one async for one in worker.count_beside.stream(200)]) == 200
        assert await worker.make.call_one(streams_kept) == 0


def streams_kept():
    import roost.process

    return len(roost.process.running().streams._made)


def sent_to_a_stream(first, second, who):
    """An actor that sends many values to the port of a stream, its own or the first's; and that stream."""
    if who == "the actor":
        return first, first.answer_beside.stream(MANY)
    return second, first.answer_by_another.stream(second, "send_beside", MANY)


class TestReplyPorts:
    @in_the_job
    async def test_it_answers_the_call(self, workers, worker):
        assert await worker.answer.call_one("now") == "now"
        assert list(await workers.answer.call(value=1)) == [1, 1, 1]
        assert await worker.answer_on_a_thread.call_one(1) == (1, False)

    @in_the_job
    async def test_later(self, worker):
        reply = worker.answer_later.call_one()
        assert await worker.add.call_one(1) == 11, "the endpoint has returned, its call is open"
        assert not reply.done()
        await worker.answer_now.call_one("late")
        assert await reply == "late"

    @in_the_job
    async def test_often(self, worker):
        assert [number async for _, number in worker.answer_often.stream(5)] == [0, 1, 2, 3, 4]
        assert await worker.answer_often.call_one(5) == 0, "a call takes the first"

    @in_the_job
    async def test_from_another_proc(self, workers):
        first, second, _ = workers
        assert await first.answer_by_another.call_one(second, "send_to", "from afar") == "from afar"
        reply = first.answer_by_another.call_one(second, "keep")
        assert await first.add.call_one(1) == 11, "the second has it"
        await second.answer_now.call_one("kept")
        assert await reply == "kept"

    @in_the_job
    async def test_from_a_third(self, workers):
        first, second, third = workers
        assert await first.answer_by_another.call_one(second, "pass_on", third, "send_to", "far") == "far"
        answers = first.answer_by_another.stream(second, "send_many", 3)
        assert [one async for _, one in answers] == [0, 1, 2]

    @pytest.mark.parametrize("who", ["the actor", "another"])
    @in_the_job
    async def test_a_slow_reader_holds_back_who_sends_to_a_stream(self, workers, who):
        first, second, _ = workers
        sender, stream = sent_to_a_stream(first, second, who)
        assert (await anext(stream))[1] == 0
        for _ in range(5):
            made = await sender.made_so_far.call_one()
        assert made < MANY // 2, "a window only"
        assert [number async for _, number in stream] == list(range(1, MANY))

    @pytest.mark.parametrize("who", ["the actor", "another"])
    @in_the_job
    async def test_a_reader_that_lets_go_ends_who_sends_to_a_stream(self, workers, who):
        first, second, _ = workers
        sender, stream = sent_to_a_stream(first, second, who)
        assert (await anext(stream))[1] == 0
        await stream.aclose()
        while (await sender.states()).item().running:
            pass
        assert await sender.made_so_far.call_one() < MANY // 2

    @in_the_job
    async def test_who_sends_later_to_a_stream_that_was_let_go_is_told(self, worker):
        stream = worker.answer_later.stream()
        await worker.send_now.call_one(1)
        assert (await anext(stream))[1] == 1
        await stream.aclose()
        with pytest.raises(StoppedError, match="the stream of answer_later stopped: its reader takes no more"):
            await worker.send_now.call_one(2)
        while (await worker.states()).item().running:
            pass  # a busy machine may have looked before
        assert await worker.make.call_one(streams_kept) == 0

    @in_the_job
    async def test_with_an_error(self, worker):
        with pytest.raises(LookupError, match="no answer"):
            await worker.answer_with_an_error.call_one()
        with pytest.raises(LookupError, match="raised"):
            await worker.raise_instead.call_one()
        assert await worker.add.call_one(1) == 11

    @in_the_job
    async def test_a_port_that_is_dropped_fails_its_call(self, worker):
        with pytest.raises(RoostError, match="the port of forget_to_answer was dropped without an answer"):
            await asyncio.wait_for(worker.forget_to_answer.call_one(), 10)
        with pytest.raises(MeshError):
            await asyncio.wait_for(worker.forget_to_answer.call(), 10)


class TestAccumulator:
    @in_the_job
    async def test_it_folds_answers_as_they_come(self, workers):
        total = Accumulator(workers.add, 0, lambda so_far, answer: so_far + answer)
        assert await total.accumulate(1) == 33
        assert await total.accumulate(a=1, b=1) == 6
        counts = await Accumulator(workers.count, [], lambda seen, one: [*seen, one]).accumulate(2)
        assert sorted(counts) == [0, 0, 0, 1, 1, 1]

    @in_the_job
    async def test_an_error_is_the_folds_error(self, workers, gate):
        with pytest.raises(LookupError, match="boom"):
            await Accumulator(workers.boom, "", lambda so_far, answer: so_far + answer).accumulate(rank=1)
        with pytest.raises(ZeroDivisionError):
            await Accumulator(workers.add, 1, lambda so_far, _answer: so_far / 0).accumulate(1)

    @in_the_job
    async def test_a_cancelled_fold_cancels_its_calls(self, worker, gate):
        folding = Accumulator(worker.hold, None, max).accumulate(gate, "fold")
        await heard("fold began")
        folding.cancel()
        await heard("fold cancelled")
