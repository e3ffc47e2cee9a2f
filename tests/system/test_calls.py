"""Calls to actors: verbs, arguments, threads, and the order in which messages start."""

import asyncio

import numpy as np
import pytest
from loops import in_the_job
from working import Worker, heard, let_go, was_heard

from roost import MeshError, Point, ValueMesh, each, this_proc

pytestmark = pytest.mark.usefixtures("job")


class TestVerbs:
    @in_the_job
    async def test_call_gives_a_value_of_each_rank(self, workers):
        values = await workers.add.call(1)
        assert values == ValueMesh({"gpus": 3}, [11, 11, 11])
        assert [point for point, _ in values.items()] == [Point({"gpus": 3}, rank) for rank in range(3)]
        assert await workers.call(Worker.add, 1, scale=2) == ValueMesh({"gpus": 3}, [22, 22, 22])
        assert await workers.call("add", 1, b=2) == ValueMesh({"gpus": 3}, [3, 3, 3])

    @in_the_job
    async def test_call_one_gives_the_value(self, workers, worker):
        assert await worker.add.call_one(1) == 11
        assert await worker.call_one(Worker.add, a=1, b=2, scale=10) == 30
        assert await workers.slice(gpus=slice(1, 2)).add.call_one(1) == 11

    @in_the_job
    async def test_choose_takes_the_less_loaded(self, workers, gate):
        held = workers.slice(gpus=0).hold.call_one(gate, "busy")
        await heard("busy began")
        chosen = [await workers.choose(Worker.where) for _ in range(12)]
        assert {point["gpus"] for _, point, *_ in chosen} <= {1, 2}
        let_go("busy")
        assert await held == "busy"
        assert await workers.slice(gpus=1).add.choose(1) == 11

    @in_the_job
    async def test_broadcast_wants_no_answer(self, workers):
        for number in range(3):
            assert await workers.note.broadcast(number) is None
        workers.broadcast("note", "the last")
        for notes in await workers.notes.call():
            assert notes == ["started", 0, 1, 2, "the last"]

    @in_the_job
    async def test_a_message_is_sent_when_the_verb_is_called(self, worker):
        never_awaited = worker.note.call_one("sent")
        assert await worker.notes.call_one() == ["started", "sent"]
        await never_awaited

    @in_the_job
    async def test_each_gives_every_rank_its_own(self, workers):
        assert list(await workers.add.call(each([1, 2, 3]), scale=each([1, 10, 100]))) == [11, 120, 1300]
        assert list(await workers.slice(gpus=slice(1, 3)).echo.call(each("ab"))) == ["a", "b"]
        assert await workers.slice(gpus=2).echo.call_one(each(["only"])) == "only"
        arrays = await workers.echo.call(each([np.full(1 << 18, rank) for rank in range(3)]))
        assert [int(array[-1]) for array in arrays] == [0, 1, 2]
        workers.note.broadcast(each("xyz"))
        assert [notes[-1] for notes in await workers.notes.call()] == ["x", "y", "z"]


class TestManyActorsAProc:
    @in_the_job
    async def test_per_proc_adds_a_dimension(self, procs):
        envs = procs.options(per_proc={"envs": 50}).spawn("envs", Worker)
        assert dict(envs.sizes) == {"gpus": 3, "envs": 50}
        where = await envs.where.call()
        assert [point for _, point, *_ in where] == [
            {"gpus": gpu, "envs": env} for gpu in range(3) for env in range(50)
        ]
        assert list(await envs.echo.call(each(range(150)))) == list(range(150))
        some = envs.slice(gpus=slice(1, 3), envs=slice(0, 50, 10))
        points = [point for _, point, *_ in await some.where.call()]
        assert points == [{"gpus": gpu, "envs": env} for gpu in (1, 2) for env in range(0, 50, 10)]
        assert await envs.slice(gpus=2, envs=49).add.call_one(1) == 11
        await envs.stop()

    @in_the_job
    async def test_in_the_drivers_own_process(self):
        mesh = this_proc().options(per_proc={"envs": 3}).spawn("own", Worker)
        assert list(await mesh.add.call(each([1, 2, 3]))) == [11, 12, 13]
        await mesh.stop()


class TestConstruction:
    @in_the_job
    async def test_start_runs_after_the_constructor_and_before_any_message(self, procs):
        mesh = procs.spawn("later", Worker, "made")
        assert list(await mesh.notes.call()) == [["made", "started"]] * 3
        await mesh.stop()

    @in_the_job
    async def test_the_constructor_may_ask_where_it_is(self, workers):
        for rank, (name, point, message_point, incarnation, place) in enumerate(await workers.where.call()):
            assert (name, point, message_point, incarnation, place) == (
                "workers", {"gpus": rank}, {"gpus": rank}, 0, {"gpus": rank},
            )  # fmt: skip

    @in_the_job
    async def test_the_message_point_is_inside_the_slice(self, workers):
        some = workers.slice(gpus=slice(1, 3)).rename(gpus="some")
        assert [(point, inside) for _, point, inside, *_ in await some.where.call()] == [
            ({"gpus": 1}, {"some": 0}), ({"gpus": 2}, {"some": 1}),
        ]  # fmt: skip
        _, point, inside, *_ = await workers.slice(gpus=2).where.call_one()
        assert (point, inside) == ({"gpus": 2}, {})


class TestThreads:
    @in_the_job
    async def test_a_def_runs_on_a_thread_of_its_actor(self, worker):
        value, main, thread = await worker.on_a_thread.call_one(1)
        assert (value, main) == (1, False)
        assert (await worker.on_a_thread.call_one(2))[2] == thread

    @in_the_job
    async def test_it_stops_neither_the_loop_nor_other_actors(self, workers, worker, gate):
        held = worker.hold_a_thread.call_one(gate, "thread")
        await heard("thread began")
        beside = workers._on.spawn("beside", Worker).slice(gpus=0)
        assert await beside.add.call_one(1) == 11
        queued = worker.add.call_one(1)
        assert await beside.add.call_one(2) == 12
        assert not queued.done(), "messages of one actor are handled one at a time"
        let_go("thread")
        assert await held == "thread"
        assert await queued == 11

    @in_the_job
    async def test_verbs_work_on_that_thread(self, workers):
        first, second = workers.slice(gpus=0), workers.slice(gpus=1)
        assert await first.ask_from_a_thread.call_one(second, 5) == 15
        assert await second.notes.call_one() == ["started", 5]

    @in_the_job
    async def test_concurrent_defs_run_on_threads_of_their_own(self, worker):
        # A serial one first: it must not leave them with its only thread.
        await worker.on_a_thread.call_one(1)
        threads = await asyncio.gather(*(worker.meet.call_one(4) for _ in range(4)))
        assert len(set(threads)) == 4

    @in_the_job
    async def test_a_def_that_gives_an_awaitable_is_refused(self, worker):
        with pytest.raises(TypeError, match=r"Worker\.awaitable_from_def is a `def` .* coroutine.*make it `async def`"):
            await worker.awaitable_from_def.call_one()
        assert await worker.add.call_one(1) == 11


class TestOrder:
    @in_the_job
    async def test_messages_start_in_the_order_in_which_they_were_sent(self, workers, worker):
        replies = []
        for number in range(500):
            if number % 3 == 0:
                worker.note.broadcast(number)
            elif number % 3 == 1:
                replies.append(worker.note.call_one(number))
            else:
                replies.append(workers.note.call(number))
        assert (await worker.notes.call_one())[1:] == list(range(500))
        await asyncio.gather(*replies)

    @in_the_job
    async def test_each_sender_has_an_order_of_its_own(self, workers):
        target, *senders = workers
        mine = [target.note.call_one(("driver", number)) for number in range(200)]
        told = [
            sender.tell_many.call_one(target, [(at, number) for number in range(200)])
            for at, sender in enumerate(senders)
        ]
        await asyncio.gather(*mine, *told)
        for sender in senders:
            await sender.ask.call_one(target, "add", 1)  # behind what that sender told
        notes = (await target.notes.call_one())[1:]
        assert len(notes) == 600
        for who in ("driver", 0, 1):
            assert [number for sender, number in notes if sender == who] == list(range(200))

    @pytest.mark.parametrize("size", [10, 100_000, 3 << 20])
    @in_the_job
    async def test_arguments_arrive_as_they_were_when_the_verb_returned(self, workers, size):
        array, items, text = np.zeros(size, np.uint8), [0] * 100, bytearray(size)
        replies = []
        for number in range(1, 6):
            array[:], items[:], text[:] = number, [number] * 100, bytes([number]) * size
            replies.append(workers.swallow.call(0))
            replies.append(workers.slice(gpus=number % 3).echo.call_one((array, items, text)))
        array[:], items[:], text[:] = 99, [99] * 100, b"z" * size
        for number, reply in enumerate(replies[1::2], 1):
            got_array, got_items, got_text = await reply
            assert (got_array == number).all(), number
            assert set(got_items) == {number} == set(got_text)
        await asyncio.gather(*replies[::2])

    @in_the_job
    async def test_also_on_the_way_to_an_actor_of_this_process(self):
        own = this_proc().spawn("own", Worker)
        items = [1]
        reply = own.note.call_one(items)
        items.append(2)
        await reply
        assert (await own.notes.call_one())[-1] == [1]
        await own.stop()


class TestConcurrency:
    @in_the_job
    async def test_a_serial_endpoint_runs_alone(self, worker, gate):
        held = worker.hold.call_one(gate, "serial")
        await heard("serial began")
        others = [worker.notes.call_one(), worker.hold_beside.call_one(gate, "beside"), worker.add.call_one(1)]
        let_go("serial")
        await held
        await heard("beside began")
        assert not others[2].done(), "it waits until the concurrent ones are done"
        let_go("beside")
        assert await asyncio.gather(*others) == [["started"], "beside", 11]

    @in_the_job
    async def test_concurrent_ones_run_together(self, worker, gate):
        names = [f"together {at}" for at in range(20)]
        held = [worker.hold_beside.call_one(gate, name) for name in names]
        for name in names:
            await heard(f"{name} began")
        assert await worker.most_at_once.call_one() == 20
        let_go(*reversed(names))
        assert await asyncio.gather(*held) == names

    @in_the_job
    async def test_a_group_shares_one_limit(self, worker, gate):
        names = [f"limited {at}" for at in range(6)]
        held = [
            (worker.hold_limited if at % 2 else worker.hold_in_the_group).call_one(gate, name)
            for at, name in enumerate(names)
        ]
        for at, name in enumerate(names):
            await heard(f"{name} began")  # in the order in which they were sent
            assert not any(was_heard(f"{later} began") for later in names[at + 2 :])
            if at:
                let_go(names[at - 1])
        let_go(*names)
        await asyncio.gather(*held)
        assert await worker.most_at_once.call_one() == 2

    @in_the_job
    async def test_one_that_waits_for_its_limit_can_be_cancelled(self, worker, gate):
        held = [worker.hold_limited.call_one(gate, f"full {at}") for at in range(2)]
        for at in range(2):
            await heard(f"full {at} began")
        waiting = worker.hold_limited.call_one(gate, "waiting")
        next_one = worker.hold_limited.call_one(gate, "next")
        waiting.cancel()
        let_go("full 0", "full 1", "next")
        assert await asyncio.gather(*held, next_one) == ["full 0", "full 1", "next"]
        assert not was_heard("waiting began")


class TestErrors:
    @in_the_job
    async def test_an_exception_comes_as_itself_and_the_actor_lives(self, worker):
        with pytest.raises(LookupError, match="no such thing") as caught:
            await worker.boom.call_one("no such thing")
        assert "raised by workers[gpus=0] in endpoint boom" in caught.value.__notes__
        assert "in boom" in str(caught.value.__cause__)
        assert await worker.add.call_one(1) == 11

    @in_the_job
    async def test_a_mesh_error_names_the_ranks(self, workers):
        with pytest.raises(MeshError) as caught:
            await workers.boom.call(rank=1)
        assert [(dict(point), error.args) for point, error in caught.value.items()] == [({"gpus": 1}, ("boom",))]
        assert "1 of 3 ranks of workers failed" in str(caught.value)

    @in_the_job
    async def test_except_star_takes_it_apart(self, workers):
        seen = []
        try:
            await workers.boom.call()
        except* LookupError as group:
            seen.extend(group.exceptions)
        assert [str(error) for error in seen] == ["boom"]
