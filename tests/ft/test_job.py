"""Whole jobs, with real processes that die. One loop, so that all of them are forked from one template."""

import asyncio
from collections import Counter
from functools import partial

import pytest
from runs import PACED, SYNCS, Until, beside, digests, progressed, ran, trained
from toys import FromCheckpoint, Gambler, HangsFirst, Toy

from roost import Restart
from roost.errors import RoostError
from roost.ft import DiLoCo, EveryStep, FaultTolerantJob, GlobalBatch
from roost.ft.timeouts import Timeouts
from roost.testing import Failures

pytest.importorskip("torch")

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize("kind", ["every step", "DiLoCo"])
async def test_steps_are_counted_from_a_checkpoints_on(kind):
    async with FaultTolerantJob(FromCheckpoint, replicas=2, steps=70, sync=SYNCS[kind]) as job:
        report = await job.run()
        seen = (await job.trainers.items.call()).values()
        assert len(await digests(job)) == 1
    assert [[step for step, _ in items] for items in seen] == [list(range(50, 70))] * 2
    assert (report.steps, len(report.losses)) == (70, 20)


async def test_data_that_does_not_divide_with_fragments():
    data, sync = range(47), DiLoCo(4, fragments=("0", "1"))
    async with FaultTolerantJob(Toy, replicas=2, data=data, sync=sync) as job:
        report = await job.run()
        seen = Counter(item for items in (await job.trainers.items.call()).values() for _, item in items)
        assert len(await digests(job)) == 1
    assert seen == Counter(data)
    assert report.skipped == ()
    assert len(set(report.ended)) == 1


async def test_a_recovered_replica_draws_as_its_peers_where_they_draw_alike_and_anew_where_not():
    async def plan(job, failures):
        await trained(job, 2)
        await progressed(job, 10)
        lived.append((await job.trainers.slice(replicas=1, procs=0).draws.call_one())[:10])
        failures.inject("kill", replica=1)
        await trained(job, 2)
        await progressed(job, 10)

    lived = []
    async with ran(plan, partial(Gambler, pace_s=0.01), replicas=2, sync=EveryStep()) as (job, _):
        peer, recovered = (await job.trainers.draws.call()).values()
    # A step that did not count was done once more.
    peers = {step: draw for step, *draw in peer}
    assert len(recovered) >= 10
    assert [one for _, one, _ in recovered] == [peers[step][0] for step, _, _ in recovered]
    own = {one for _, _, one in recovered}
    assert not own & {one for _, one in peers.values()}
    assert not own & {one for _, _, one in lived[0]}


async def test_who_stands_still_in_the_first_step_of_a_later_life_is_found_in_little_more_than_any_other(figures):
    detect_s = 2.0

    async def plan(job, failures):
        await trained(job, 2)
        failures.inject("kill", replica=1)
        while len(job.incidents) < 2:
            await asyncio.sleep(0.005)
        await trained(job, 2)

    async with ran(plan, HangsFirst, replicas=2, sync=DiLoCo(10), detect_within_s=detect_s) as (_, report):
        killed, hung = report.incidents
    assert hung.failed_at - killed.failed_at < 0.2 * Timeouts(detect_s).first_step_s
    figures(
        f"found {hung.failed_at - killed.failed_at:.2f} s after its first life's end, start and all, of {detect_s:g} s"
    )


async def test_two_replicas_at_once_and_a_replica_in_its_own_recovery():
    async def plan(job, failures):
        await trained(job, 3)
        failures.inject("kill", replica=1)
        failures.inject("kill", replica=2)
        await trained(job, 3)
        failures.inject("kill", replica=1)
        while len(job.incidents) < 3:
            await asyncio.sleep(0.001)
        await job.procs.slice(replicas=1).ready()
        failures.inject("kill", replica=1)
        await trained(job, 3)

    async with ran(plan, replicas=3, sync=DiLoCo(10)) as (_, report):
        assert sorted(one.replica for one in report.incidents) == [1, 1, 1, 2]


@pytest.mark.parametrize("donors", [1, 2])
async def test_a_donor_that_dies_while_its_state_is_taken(donors):
    async def plan(job, failures):
        await trained(job, 3)
        failures.inject("kill", replica=2)
        while not job._books.staged_s:
            await asyncio.sleep(0.0005)
        failures.inject("kill", replica=0)
        await trained(job, 3)

    wide = partial(Toy, width=200_000)
    async with ran(plan, wide, replicas=3, sync=DiLoCo(10), donors=donors) as (_, report):
        assert [one.replica for one in report.incidents] == [2, 0]


async def test_a_recovered_replica_takes_its_state_from_several():
    async def plan(job, failures):
        await trained(job, 4)
        failures.inject("kill", replica=1)
        await trained(job, 4)

    wide = partial(Toy, width=2_000_000)
    async with ran(plan, wide, replicas=4, sync=EveryStep(), donors=3, detect_within_s=20) as (_, report):
        (incident,) = report.incidents
    assert incident.source == incident.donors[0]
    assert len(incident.donors) > 1
    assert set(incident.donors) <= {0, 2, 3}


async def test_the_run_goes_on_without_a_replica_that_is_given_up_and_takes_it_back():
    async def plan(job, failures):
        for _ in range(2):
            await trained(job, 2)
            failures.inject("kill", replica=1)
        while job.given_up != {1}:
            await asyncio.sleep(0.005)
        await progressed(job, 10)
        assert await job.bring_back() == (1,)
        await trained(job, 2)
        assert await job.bring_back() == ()

    once = Restart(limit=1, backoff_s=(0.0, 0.0))
    async with ran(plan, replicas=2, sync=EveryStep(), restart=once) as (job, report):
        assert job.given_up == frozenset()
        assert [one.replica for one in report.incidents] == [1, 1]


async def test_a_slow_replica_is_waited_for_and_nobody_takes_a_state():
    """torchft by its defaults goes on without it, and it takes the others' state at its next sync, and so on."""

    async def plan(job, failures):
        await trained(job, 3)
        for _ in range(5):
            failures.inject("slow", replica=1)
            await progressed(job, 20)

    async with ran(plan, replicas=3, sync=DiLoCo(10)) as (job, report):
        assert (report.incidents, report.lost_steps, job._books.staged_s) == ((), 0, [])
        # The first of the first coordinator.
        assert set((await job.trainers.quorum_id.call()).values()) == {1}


async def test_no_item_is_handed_out_twice_and_the_skipped_are_told():
    async def plan(job, failures):
        await trained(job, 3)
        failures.inject("kill", replica=1)
        await trained(job, 3)

    async with ran(plan, replicas=3, sync=DiLoCo(10)) as (job, report):
        seen = Counter(item for items in (await job.trainers.items.call()).values() for _, item in items)
    assert max(seen.values()) == 1
    # What the dead one had learnt from before counts, and is not told here.
    assert 0 < len(report.skipped) <= 31
    assert not set(report.skipped) - set(range(max(seen) + 30))


async def test_a_global_batch_is_as_large_with_fewer_replicas(caplog):
    """A step of three learns from 3 + 3 + 2 items, one of two from 4 + 4; the last two from what is left: each has one ahead."""
    caplog.set_level("INFO", logger="roost.ft")

    async def plan(job, failures):
        await trained(job, 3)
        failures.inject("kill", replica=1)
        await trained(job, 3)
        await progressed(job, 5)
        first.append(job.progress)

    first = []
    async with FaultTolerantJob(PACED, replicas=3, data=GlobalBatch(range(97 * 8), 8), sync=EveryStep()) as job:
        running = asyncio.create_task(job.run())
        async with Failures(job) as failures:
            await beside(running, plan(job, failures))
        report = await running
        seen = (await job.trainers.items.call()).values()
    handed = Counter(item for items in seen for _, batch in items for item in batch)
    assert max(handed.values()) == 1
    learnt = Counter()
    for items in seen:
        learnt.update({step: len(batch) for step, batch in items if step >= first[0]})
    assert {learnt[step] for step in range(first[0], report.steps - 2)} == {8}
    assert all(0 < learnt[step] <= 8 for step in range(first[0], report.steps))
    told = [one.getMessage() for one in caplog.records]
    assert any("as many items with fewer replicas" in one for one in told)
    assert any(one.endswith("3 + 3 + 2 of them") for one in told)
    assert any(one.endswith("4 + 4 of them") for one in told)


@pytest.mark.parametrize("size", [None, 6], ids=["one each", "six together"])
@pytest.mark.parametrize("kind", ["every step", "DiLoCo"])
async def test_of_97_batches_none_is_handed_out_twice_whatever_dies(kind, size):
    async def plan(job, failures):
        await trained(job, 3)
        failures.inject("kill", replica=1)
        await trained(job, 3)
        failures.inject("kill", replica=0)

    data = range(97)
    slow = partial(Toy, pace_s=0.05)
    async with FaultTolerantJob(
        slow, replicas=3, data=data if size is None else GlobalBatch(data, size), sync=SYNCS[kind]
    ) as job:
        running = asyncio.create_task(job.run())
        async with Failures(job) as failures:
            planned = asyncio.create_task(plan(job, failures))
            report = await running
            planned.cancel()
        seen = (await job.trainers.items.call()).values()
        assert len(await digests(job)) == 1
    handed = Counter(item for items in seen for _, batch in items for item in (batch if size else [batch]))
    assert max(handed.values()) == 1
    # What a dead one had learnt from before it died counts, and is not told here.
    assert not {*handed, *report.skipped} - set(data)
    assert len(set(report.skipped)) == len(report.skipped)
    assert len({one for one in report.ended if one is not None}) == 1


async def test_what_is_done_beside_a_run_ends_with_the_runs_own_error():
    """How the soak of training waits: not for replicas that no longer come."""
    async with FaultTolerantJob(PACED, replicas=1, data=Until(), sync=EveryStep()) as job:
        running = asyncio.create_task(job.run())
        await beside(running, trained(job, 1))
        Failures(job).inject("kill")
        with pytest.raises(RoostError, match="no replica is left that has the trained state"):
            await beside(running, trained(job, 2))
