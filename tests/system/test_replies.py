"""Replies: awaited from anywhere, cancelled, bounded in time, waited for on threads."""

import asyncio
import threading

import pytest
from loops import in_the_job
from working import heard, let_go

from roost import CallTimeoutError, MeshError, as_completed
from roost.errors import BlockingWaitError

pytestmark = pytest.mark.usefixtures("job")


async def on_a_thread(work):
    return await asyncio.get_running_loop().run_in_executor(None, work)


class TestAwaiting:
    @in_the_job
    async def test_many_times_and_from_several_tasks(self, worker, gate):
        reply = worker.hold.call_one(gate, "shared")

        async def wait():
            return await reply

        tasks = [asyncio.create_task(wait()) for _ in range(5)]
        await heard("shared began")
        let_go("shared")
        assert await asyncio.gather(*tasks) == ["shared"] * 5
        assert await reply == await reply == "shared"
        assert reply.result() == "shared"
        assert reply.exception() is None

    @in_the_job
    async def test_asyncio_takes_it_as_it_is(self, workers, worker):
        assert asyncio.isfuture(worker.add.call_one(1))
        assert await asyncio.gather(worker.add.call_one(1), worker.add.call_one(2), workers.boom.call(rank=9)) == [
            11, 12, await workers.boom.call(rank=9),
        ]  # fmt: skip
        replies = [worker.add.call_one(number) for number in range(3)]
        done, pending = await asyncio.wait(replies)
        assert (done, pending) == (set(replies), set())
        done, _ = await asyncio.wait([workers.add.call(1)], return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        async with asyncio.TaskGroup() as group:
            one, all_ = group.create_task(worker.add.call_one(5)), group.create_task(workers.add.call(5))
        assert (one.result(), list(all_.result())) == (15, [15, 15, 15])
        assert await asyncio.wait_for(worker.add.call_one(1), 10) == 11
        assert await asyncio.shield(worker.add.call_one(1)) == 11
        assert [await reply for reply in asyncio.as_completed([worker.add.call_one(1)])] == [11]
        assert await asyncio.create_task(worker.add.call_one(3)) == 13
        failed = worker.boom.call_one()
        done, _ = await asyncio.wait([failed])
        assert isinstance(failed.exception(), LookupError)

    @in_the_job
    async def test_an_error_is_raised_each_time(self, worker):
        reply = worker.boom.call_one("again")
        for _ in range(2):
            with pytest.raises(LookupError, match="again"):
                await reply

    @in_the_job
    async def test_replies_as_they_complete(self, workers, gate):
        slow, quick = workers.slice(gpus=0).hold.call_one(gate, "slow"), workers.slice(gpus=1).add.call_one(1)
        await heard("slow began")
        order = []
        async for reply in as_completed([slow, quick], timeout=10):
            order.append(await reply)
            let_go("slow")
        assert order == [11, "slow"]
        late = workers.slice(gpus=0).hold.call_one(gate, "late")
        with pytest.raises(CallTimeoutError):
            async for _ in as_completed([late], timeout=0.01):
                pass
        let_go("late")
        assert await late == "late", "the call goes on"
        with pytest.raises(BlockingWaitError, match="async for"):
            list(as_completed([workers.add.call(1)]))
        more = [workers.add.call(number) for number in range(3)]
        assert len(await on_a_thread(lambda: [reply.result() for reply in as_completed(more, timeout=10)])) == 3


class TestBlocking:
    @in_the_job
    async def test_result_waits_on_a_thread(self, workers, worker, gate):
        reply, failing = worker.hold.call_one(gate, "blocked"), workers.slice(gpus=1).boom.call_one()
        with pytest.raises(CallTimeoutError, match="the call goes on"):
            await on_a_thread(lambda: reply.result(0.01))
        let_go("blocked")
        assert await on_a_thread(lambda: reply.result(10)) == "blocked"
        assert isinstance(await on_a_thread(lambda: failing.exception(10)), LookupError)
        with pytest.raises(LookupError):
            await on_a_thread(failing.result)

    @in_the_job
    async def test_who_asks_again_and_again_leaves_nothing(self, worker, gate):
        reply = worker.hold.call_one(gate, "asked for")
        for _ in range(20):
            with pytest.raises(CallTimeoutError):
                await on_a_thread(lambda: reply.result(0.0))
        await heard("asked for began")
        assert not reply._callbacks
        let_go("asked for")
        assert await reply == "asked for"

    @in_the_job
    async def test_on_the_loops_own_thread_it_raises_and_the_reply_stays_good(self, worker):
        reply = worker.add.call_one(1)
        with pytest.raises(BlockingWaitError, match="write `await reply` here"):
            reply.result(10)
        with pytest.raises(BlockingWaitError):
            reply.exception()
        assert await reply == 11

    def test_so_it_does_between_two_runs_of_the_loop(self, job, worker, gate):
        async def begin():
            return worker.hold.call_one(gate, "between")

        reply = job.run(begin())
        with pytest.raises(BlockingWaitError, match="does not run now"):
            reply.result(10)

        async def end():
            let_go("between")
            return await reply

        assert job.run(end()) == "between"

    @in_the_job
    async def test_and_where_another_loop_runs(self, worker, gate):
        reply = worker.hold.call_one(gate, "other loop")

        async def block():
            return reply.result(10)

        def run():
            with pytest.raises(BlockingWaitError):
                asyncio.run(block())

        await on_a_thread(run)
        let_go("other loop")
        assert await reply == "other loop"

    @in_the_job
    async def test_verbs_on_a_thread_keep_their_order(self, worker):
        def send():
            replies = [worker.note.call_one(number) for number in range(100)]
            worker.note.broadcast(100)
            return [reply.result(10) for reply in replies]

        await on_a_thread(send)
        assert (await worker.notes.call_one())[1:] == list(range(101))

    @in_the_job
    async def test_several_threads_wait_for_one_reply(self, worker, gate):
        reply, got = worker.hold.call_one(gate, "many threads"), []
        threads = [threading.Thread(target=lambda: got.append(reply.result(20))) for _ in range(4)]
        for thread in threads:
            thread.start()
        let_go("many threads")
        await reply
        await on_a_thread(lambda: [thread.join(20) for thread in threads])
        assert got == ["many threads"] * 4


class TestOutcomes:
    @in_the_job
    async def test_values_and_errors_by_rank(self, workers):
        outcomes = await workers.boom.call(rank=1).outcomes()
        assert [outcomes[0], outcomes[2]] == ["fine", "fine"]
        assert isinstance(outcomes[1], LookupError)

    @in_the_job
    async def test_after_all_are_accounted_for(self, workers, gate):
        reply = workers.slice(gpus=slice(0, 2)).hold_or_fail.call(gate, "outcomes", 1)
        await heard("outcomes began")
        with pytest.raises(MeshError) as caught:
            await reply
        assert len(caught.value.exceptions) == 1, "the first failure is raised at once"
        let_go("outcomes")
        outcomes = await reply.outcomes()
        assert outcomes[0] == "outcomes"
        assert isinstance(outcomes[1], LookupError)

    @in_the_job
    async def test_later_errors_are_in_later(self, workers):
        reply = workers.boom.call()
        with pytest.raises(MeshError) as caught:
            await reply
        outcomes = await reply.outcomes()
        assert [type(one) for one in outcomes] == [LookupError] * 3
        assert len(caught.value.exceptions) + len(caught.value.later) == 3
