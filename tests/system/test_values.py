"""What travels: arrays, classes of the program, errors with state, and what cannot travel."""

import asyncio

import numpy as np
import pytest
from loops import in_the_job
from travelling import EndsWhoLoadsIt, GoneError, NeverPickles, NeverUnpickles, OnlyThere
from working import Worker

from roost import Channel, MeshError, Point, ProcMesh, ValueMesh, context
from roost.errors import RemoteError

pytestmark = pytest.mark.usefixtures("job")


class TestLargeValues:
    @pytest.mark.parametrize("size", [1000, 100_000, 1 << 20, 20 << 20])
    @in_the_job
    async def test_arrays_arrive_equal_writable_and_private(self, workers, size):
        array = np.random.default_rng(1).integers(0, 255, size, np.uint8)
        before = array.copy()
        for got in await workers.echo.call(array):
            assert (got == before).all()
            got[:] = 0
        assert (array == before).all()
        sums = await workers.make.call(overwritten_sum, array)
        assert list(sums) == [int(before.sum())] * 3
        assert (array == before).all()

    @pytest.mark.parametrize("kind", ["text", "texts"])
    @in_the_job
    async def test_a_pickle_beyond_one_frame(self, worker, kind):
        value = beyond_one_frame(kind)
        assert await worker.make.call_one(len, value) == len(value)
        assert len(await worker.make.call_one(beyond_one_frame, kind)) == len(value)
        assert await worker.add.call_one(1) == 11

    @in_the_job
    async def test_many_parts(self, worker):
        arrays = [np.full(1 << 15, number % 251, np.uint8) for number in range(300)]
        got = await worker.echo.call_one(arrays)
        assert all((one == other).all() for one, other in zip(got, arrays, strict=True))

    @in_the_job
    async def test_many_large_ones_in_flight(self, workers):
        arrays = [np.full(1 << 20, number, np.uint8) for number in range(12)]
        answers = await asyncio.gather(
            *(workers.slice(gpus=number % 3).echo.call_one(array) for number, array in enumerate(arrays))
        )
        assert [int(answer[-1]) for answer in answers] == list(range(12))


def overwritten_sum(array):
    total = int(array.sum())
    array[:] = 1
    return total


def beyond_one_frame(kind):
    """What pickles into more than 64 MiB without a buffer of its own."""
    return "x" * (65 << 20) if kind == "text" else [f"{number}{'x' * (1 << 20)}" for number in range(65)]


class TestHandles:
    @in_the_job
    async def test_meshes_and_slices_as_arguments(self, workers):
        first, second, _ = workers
        assert await first.ask.call_one(second, "add", 5) == 15
        others = workers.slice(gpus=slice(1, 3))
        assert await first.ask_all.call_one(others, "echo", "x") == ["x"] * 2
        assert await first.ask_each.call_one(others.flatten("all")) == [0, 1]
        split = workers.split(gpus=("a", "b"), b=1).slice(a=slice(None, None, 2))
        back = await first.echo.call_one([split, split])
        assert back == [split, split]
        assert dict(back[0].sizes) == {"a": 2, "b": 1}
        assert [point for _, point, *_ in await back[0].where.call()] == [{"gpus": 0}, {"gpus": 2}]

    @in_the_job
    async def test_an_actor_hands_itself_out(self, workers):
        second = workers.slice(gpus=1)
        own, whole = await second.myself.call_one()
        assert whole == workers
        assert await own.where.call_one() == await second.where.call_one()
        assert await workers.slice(gpus=0).ask.call_one(own, "add", 2) == 12

    @in_the_job
    async def test_procs_points_values_and_ports(self, procs, worker):
        port, receiver = Channel.open()
        point, values = Point({"a": 2, "b": 3}, 4), ValueMesh({"a": 2}, ["x", "y"])
        got = await worker.echo.call_one((procs, point, values, port))
        assert got == (procs, point, values, port)
        assert isinstance(got[0], ProcMesh)
        await got[3].send("by a copy")
        assert await receiver.recv() == "by a copy"

    @in_the_job
    async def test_endpoints_and_functions(self, worker):
        scale = 3
        assert await worker.make.call_one(lambda number: number * scale, 7) == 21
        assert await worker.echo.call_one(Worker.add) is Worker.add
        assert (await worker.make.call_one(lambda: context().actor_name)) == "workers"


class TestErrors:
    @in_the_job
    async def test_state_comes_along(self, worker):
        with pytest.raises(GoneError, match="somebody is gone") as caught:
            await worker.raises.call_one(GoneError("somebody", since=7))
        assert (caught.value.who, caught.value.since) == ("somebody", 7)

    @in_the_job
    async def test_a_class_of_this_module_that_only_a_function_defines(self, worker):
        class HereError(Exception):
            def __init__(self, code):
                super().__init__(f"code {code}")
                self.code = code

        def fail():
            raise HereError(5)

        with pytest.raises(HereError) as caught:
            await worker.make.call_one(fail)
        assert caught.value.code == 5

    @in_the_job
    async def test_causes_and_notes_come_along(self, worker):
        def fail():
            try:
                raise KeyError("inner")
            except KeyError as inner:
                outer = ValueError("outer")
                outer.add_note("a note")
                raise outer from inner

        with pytest.raises(ValueError, match="outer") as caught:
            await worker.make.call_one(fail)
        assert "a note" in caught.value.__notes__
        assert "KeyError: 'inner'" in str(caught.value.__cause__)
        assert isinstance(caught.value.__cause__.__cause__, KeyError)

    @in_the_job
    async def test_groups(self, workers):
        def fail():
            raise ExceptionGroup("both", [KeyError("a"), OSError("b")])

        seen = []
        try:
            await workers.make.call(fail)
        except* KeyError as group:
            seen.append(type(group))
        except* OSError as group:
            seen.append(type(group))
        assert seen == [MeshError, MeshError]

    @pytest.mark.parametrize("error", [asyncio.CancelledError, StopIteration, StopAsyncIteration])
    @in_the_job
    async def test_none_disturbs_the_callers_loop(self, worker, error):
        def fail():
            raise error("from afar")

        with pytest.raises((RemoteError, StopAsyncIteration, RuntimeError)):
            await worker.make.call_one(fail)

    @in_the_job
    async def test_what_does_not_unpickle_here_is_text(self, worker):
        with pytest.raises(RemoteError, match="odd") as caught:
            await worker.raises_odd.call_one()
        assert caught.value.type.endswith("OddError")
        assert "raise OddError" in caught.value.traceback


class TestPoison:
    @in_the_job
    async def test_an_argument_hurts_only_its_call(self, workers, worker):
        good = worker.add.call_one(1)
        with pytest.raises(ValueError, match="poison"):
            await worker.echo.call_one(NeverUnpickles())
        worker.note.broadcast(NeverUnpickles())
        with pytest.raises(MeshError) as caught:
            await workers.echo.call(NeverUnpickles())
        assert {type(error) for error in caught.value.exceptions} == {ValueError}
        assert await good == await worker.add.call_one(1) == 11
        while not context().job.dead_letters:
            await asyncio.sleep(0.01)
        assert "did not unpickle" in str(context().job.dead_letters[-1])

    @in_the_job
    async def test_an_answer_hurts_only_its_call(self, worker):
        with pytest.raises((TypeError, RuntimeError), match="this stays here"):
            await worker.make.call_one(NeverPickles)
        with pytest.raises(ValueError, match="only there") as caught:
            await worker.make.call_one(OnlyThere)
        assert any("unpickled by its caller" in note for note in caught.value.__notes__)
        for error in (SystemExit, KeyboardInterrupt, asyncio.CancelledError):
            with pytest.raises(RemoteError, match=f"{error.__name__}: of a value"):
                await worker.make.call_one(EndsWhoLoadsIt, error)
        got = []
        stream = worker.stream_of_odd.stream()
        with pytest.raises(ValueError, match="only there"):
            async for _, value in stream:
                got.append(value)
        assert [value async for _, value in stream] == ["after"]
        assert got == ["before"]
        assert await worker.add.call_one(1) == 11
