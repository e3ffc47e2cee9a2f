"""`Probe`: an actor that says that it is unhealthy, or says nothing, has failed."""

import asyncio

import pytest
from loops import next_of, on_a_loop
from patient import Patient

from roost import ActorDied, Probe, Restart, this_host, this_proc

PROBE = Probe(period_s=0.1, failures_max=2, grace_s=0.3)


def collected(failures):
    async def hook(failure):
        failures.append(failure)
        return True

    return hook


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_a_healthy_one_is_asked_again_and_again_also_while_it_is_busy():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        patients = procs.options(probe=PROBE).spawn("patients", Patient)
        assert all(count >= 5 for count in await patients.wait_for_questions.call(5))
        assert [state.state for state in await patients.states()] == ["up", "up"]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (False, r"unhealthy: __healthy__ said no \(3 times in a row\)"),
        (ValueError("a valve"), r"unhealthy: __healthy__ raised ValueError: a valve \(3 times in a row\)"),
        ("silence", r"unhealthy: no answer within 0\.1 s \(3 times in a row\)"),
    ],
)
@on_a_loop
async def test_one_that_says_no_raises_or_says_nothing_has_failed(answer, says):
    failures = []
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        patients = procs.options(probe=PROBE, supervise=collected(failures)).spawn("patients", Patient)
        await patients.wait_for_questions.call(1)
        # Until then its answers were yes.
        await patients.slice(gpus=1).become.call_one(answer)
        states = await patients.slice(gpus=1).wait()
        with pytest.raises(ActorDied, match=says):
            await patients.slice(gpus=1).questions.call_one()
        # The other goes on.
        assert await patients.slice(gpus=0).questions.call_one() > 0
    assert [state.state for state in states] == ["failed"]
    assert [(failure.kind, failure.origin, failure.name) for failure in failures] == [
        ("unhealthy", "user", "patients[gpus=1]")
    ]


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_before_its_first_yes_it_is_not_ready_yet_and_has_a_grace():
    failures = []
    async with this_host().spawn_procs() as procs:
        patients = procs.options(
            probe=Probe(period_s=0.05, failures_max=0, grace_s=0.5), supervise=collected(failures)
        ).spawn("patients", Patient, False)
        # Far more than one no, and all in the grace.
        assert await patients.wait_for_questions.call_one(4) >= 4
        await patients.wait()
    assert "not ready yet: __healthy__ said no (once)" in failures[0].reason


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_a_policy_mends_it_and_the_next_life_is_asked_anew():
    async with this_host().spawn_procs() as procs:
        patients = procs.options(probe=PROBE, restart=Restart(backoff_s=(0, 0))).spawn("patients", Patient)
        events = patients.events()
        await patients.wait_for_questions.call(1)
        assert await patients.become.call_one(False) == 0
        failed = await next_of(events, "failed")
        await next_of(events, "recovered")
        assert await patients.become.call_one(True) == 1
        await patients.wait_for_questions.call(5)
    assert failed.failure.kind == "unhealthy"


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_the_process_of_one_that_does_not_even_end_is_killed():
    failures = []
    async with this_host().spawn_procs({"gpus": 2}, supervise=collected(failures)) as procs:
        patients = procs.options(probe=PROBE).spawn("patients", Patient)
        await patients.wait_for_questions.call(1)
        stuck = patients.slice(gpus=0).block.call_one(60)
        with pytest.raises(ActorDied, match="unhealthy: no answer"):
            await asyncio.wait_for(stuck, 20)
        assert await patients.slice(gpus=1).questions.call_one() > 0
    assert [(failure.name, failure.signal) for failure in failures] == [("procs[gpus=0]", 9)]


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_in_the_drivers_own_process_too():
    failures = []
    patients = this_proc().options(probe=PROBE, supervise=collected(failures)).spawn("patients", Patient)
    await patients.wait_for_questions.call_one(2)
    await patients.become.call_one(False)
    await patients.wait()
    assert failures[0].kind == "unhealthy"
    await patients.stop()
