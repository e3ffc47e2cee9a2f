"""Jobs whose quorums are torchft's: its lighthouse and its managers, under supervision."""

import asyncio
import os
import signal
from collections import Counter
from functools import partial

import pytest
from runs import PACED, digests, progressed, ran, trained
from toys import Broken, ComesBackLate, DiesLast, Toy

from roost import Restart
from roost.errors import RoostError
from roost.ft import DiLoCo, EveryStep, FaultTolerantJob, LocalSGD
from roost.testing import Failures

torch = pytest.importorskip("torch")
pytest.importorskip("torchft")

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

SYNCS = {
    "every step": EveryStep(),
    "LocalSGD": LocalSGD(5),
    "DiLoCo": DiLoCo(10),
    "streaming DiLoCo": DiLoCo(10, fragments=("0", "1")),
}
# Heartbeats may be missing for half a second.
OPTIONS = {"quorum": "torchft", "detect_within_s": 5}


@pytest.mark.parametrize("kind", SYNCS)
async def test_without_failures_all_replicas_end_together_with_equal_weights(kind):
    async with FaultTolerantJob(Toy, replicas=2, steps=20, sync=SYNCS[kind], **OPTIONS) as job:
        report = await job.run()
        assert len(await digests(job)) == 1
    assert report.steps == len(report.losses) == 20
    assert set(report.participants) == {2}
    assert report.ended == (20, 20)
    assert (report.incidents, report.skipped, report.lost_steps) == ((), (), 0)


async def test_data_that_does_not_divide_is_handed_out_once_and_all_end_together():
    async with FaultTolerantJob(Toy, replicas=4, data=range(97), sync=EveryStep(), **OPTIONS) as job:
        report = await job.run()
        seen = Counter(item for items in (await job.trainers.items.call()).values() for _, item in items)
        assert len(await digests(job)) == 1
    assert seen == Counter(range(97))
    assert report.skipped == ()
    assert len(set(report.ended)) == 1


@pytest.mark.parametrize("kind", SYNCS)
async def test_a_killed_replica_comes_back_with_equal_state_and_the_others_never_restart(kind, figures):
    async def plan(job, failures):
        await trained(job, 3)
        for replica in (1, 2, 0):
            failures.inject("kill", replica=replica)
            await trained(job, 3)

    async with ran(plan, replicas=3, sync=SYNCS[kind], **OPTIONS) as (job, report):
        outer = list((await job.trainers.outer.call()).values())
        for one in outer[1:]:
            for what in ("parameters", "momentum"):
                assert all(torch.equal(one[what][name], outer[0][what][name]) for name in outer[0][what])
        states = (await job.procs.states()).values()
    assert [state.incarnation for state in states] == [1, 1, 1]
    assert [one.replica for one in report.incidents] == [1, 2, 0]
    for one in report.incidents:
        assert one.source in {0, 1, 2} - {one.replica}
        assert one.bytes > 0
        assert {"detected", "survivors_released", "quorum_joined", "group_formed", "state_pulled"} <= set(one.phases)
        figures(
            f"{kind}: survivors committed {1000 * one.survivors_committed:.0f} "
            + " ".join(f"{name} {1000 * at:.0f}" for name, at in one.phases.items())
        )


@pytest.mark.parametrize("kind", ["hang", "hang with the GIL", "freeze"])
async def test_of_two_replicas_one_that_hangs_is_no_end_of_the_other(kind):
    """torchft alone waits for it until its quorum's time is over, and dies: heartbeats go on."""

    async def plan(job, failures):
        await trained(job, 2)
        await progressed(job, 20)
        failures.inject(kind, replica=1)
        await trained(job, 2)

    async with ran(plan, replicas=2, sync=DiLoCo(10), **OPTIONS) as (_, report):
        assert [one.replica for one in report.incidents] == [1]


async def test_a_majority_of_newcomers_waits_for_the_one_that_has_the_state():
    """torchft by its defaults lets two newcomers go off from the beginning, and the third takes its state from them."""

    async def plan(job, failures):
        await trained(job, 3)
        await progressed(job, 30)
        before.append(job.progress)
        failures.inject("kill", replica=1)
        failures.inject("kill", replica=2)
        await trained(job, 3)

    before = []
    async with ran(plan, partial(Toy, pace_s=0.05), replicas=3, sync=DiLoCo(30), **OPTIONS) as (job, report):
        seen = (await job.trainers.items.call()).values()
        states = (await job.procs.states()).values()
    assert [state.incarnation for state in states] == [0, 1, 1]
    assert {one.source for one in report.incidents} == {0}
    # Whoever came back counted from where training was.
    assert all(items[0][0] >= before[0] for items in seen[1:])


async def test_a_restarted_lighthouse_has_no_stale_groups():
    async def plan(job, failures):
        await trained(job, 3)
        for _ in range(3):
            failures.inject("quorum service")
            await progressed(job, 20)
        failures.inject("quorum service")
        failures.inject("kill", replica=0)
        await trained(job, 3, {0})

    async with ran(plan, replicas=3, sync=DiLoCo(10), **OPTIONS) as (_, report):
        assert [one.replica for one in report.incidents] == [0]


async def test_a_lighthouse_that_stands_still_is_ended():
    async def plan(job, failures):
        await trained(job, 2)
        state = (await job.services["quorum service"].states()).item()
        os.kill(state.pid, signal.SIGSTOP)
        await progressed(job, 40)
        assert (await job.services["quorum service"].states()).item().incarnation == 1

    async with ran(plan, replicas=2, sync=DiLoCo(10), **OPTIONS) as (_, report):
        assert report.incidents == ()


async def test_a_collective_error_costs_a_step_and_nobodys_life():
    async def plan(job, failures):
        await trained(job, 3)
        for _ in range(5):
            failures.inject("collective error", replica=1)
            await progressed(job, 3)

    async with ran(plan, replicas=3, sync=EveryStep(), **OPTIONS) as (_, report):
        assert report.incidents == ()


async def test_a_replica_of_several_procs_restarts_as_one():
    async def plan(job, failures):
        await trained(job, 2)
        failures.inject("kill", replica=1, proc=1)
        await trained(job, 2)

    async with ran(plan, replicas=2, procs=2, sync=DiLoCo(10), **OPTIONS) as (_, report):
        assert [one.replica for one in report.incidents] == [1]


async def test_a_replica_that_dies_in_the_last_step_ends_with_what_all_end_with():
    async with FaultTolerantJob(DiesLast, replicas=2, steps=20, sync=EveryStep(), **OPTIONS) as job:
        report = await job.run()
        assert len(await digests(job)) == 1
    assert [one.replica for one in report.incidents] == [1]
    assert report.ended == (20, 20)


async def test_who_comes_back_after_the_end_when_the_lighthouse_is_new_waits_for_nobody(tmp_path):
    gate = tmp_path / "gate"
    late = partial(ComesBackLate, str(gate))
    async with FaultTolerantJob(late, replicas=2, steps=20, sync=EveryStep(), **OPTIONS) as job:
        running = asyncio.create_task(job.run())
        await job.companions.slice(replicas=0).final.call()
        service = job.services["quorum service"]
        Failures(job).inject("quorum service")
        while (await service.states()).item().incarnation == 0:
            await asyncio.sleep(0.005)
        await service.ready()
        gate.touch()
        report = await running
    assert report.ended == (20, 20)


async def test_the_last_replica_with_the_state_takes_training_with_it():
    """torchft alone begins again from step 0, and says nothing."""

    async def plan(job, failures):
        await trained(job, 2)
        await progressed(job, 10)
        for replica in range(2):
            failures.inject("kill", replica=replica)
        await asyncio.Event().wait()

    with pytest.raises(RoostError, match="no replica is left that has the trained state"):
        async with ran(plan, replicas=2, sync=EveryStep(), **OPTIONS):
            pass


async def test_fewer_than_min_replicas_are_an_error_when_no_more_can_come():
    async def plan(job, failures):
        for _ in range(2):
            await trained(job, 2)
            failures.inject("kill", replica=1)
        await asyncio.Event().wait()

    once = Restart(limit=1, backoff_s=(0.0, 0.0))
    with pytest.raises(RoostError, match="1 of 2 replicas are left, and min_replicas is 2"):
        async with ran(plan, replicas=2, min_replicas=2, sync=EveryStep(), restart=once, **OPTIONS):
            pass


async def test_what_would_change_its_time_outs_is_left_out(monkeypatch):
    """torchft reads them from the environment, in whole seconds, whatever its manager is made with."""
    monkeypatch.setenv("TORCHFT_QUORUM_TIMEOUT_SEC", "0.5")
    async with FaultTolerantJob(Toy, replicas=2, steps=5, sync=EveryStep(), **OPTIONS) as job:
        assert (await job.run()).steps == 5


async def test_what_does_not_pickle_is_the_error_of_run():
    async with FaultTolerantJob(partial(Broken, "state"), replicas=2, steps=5, sync=EveryStep(), **OPTIONS) as job:
        with pytest.raises(TypeError, match=r"trainer\.note does not"):
            await job.run()


async def test_leaving_a_job_in_the_midst_of_its_run_takes_no_grace():
    async with FaultTolerantJob(PACED, replicas=2, steps=100_000, sync=DiLoCo(10), **OPTIONS) as job:
        running = asyncio.create_task(job.run())
        await trained(job, 2)
        running.cancel()
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 30
