"""The clock of `roost.testing`: what Roost times in the test's process goes by it."""

import asyncio

import pytest
import uvloop
from loops import handled, on_a_loop
from staged import Trainer

import roost
from roost import ActorDied, CallTimeoutError, Probe, Restart, endpoint, this_proc
from roost.testing import Faults, clock, kill, local_mesh

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_timers_fire_in_order_each_at_its_own_moment(run):
    async def program():
        fired = []
        loop = asyncio.get_running_loop()
        with clock() as fake:
            began = loop.time()

            async def sleeper(seconds):
                await asyncio.sleep(seconds)
                fired.append((seconds, loop.time() - began))
                if seconds == 10:
                    await sleeper(5)

            tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (30, 10, 20)]
            given_up = loop.call_later(1, fired.append, "given up")
            given_up.cancel()
            await fake.advance(9.5)
            assert fired == []
            await fake.advance(0.5)
            assert fired == [(10, 10)]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3):
                    await fake.advance(3.5)
            await fake.advance(60)
            assert [seconds for seconds, _ in fired] == [10, 5, 20, 30]
            assert [at for _, at in fired] == pytest.approx([10, 15, 20, 30])
            assert fake.elapsed >= 70
            await asyncio.gather(*tasks)
            late = loop.call_later(1e-3, fired.append, "late")
        await asyncio.sleep(0.01)
        assert fired[-1] == "late"
        assert not late.cancelled()
        assert loop.time() < began + 60

    run(program())


@on_a_loop
async def test_the_pauses_of_local_procs():
    restart = Restart(limit=3, within_s=100, backoff_s=(10, 10))
    with clock() as fake:
        async with local_mesh(None, restart=restart) as procs:
            trainer = procs.spawn("trainer", Trainer)
            await trainer
            kill(procs)
            await fake.advance(7.9)
            assert (await procs.states()).item().state == "restarting"
            await fake.advance(4.2)
            assert await trainer.life.call_one() == 1


@on_a_loop
async def test_the_window_in_which_restarts_count_and_the_pauses_of_actors():
    restart = Restart(limit=1, within_s=60, backoff_s=(1, 1))
    with clock() as fake:
        own = this_proc().options(restart=restart, supervise=handled).spawn("own", Stumbling)
        await own
        for life in (1, 2, 3):
            await failing(own)
            await fake.advance(2)
            assert await own.life.call_one() == life
            await fake.advance(61)
        await failing(own)
        await fake.advance(2)
        await failing(own)
        await fake.advance(2)
        with pytest.raises(ActorDied) as caught:
            await own.life.call_one()
        assert len(caught.value.failure.reasons) >= 1
        await own.stop()


class Stumbling(Trainer):
    @endpoint
    async def stumble(self):
        raise RuntimeError("stumbled")


async def failing(mesh):
    async with asyncio.timeout(5):
        await mesh.stumble.broadcast()


@on_a_loop
async def test_deadlines_and_as_completed():
    with clock() as fake:
        async with local_mesh() as procs:
            trainer = procs.spawn("trainer", Trainer)
            await trainer
            pending = trainer.options(timeout=30).sleep.call_one(3600)
            await fake.advance(29)
            assert not pending.done()
            await fake.advance(2)
            with pytest.raises(CallTimeoutError):
                await pending
            waiting = asyncio.create_task(collect([trainer.sleep.call_one(3600)], 10))
            await fake.advance(11)
            with pytest.raises(CallTimeoutError):
                await waiting


async def collect(replies, timeout):
    return [await reply async for reply in roost.as_completed(replies, timeout=timeout)]


@on_a_loop
async def test_delays_and_probes_in_local_procs():
    with clock() as fake:
        async with local_mesh() as procs:
            trainer = procs.options(probe=Probe(period_s=60, failures_max=1), supervise=handled).spawn("sick", Sick)
            async with Faults(trainer) as faults:
                await faults.delay("step", 3600)
                pending = trainer.step.call_one()
                await fake.advance(119)
                assert (await trainer.states()).item().state == "up"
                await fake.advance(200)
                assert (await trainer.states()).item().failure.kind == "unhealthy"
                with pytest.raises(ActorDied):
                    await pending


class Sick(Trainer):
    async def __healthy__(self):
        return False


@on_a_loop
async def test_bad_input():
    with clock() as fake:
        with pytest.raises(RuntimeError, match="has a fake clock already"), clock():
            pass
        with pytest.raises(ValueError, match="below 0"):
            await fake.advance(-1)


def test_without_a_loop_it_is_refused():
    with pytest.raises(RuntimeError, match="no running event loop"), clock():
        pass
