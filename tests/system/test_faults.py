"""Faults at chosen messages, in procs of either kind."""

import asyncio
import signal

import pytest
from loops import handled, on_a_loop
from staged import Trainer

from roost import ActorDied, CallTimeoutError, MeshError, Restart, endpoint, this_host, this_proc
from roost.testing import Faults, local_mesh

pytestmark = pytest.mark.usefixtures("nothing_left")


def processes(sizes, **options):
    return this_host().spawn_procs(sizes, **options)


both = pytest.mark.parametrize("spawn", [local_mesh, processes])


class OddError(Exception):
    """Of the test's own."""


@both
@on_a_loop
async def test_a_kill_before_the_third_step(spawn):
    async with spawn({"gpus": 2}, restart=Restart(backoff_s=(0, 0))) as procs:
        trainers = procs.spawn("trainers", Trainer)
        async with Faults(trainers) as faults:
            await faults.kill(Trainer.step, message=3, gpus=1)
            for done in (1, 2):
                assert list(await trainers.step.call()) == [done, done]
            outcomes = list(await trainers.step.call().outcomes())
            assert outcomes[0] == 3
            assert outcomes[1].failure.signal == signal.SIGKILL
            await trainers
            # The next life is without.
            assert [list(await trainers.step.call()) for _ in range(3)] == [[4, 1], [5, 2], [6, 3]]


@both
@on_a_loop
async def test_a_kill_after_it_has_run(spawn, tmp_path):
    async with spawn(None, supervise=handled) as procs:
        writer = procs.spawn("writer", Writer, str(tmp_path / "written"))
        async with Faults(writer) as faults:
            await faults.kill("write", after=True, signal=signal.SIGTERM)
            with pytest.raises(ActorDied) as caught:
                await writer.write.call_one("x")
    assert caught.value.failure.signal == signal.SIGTERM
    assert caught.value.maybe_executed
    assert (tmp_path / "written").read_text() == "x"


class Writer(Trainer):
    def __init__(self, path):
        super().__init__()
        self.path = path

    @endpoint
    def write(self, text):
        with open(self.path, "a") as file:
            file.write(text)


@both
@on_a_loop
async def test_an_error_in_the_place_of_an_endpoint(spawn):
    async with spawn({"gpus": 2}) as procs:
        trainers = procs.spawn("trainers", Trainer)
        async with Faults(trainers) as faults:
            await faults.fail("step", OddError("odd"), message=2, times=2)
            await faults.fail(Trainer.work, OddError("thread"), gpus=0)
            await faults.fail(Trainer.numbers, OddError("stream"), after=True)
            await faults.fail(Trainer.beside, OddError("beside"))
            assert list(await trainers.step.call()) == [1, 1]
            for _ in range(2):
                with pytest.raises(MeshError) as caught:
                    await trainers.step.call()
                assert [type(error) for error in caught.value.exceptions] == [OddError]
            # It did not run, and runs again.
            assert list(await trainers.step.call()) == [2, 2]
            assert [type(one) for one in await trainers.work.call().outcomes()] == [OddError, int]
            assert [type(one) for one in await trainers.beside.call().outcomes()] == [OddError, OddError]
            values = []
            with pytest.raises(OddError):
                async for _, value in trainers.slice(gpus=0).numbers.stream(2):
                    values.append(value)
            assert values == [0, 1]
            await faults.fail("step", OddError("ever"), times=None)
            for _ in range(3):
                with pytest.raises(MeshError):
                    await trainers.step.call()
        # Undone.
        assert list(await trainers.step.call()) == [3, 4]


@both
@on_a_loop
async def test_an_error_that_no_caller_hears_fails_the_actor(spawn):
    heard = []

    async def hear(failure):
        heard.append(failure.reason)
        return True

    async with spawn(None) as procs:
        trainer = procs.options(supervise=hear).spawn("trainer", Trainer)
        async with Faults(trainer) as faults:
            await faults.fail(Trainer.step, OddError("odd"))
            await trainer.step.broadcast()
            await trainer.wait()
    assert [reason.rpartition(".")[2] for reason in heard] == ["OddError: odd (in step)"]


@both
@pytest.mark.parametrize("name", ["step", "work"])
@on_a_loop
async def test_what_hangs_goes_on_at_the_end(spawn, name):
    async with spawn({"gpus": 2}) as procs:
        trainers = procs.spawn("trainers", Trainer)
        async with Faults(trainers) as faults:
            await faults.hang(name, gpus=1)
            pending = trainers.call(name)
            # Its proc goes on.
            assert await procs.spawn("others", Trainer).slice(gpus=1).step.call_one() == 1
            assert await trainers.slice(gpus=0).count.call_one() == 1
            assert not pending.done()
            queued = trainers.slice(gpus=1).count.call_one()
        assert list(await pending) == [1, 1]
        assert await queued == 1


@both
@on_a_loop
async def test_a_hang_is_cancelled_with_its_call(spawn):
    async with spawn(None) as procs:
        trainer = procs.spawn("trainer", Trainer)
        async with Faults(trainer) as faults:
            await faults.hang("step")
            with pytest.raises(CallTimeoutError):
                await trainer.options(timeout=0.05).step.call_one()
            assert await trainer.count.call_one() == 0


@both
@on_a_loop
async def test_a_delay(spawn):
    async with spawn({"gpus": 2}) as procs:
        trainers = procs.spawn("trainers", Trainer)
        async with Faults(trainers) as faults:
            await faults.delay("step", 0.1, gpus=0, after=True)
            finished = [point["gpus"] async for point, _ in trainers.step.stream()]
    assert finished == [1, 0]


@both
@on_a_loop
async def test_a_message_and_an_answer_that_get_lost(spawn):
    async with spawn(None) as procs:
        trainer = procs.spawn("trainer", Trainer)
        async with Faults(trainer) as faults:
            await faults.drop("step")
            await trainer.step.broadcast()
            assert await trainer.step.call_one() == 1
            await faults.drop("step")
            with pytest.raises(CallTimeoutError):
                await trainer.options(timeout=0.05).step.call_one()
            assert await trainer.count.call_one() == 1
            await faults.drop("step", after=True, message=2)
            assert await trainer.step.call_one() == 2
            lost = trainer.step.call_one()
            assert await trainer.step.call_one() == 4
            assert not lost.done()
            lost.cancel()
            await faults.drop("numbers")
            with pytest.raises(CallTimeoutError):
                await trainer.options(timeout=0.05).numbers.call_one(3)
            assert await trainer.numbers.call_one(2) == [0, 1]


@on_a_loop
async def test_a_process_that_is_frozen_is_stalled_and_goes_on():
    async with processes({"gpus": 2}) as procs:
        trainers, others = procs.spawn("trainers", Trainer), procs.spawn("others", Trainer)
        await others
        async with Faults(trainers) as faults:
            await faults.freeze(Trainer.step, 0.2, gpus=1)
            pending = trainers.step.call()
            await trainers.slice(gpus=0).count.call_one()
            with pytest.raises(CallTimeoutError):
                await others.slice(gpus=1).options(timeout=0.05).step.call_one()
            assert list(await pending) == [1, 1]


@both
@on_a_loop
async def test_many_actors_a_proc_and_calls_inside_it(spawn):
    async with spawn({"gpus": 2}) as procs:
        trainers = procs.options(per_proc={"cpus": 2}).spawn("trainers", Trainer)
        async with Faults(trainers.slice(gpus=1)) as faults:
            await faults.fail("step", OddError("odd"), cpus=0)
            # From its neighbour in the same proc.
            with pytest.raises(OddError):
                await trainers.slice(gpus=1, cpus=1).ask.call_one(trainers.slice(gpus=1, cpus=0))
            assert list(await trainers.step.call().outcomes()) == [1, 1, 1, 1]


@on_a_loop
async def test_bad_input():
    async with local_mesh({"gpus": 2}) as procs:
        trainers = procs.spawn("trainers", Trainer)
        own = this_proc().spawn("own", Trainer)
        for mesh in (procs, Trainer):
            with pytest.raises(TypeError, match="give a mesh of actors"):
                Faults(mesh)
        with pytest.raises(ValueError, match="own lives in the calling process itself"):
            Faults(own)
        faults = Faults(trainers)
        with pytest.raises(RuntimeError, match="inside `async with Faults"):
            await faults.kill("step")
        async with faults:
            with pytest.raises(AttributeError, match="Trainer has no endpoint 'stop_it'; it has: "):
                await faults.kill("stop_it")
            with pytest.raises(AttributeError, match="is not an endpoint"):
                await faults.hang("__cleanup__")
            with pytest.raises(ValueError, match="message=0 is below 1; the first message is 1"):
                await faults.drop("step", message=0)
            with pytest.raises(ValueError, match="times=0 is below 1; None means all that follow"):
                await faults.drop("step", times=0)
            with pytest.raises(ValueError, match="must be greater than 0"):
                await faults.delay("step", 0)
            with pytest.raises(TypeError, match="give an exception"):
                await faults.fail("step", "x")
            with pytest.raises(ValueError, match="lives in the test's own"):
                await faults.freeze("step", 1)
            with pytest.raises((IndexError, ValueError)):
                await faults.kill("step", gpus=2)
            assert list(await trainers.step.call()) == [1, 1]


@on_a_loop
async def test_procs_that_died_meanwhile_are_let_be():
    async with local_mesh({"gpus": 2}, supervise=handled) as procs:
        trainers = procs.spawn("trainers", Trainer)
        async with Faults(trainers) as faults:
            await faults.kill("step", gpus=0)
            await faults.fail("step", OddError("odd"))
            outcomes = await trainers.step.call().outcomes()
        # Of several that are due the last happens: nobody was killed yet.
        assert [type(one) for one in outcomes] == [OddError, OddError]
        async with Faults(trainers) as faults:
            await faults.kill("step", gpus=0)
            assert [type(one) for one in await trainers.step.call().outcomes()] == [ActorDied, int]
            await asyncio.sleep(0)
