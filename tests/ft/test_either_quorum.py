"""What holds whoever decides who trains together: Roost's quorum, by supervision, or torchft's lighthouse and managers, under it."""

import asyncio
import os
import signal
import time
from collections import Counter
from functools import partial

import pytest
from runs import PACED, SYNCS, digests, progressed, ran, trained
from toys import Broken, ComesBackLate, DiesLast, Doubtful, Toy

from roost import Restart
from roost.errors import RoostError
from roost.ft import DiLoCo, EveryStep, FaultTolerantJob
from roost.ft.incidents import PHASES
from roost.testing import Failures

torch = pytest.importorskip("torch")
pytest.importorskip("torchft")

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

# A tenth of it is how long heartbeats of torchft's may be missing.
DETECT_S = 5.0
EITHER = pytest.mark.parametrize("quorum", ["roost", "torchft"])


@EITHER
@pytest.mark.parametrize("kind", SYNCS)
async def test_without_failures_all_replicas_end_together_with_equal_weights(quorum, kind):
    async with FaultTolerantJob(
        Toy, replicas=2, steps=20, sync=SYNCS[kind], quorum=quorum, detect_within_s=DETECT_S
    ) as job:
        report = await job.run()
        assert len(await digests(job)) == 1
    assert report.steps == len(report.losses) == 20
    assert set(report.participants) == {2}
    assert report.ended == (20, 20)
    assert (report.incidents, report.skipped, report.lost_steps) == ((), (), 0)


@EITHER
async def test_data_that_does_not_divide_is_handed_out_once_and_all_end_together(quorum):
    async with FaultTolerantJob(
        Toy, replicas=4, data=range(97), sync=EveryStep(), quorum=quorum, detect_within_s=DETECT_S
    ) as job:
        report = await job.run()
        seen = Counter(item for items in (await job.trainers.items.call()).values() for _, item in items)
        assert len(await digests(job)) == 1
    assert seen == Counter(range(97))
    assert report.skipped == ()
    assert len(set(report.ended)) == 1


@EITHER
@pytest.mark.parametrize("kind", SYNCS)
async def test_a_killed_replica_comes_back_with_equal_state_and_the_others_never_restart(quorum, kind, figures):
    async def plan(job, failures):
        await trained(job, 3)
        for replica in (1, 2, 0):
            failures.inject("kill", replica=replica)
            await trained(job, 3)

    async with ran(plan, replicas=3, sync=SYNCS[kind], quorum=quorum, detect_within_s=DETECT_S) as (job, report):
        outer = list((await job.trainers.outer.call()).values())
        for one in outer[1:]:
            for what in ("parameters", "momentum"):
                assert one[what].keys() == outer[0][what].keys()
                assert all(torch.equal(one[what][name], outer[0][what][name]) for name in one[what])
        states = (await job.procs.states()).values()
    assert [state.incarnation for state in states] == [1, 1, 1]
    assert [one.replica for one in report.incidents] == [1, 2, 0]
    for one in report.incidents:
        assert one.failure.signal == 9
        assert set(one.phases) == set(PHASES)
        assert one.source in {0, 1, 2} - {one.replica}
        assert one.bytes > 0
        assert one.survivors_committed is not None
        figures(
            f"survivors committed {1000 * one.survivors_committed:.0f} "
            + " ".join(f"{name} {1000 * at:.0f}" for name, at in one.phases.items())
        )


@pytest.mark.parametrize(("quorum", "replicas"), [("roost", 2), ("roost", 3), ("torchft", 2)])
async def test_every_kind_of_end_is_got_over(quorum, replicas, figures):
    """torchft alone waits for one of two that hangs until its quorum's time is over, and dies: heartbeats go on."""
    took = {}

    async def plan(job, failures):
        for kind in ("segfault", "exception", "hang", "hang with the GIL", "freeze"):
            await trained(job, replicas)
            # Past the first step of its life, which may take longer.
            await progressed(job, 20)
            failures.inject(kind, replica=1)
            await trained(job, replicas)
            took[kind] = job.incidents[-1].failed_at - failures.injected[-1].at

    async with ran(plan, replicas=replicas, sync=DiLoCo(10), quorum=quorum, detect_within_s=DETECT_S) as (_, report):
        pass
    assert [one.replica for one in report.incidents] == [1] * len(took)
    for kind, incident in zip(took, report.incidents, strict=True):
        if kind in ("hang", "exception"):
            assert "Thread" in incident.failure.stderr
        # Detected within the time that was set, give or take what this machine is busy with.
        assert took[kind] < 1.1 * DETECT_S + 1
        back_s = incident.phases["first_step"]
        figures(
            f"{kind}, {replicas} replicas: over after {took[kind]:.2f} s of {DETECT_S:g}, back {back_s:.2f} s later"
        )


@pytest.mark.parametrize(("quorum", "replicas"), [("roost", 2), ("roost", 3), ("torchft", 2), ("torchft", 3)])
async def test_a_collective_error_costs_a_sync_and_nobodys_life(quorum, replicas, figures):
    took = []

    async def plan(job, failures):
        await trained(job, replicas)
        for _ in range(10):
            began = time.monotonic()
            failures.inject("collective error", replica=1)
            await progressed(job, 3)
            took.append(time.monotonic() - began)

    async with ran(plan, replicas=replicas, sync=EveryStep(), quorum=quorum, detect_within_s=DETECT_S) as (_, report):
        assert report.incidents == ()
        assert report.lost_steps <= 10 * replicas
    assert max(took) < 1.1 * DETECT_S
    figures(f"{quorum}, {replicas} replicas: three steps on after {1000 * max(took):.0f} ms at most, of {DETECT_S:g} s")


@EITHER
async def test_whoever_votes_no_alone_all_go_on_together(quorum, figures):
    """With torchft's quorum the step counts for the others, and who said no takes their state; with Roost's it counts for nobody."""
    async with FaultTolerantJob(
        Doubtful, replicas=3, steps=100, sync=EveryStep(), quorum=quorum, detect_within_s=DETECT_S
    ) as job:
        began = time.monotonic()
        report = await job.run()
        took = time.monotonic() - began
        assert len(await digests(job)) == 1
    assert report.incidents == ()
    assert report.ended == (100,) * 3
    assert report.lost_steps >= 3
    figures(f"{quorum}: 100 steps, and {report.lost_steps} of replicas that did not count, in {took:.1f} s")


@EITHER
async def test_a_majority_of_newcomers_waits_for_the_one_that_has_the_state(quorum):
    """torchft by its defaults lets two newcomers go off from the beginning, and the third takes its state from them."""

    async def plan(job, failures):
        await trained(job, 3)
        await progressed(job, 30)
        before.append(job.progress)
        failures.inject("kill", replica=1)
        failures.inject("kill", replica=2)
        await trained(job, 3)

    before = []
    paced = partial(Toy, pace_s=0.05)
    async with ran(plan, paced, replicas=3, sync=DiLoCo(30), quorum=quorum, detect_within_s=DETECT_S) as (job, report):
        seen = (await job.trainers.items.call()).values()
        states = (await job.procs.states()).values()
    assert [state.incarnation for state in states] == [0, 1, 1]
    assert {one.source for one in report.incidents} == {0}
    # Whoever came back counted from where training was.
    assert all(items[0][0] >= before[0] for items in seen[1:])


@pytest.mark.parametrize(
    ("quorum", "service"), [("roost", "quorum service"), ("roost", "stores"), ("torchft", "quorum service")]
)
async def test_training_outlives_its_services(quorum, service):
    """A lighthouse that is restarted counts from 1 again: torchft alone goes on in groups that are gone."""

    async def plan(job, failures):
        await trained(job, 3)
        for _ in range(3):
            failures.inject(service)
            await progressed(job, 20)
        failures.inject(service)
        failures.inject("kill", replica=0)
        await trained(job, 3, {0})

    async with ran(plan, replicas=3, sync=DiLoCo(10), quorum=quorum, detect_within_s=DETECT_S) as (_, report):
        assert [one.replica for one in report.incidents] == [0]


@EITHER
async def test_a_quorum_service_that_stands_still_is_ended(quorum):
    async def plan(job, failures):
        await trained(job, 2)
        state = (await job.services["quorum service"].states()).item()
        os.kill(state.pid, signal.SIGSTOP)
        await progressed(job, 40)
        assert (await job.services["quorum service"].states()).item().incarnation == 1

    async with ran(plan, replicas=2, sync=DiLoCo(10), quorum=quorum, detect_within_s=DETECT_S) as (_, report):
        assert report.incidents == ()


@EITHER
async def test_a_replica_of_several_procs_restarts_as_one(quorum):
    async def plan(job, failures):
        await trained(job, 2)
        failures.inject("kill", replica=1, proc=1)
        await trained(job, 2)
        failures.inject("whole replica", replica=1)
        await trained(job, 2)

    async with ran(plan, replicas=2, procs=2, sync=DiLoCo(10), quorum=quorum, detect_within_s=DETECT_S) as (_, report):
        assert [one.replica for one in report.incidents] == [1, 1]
        assert report.incidents[0].procs == (1,)


@EITHER
async def test_a_replica_that_dies_in_the_last_step_ends_with_what_all_end_with(quorum):
    async with FaultTolerantJob(
        DiesLast, replicas=2, steps=20, sync=EveryStep(), quorum=quorum, detect_within_s=DETECT_S
    ) as job:
        report = await job.run()
        assert len(await digests(job)) == 1
    assert [one.replica for one in report.incidents] == [1]
    assert report.ended == (20, 20)


@EITHER
async def test_who_comes_back_after_the_end_when_the_quorum_service_is_new_waits_for_nobody(quorum, tmp_path):
    gate = tmp_path / "gate"
    late = partial(ComesBackLate, str(gate))
    async with FaultTolerantJob(
        late, replicas=2, steps=20, sync=EveryStep(), quorum=quorum, detect_within_s=DETECT_S
    ) as job:
        running = asyncio.create_task(job.run())
        # The other one has ended, alone.
        await job.companions.slice(replicas=0).final.call()
        service = job.services["quorum service"]
        Failures(job).inject("quorum service")
        while (await service.states()).item().incarnation == 0:
            await asyncio.sleep(0.005)
        await service.ready()
        gate.touch()
        report = await running
    assert report.ended == (20, 20)


@EITHER
async def test_the_last_replica_with_the_state_takes_training_with_it(quorum):
    """torchft alone begins again from step 0, and says nothing."""

    async def plan(job, failures):
        await trained(job, 2)
        await progressed(job, 10)
        for replica in range(2):
            failures.inject("kill", replica=replica)
        await asyncio.Event().wait()

    with pytest.raises(RoostError, match="no replica is left that has the trained state"):
        async with ran(plan, replicas=2, sync=EveryStep(), quorum=quorum, detect_within_s=DETECT_S):
            pass


@EITHER
async def test_fewer_than_min_replicas_are_an_error_when_no_more_can_come(quorum):
    async def plan(job, failures):
        for _ in range(2):
            await trained(job, 2)
            failures.inject("kill", replica=1)
        await asyncio.Event().wait()

    once = Restart(limit=1, backoff_s=(0.0, 0.0))
    with pytest.raises(RoostError, match="1 of 2 replicas are left, and min_replicas is 2"):
        async with ran(
            plan, replicas=2, min_replicas=2, sync=EveryStep(), restart=once, quorum=quorum, detect_within_s=DETECT_S
        ):
            pass


@pytest.mark.parametrize(
    ("quorum", "what", "error", "text"),
    [
        ("roost", "build", ZeroDivisionError, "division"),
        ("roost", "state", TypeError, r"trainer\.note does not"),
        ("roost", "fragments", ValueError, "nothing"),
        ("torchft", "state", TypeError, r"trainer\.note does not"),
    ],
)
async def test_what_cannot_be_built_is_the_error_of_run(quorum, what, error, text):
    sync = DiLoCo(2, fragments=("nothing",)) if what == "fragments" else EveryStep()
    async with FaultTolerantJob(
        partial(Broken, what), replicas=2, steps=5, sync=sync, quorum=quorum, detect_within_s=DETECT_S
    ) as job:
        with pytest.raises(error, match=text):
            await job.run()


@EITHER
async def test_leaving_a_job_in_the_midst_of_its_run_takes_no_grace(quorum):
    async with FaultTolerantJob(
        PACED, replicas=2, steps=100_000, sync=DiLoCo(10), quorum=quorum, detect_within_s=DETECT_S
    ) as job:
        running = asyncio.create_task(job.run())
        await trained(job, 2)
        # Its own endpoints answer meanwhile.
        assert len(await job.trainers.pid.call()) == 2
        running.cancel()
        began = asyncio.get_running_loop().time()
    states = (await job.procs.states()).values()
    assert [state.failure.kind for state in states] == ["stopped", "stopped"]
    assert asyncio.get_running_loop().time() - began < 30


async def test_newcomers_do_not_end_the_run_of_one_whose_heartbeats_are_late():
    """torchft alone has them train from the beginning; their quorums count for nothing until it is among them."""

    async def plan(job, failures):
        await trained(job, 2)
        pid = (await job.procs.slice(replicas=0).states()).item().pid
        failures.inject("kill", replica=1)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(7)
        os.kill(pid, signal.SIGCONT)
        await trained(job, 2)

    # Heartbeats may be missing for 2 s, and a process may stand still for 11.
    async with ran(plan, replicas=2, sync=EveryStep(), quorum="torchft", detect_within_s=20) as (_, report):
        assert [(one.replica, one.source) for one in report.incidents] == [(1, 0)]


async def test_what_would_change_its_time_outs_is_left_out(monkeypatch):
    """torchft reads them from the environment, in whole seconds, whatever its manager is made with."""
    monkeypatch.setenv("TORCHFT_QUORUM_TIMEOUT_SEC", "0.5")
    async with FaultTolerantJob(
        Toy, replicas=2, steps=5, sync=EveryStep(), quorum="torchft", detect_within_s=DETECT_S
    ) as job:
        assert (await job.run()).steps == 5
