"""Calls that are given up: cancelled, or bounded by a deadline; the work at the other end is too."""

import asyncio
import gc
import time

import pytest
from loops import in_the_job, until
from working import Worker, heard, let_go, was_heard

from roost import Actor, CallTimeoutError, MeshError, endpoint, this_proc

pytestmark = pytest.mark.usefixtures("job")


class Blocking(Actor):
    """Holds the loop of its process, from one file to another."""

    @endpoint
    async def block(self, began, over):
        began.touch()
        while not over.exists():
            time.sleep(0.01)


class Failing(Actor):
    """Raises on a thread, later than anybody waits for it."""

    @endpoint
    def fail(self, began, over):
        began.touch()
        while not over.exists():
            time.sleep(0.001)
        raise ValueError("nobody waits for this any more")


async def on_a_thread(work):
    return await asyncio.get_running_loop().run_in_executor(None, work)


class TestCancelling:
    @pytest.mark.parametrize("by", ["the caller", "a stop"])
    @in_the_job
    async def test_what_a_thread_raises_afterwards_is_no_complaint_of_asyncios(self, by, tmp_path, caplog):
        began, over = tmp_path / "began", tmp_path / "over"
        failing = await this_proc().spawn("failing", Failing)
        reply = failing.fail.call_one(began, over)
        await until(began.exists)
        if by == "the caller":
            reply.cancel()
        stopping = failing.stop()
        await asyncio.sleep(0.05)
        over.touch()
        await stopping
        await asyncio.wait({reply})
        await asyncio.sleep(0.05)
        gc.collect()
        assert not [record for record in caplog.records if record.name == "asyncio"]

    @in_the_job
    async def test_it_travels_to_what_runs(self, worker, gate):
        reply = worker.hold.call_one(gate, "running")
        await heard("running began")
        assert reply.cancel()
        await heard("running cancelled")
        assert reply.cancelled()
        with pytest.raises(asyncio.CancelledError):
            await reply
        assert await worker.add.call_one(1) == 11

    @in_the_job
    async def test_what_is_queued_never_starts(self, worker, gate):
        held = worker.hold.call_one(gate, "first")
        await heard("first began")
        queued, after = worker.hold.call_one(gate, "queued"), worker.add.call_one(1)
        queued.cancel()
        let_go("first")
        assert (await held, await after) == ("first", 11)
        assert not was_heard("queued began")

    @in_the_job
    async def test_what_came_in_one_read_with_its_actor_never_starts(self, procs, gate, tmp_path):
        """A busy process reads the order to make an actor, a call to it, and that it was cancelled, all at once."""
        place, began, over = procs.slice(gpus=0), tmp_path / "began", tmp_path / "over"
        blocking = place.spawn("blocking", Blocking).block.call_one(began, over)
        await until(began.exists)
        late = place.spawn("late", Worker)
        reply = late.hold.call_one(gate, "late")
        await asyncio.sleep(0.05)  # it is on its way
        reply.cancel()
        await asyncio.sleep(0.05)
        over.touch()
        await blocking
        assert await late.add.call_one(1) == 11
        assert not was_heard("late began")
        await late.stop()

    @in_the_job
    async def test_what_runs_beside_others(self, worker, gate):
        replies = [worker.hold_beside.call_one(gate, f"beside {at}") for at in range(3)]
        for at in range(3):
            await heard(f"beside {at} began")
        replies[1].cancel()
        await heard("beside 1 cancelled")
        let_go("beside 0", "beside 2")
        assert (await replies[0], await replies[2]) == ("beside 0", "beside 2")

    @in_the_job
    async def test_asyncio_timeout_cancels_the_work_and_what_it_called(self, workers, gate):
        first, second = workers.slice(gpus=0), workers.slice(gpus=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await first.ask.call_one(second, "hold", gate, "nested")
        await heard("nested began")
        await heard("nested cancelled")

    @in_the_job
    async def test_the_last_waiter_that_gives_up_cancels(self, worker, gate):
        reply = worker.hold.call_one(gate, "waited for")
        await heard("waited for began")

        async def wait():
            return await reply

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.wait(tasks[:2])
        assert [task.cancelled() for task in tasks[:2]] == [True, True]
        assert not reply.done()
        assert not was_heard("waited for cancelled")
        tasks[2].cancel()
        await heard("waited for cancelled")
        assert reply.cancelled()

    @in_the_job
    async def test_a_time_out_of_one_waiter_does_not_disturb_the_others(self, worker, gate):
        reply = worker.hold.call_one(gate, "two waiters")

        async def patient():
            return await reply

        waiting = asyncio.create_task(patient())
        await heard("two waiters began")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await reply
        let_go("two waiters")
        assert await waiting == "two waiters"

    @pytest.mark.parametrize("gives_up", ["outcomes", "reply"])
    @pytest.mark.parametrize("waits", ["outcomes", "reply"])
    @in_the_job
    async def test_nor_of_the_outcomes(self, workers, gate, gives_up, waits):
        reply = workers.hold.call(gate, "shared by all")

        async def wait(what):
            return list(await (reply.outcomes() if what == "outcomes" else reply))

        impatient, patient = asyncio.create_task(wait(gives_up)), asyncio.create_task(wait(waits))
        await heard("shared by all began")
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        assert not patient.done()
        let_go("shared by all")
        assert await patient == ["shared by all"] * 3

    @in_the_job
    async def test_the_last_that_waits_for_outcomes_and_gives_up_cancels(self, worker, workers, gate):
        reply = workers.hold.call(gate, "given up by all")
        both = [asyncio.create_task(reply.outcomes()) for _ in range(2)]
        await heard("given up by all began")
        for one in both:
            one.cancel()
        await asyncio.wait(both)
        await heard("given up by all cancelled")
        assert reply.cancelled()

    @in_the_job
    async def test_shield_protects(self, worker, gate):
        reply = worker.hold.call_one(gate, "shielded")
        await heard("shielded began")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.shield(reply)
        let_go("shielded")
        assert await reply == "shielded"
        assert not was_heard("shielded cancelled")

    @in_the_job
    async def test_dropping_a_reply_does_not_cancel(self, worker, gate):
        worker.hold.call_one(gate, "dropped")
        await heard("dropped began")
        let_go("dropped")
        assert await worker.notes.call_one() == ["started"]
        assert not was_heard("dropped cancelled")

    @in_the_job
    async def test_a_thread_goes_on_and_its_actor_with_it(self, worker, gate):
        reply = worker.hold_a_thread.call_one(gate, "thread")
        await heard("thread began")
        reply.cancel()
        after = worker.add.call_one(1)
        assert await workers_beside(worker).add.call_one(2) == 12
        assert not after.done(), "a thread cannot be cancelled: its actor is busy until it returns"
        let_go("thread")
        assert await after == 11

    @in_the_job
    async def test_from_a_thread(self, worker, gate):
        reply = worker.hold.call_one(gate, "from a thread")
        await heard("from a thread began")
        assert await on_a_thread(reply.cancel)
        await heard("from a thread cancelled")

    @in_the_job
    async def test_a_call_to_a_mesh(self, workers, gate):
        reply = workers.hold.call(gate, "on all")
        await heard("on all began")
        reply.cancel()
        await heard("on all cancelled")
        assert list(await workers.add.call(1)) == [11] * 3


def workers_beside(worker):
    return worker._on.slice(gpus=0).spawn("beside", Worker)


class TestDeadlines:
    @in_the_job
    async def test_it_is_an_error_of_its_own_and_ends_the_work(self, workers, worker, gate):
        await workers.add.call(1)
        reply = worker.hold.options(timeout=0.5).call_one(gate, "timed")
        await heard("timed began")
        with pytest.raises(CallTimeoutError):
            await reply
        await heard("timed cancelled")
        reply = workers.options(timeout=0.1).hold.call(gate, "all timed")
        with pytest.raises(MeshError):
            await reply
        assert [type(error) for error in await reply.outcomes()] == [CallTimeoutError] * 3
        with pytest.raises(CallTimeoutError):
            async for _ in worker.hold.options(timeout=0.05).stream(gate, "streamed"):
                pass
        assert await worker.add.options(timeout=10).call_one(1) == 11

    @in_the_job
    async def test_after_a_ranks_error_it_still_bounds_the_others(self, workers, gate):
        await workers.add.call(1)
        reply = workers.options(timeout=0.5).hold_or_fail.call(gate, "others", 0)
        with pytest.raises(MeshError) as caught:
            await reply
        assert not any(isinstance(error, CallTimeoutError) for error in caught.value.exceptions)
        async with asyncio.timeout(20):
            _, *others = await reply.outcomes()
        assert [type(error) for error in others] == [CallTimeoutError] * 2
        await heard("others cancelled")

    @in_the_job
    async def test_it_bounds_calls_below(self, workers, gate):
        first, second = workers.slice(gpus=0), workers.slice(gpus=1)
        with pytest.raises(CallTimeoutError):
            # The inner call has a time of its own, which is longer.
            await first.options(timeout=0.5).ask.call_one(second, "hold", gate, "bounded", timeout=60)
        await heard("bounded cancelled")
        with pytest.raises(CallTimeoutError, match=r"no reply within 0\.0"):
            await first.options(timeout=60).ask.call_one(second, "hold", gate, "shorter", timeout=0.05)

    @in_the_job
    async def test_what_starts_too_late_does_not_start(self, worker, gate):
        held = worker.hold.call_one(gate, "before")
        await heard("before began")
        with pytest.raises(CallTimeoutError):
            await worker.hold.options(timeout=0.05).call_one(gate, "too late")
        let_go("before")
        await held
        assert await worker.add.call_one(1) == 11
        assert not was_heard("too late began")

    @pytest.mark.parametrize("endpoint", ["hold_and_block", "hold_and_block_beside"])
    @in_the_job
    async def test_also_where_the_cancel_comes_too_late(self, worker, gate, endpoint):
        before = getattr(worker, endpoint).call_one(gate, "before", 0.4)
        await heard("before began")
        late = worker.note.options(timeout=0.2).call_one("late")
        # It lies in the mailbox when the endpoint goes on, and no more is read while that blocks the loop.
        let_go("before")
        with pytest.raises(CallTimeoutError):
            await late
        await before
        assert "late" not in await worker.notes.call_one()

    @pytest.mark.parametrize("timeout", [0, -1, float("nan")])
    @in_the_job
    async def test_one_that_makes_no_sense_is_refused(self, worker, timeout):
        with pytest.raises(ValueError, match="give seconds above 0"):
            worker.add.options(timeout=timeout)
        with pytest.raises(ValueError, match="give seconds above 0"):
            worker.options(timeout=timeout)
