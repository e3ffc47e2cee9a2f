"""A call that waits for itself is an error, and one that only looks like it is none."""

import asyncio
import time

import pytest
from loops import in_the_job
from ring import Ring

from roost import DeadlockError, MeshError, this_proc

pytestmark = pytest.mark.usefixtures("procs")


@pytest.fixture
def rings(job, procs):
    """Three actors, each in a process of its own, as meshes of one."""
    mesh = procs.spawn("rings", Ring)
    yield [mesh.slice(gpus=gpu) for gpu in range(3)]
    job.run(stopped(mesh))


async def stopped(mesh):
    await mesh.stop()


def cycle(*gpus, endpoint="go", last="go"):
    names = [f"rings[gpus={gpu}].{endpoint}" for gpu in gpus]
    return (*names[:-1], f"rings[gpus={gpus[-1]}].{last}")


def leaves(group):
    for error in group.exceptions:
        yield from leaves(error) if isinstance(error, ExceptionGroup) else [error]


@in_the_job
async def test_through_two_processes_it_names_both_endpoints_at_once(rings):
    a, b, _ = rings
    await asyncio.gather(a.go.call_one([]), b.go.call_one([]), a.go.call_one([b]))
    start = time.perf_counter()
    with pytest.raises(DeadlockError) as caught:
        await a.go.call_one([b, a])
    seconds = time.perf_counter() - start
    assert caught.value.cycle == cycle(0, 1, 0)
    assert seconds < 1, "at once, and not after some time-out"
    # Everybody goes on.
    assert await a.go.call_one([b]) == "round"


@in_the_job
async def test_through_more_and_through_none(rings):
    a, b, c = rings
    with pytest.raises(DeadlockError) as caught:
        await a.go.call_one([b, c, a])
    assert caught.value.cycle == cycle(0, 1, 2, 0)
    # The cycle need not begin where the calls do.
    with pytest.raises(DeadlockError) as caught:
        await a.go.call_one([b, c, b])
    assert caught.value.cycle == cycle(1, 2, 1)
    with pytest.raises(DeadlockError) as caught:
        await a.go.call_one([a])
    assert caught.value.cycle == cycle(0, 0)
    assert "rings[gpus=0].go → rings[gpus=0].go" in str(caught.value)


@in_the_job
async def test_the_drivers_own_actors_too(rings):
    here = this_proc().spawn("here", Ring)
    a = rings[0]
    with pytest.raises(DeadlockError) as caught:
        await here.go.call_one([a, here])
    assert caught.value.cycle == ("here.go", "rings[gpus=0].go", "here.go")
    assert await here.beside.call_one([a, here]) == "round"
    await here.stop()


@in_the_job
async def test_concurrent_endpoints_complete(rings):
    a, b, _ = rings
    assert await a.beside.call_one([b, a]) == "round"
    assert await a.one_at_a_time.call_one([b]) == "round"


@in_the_job
async def test_what_waits_for_concurrent_ones_or_for_their_limit_does_not(rings):
    a, b, _ = rings
    with pytest.raises(DeadlockError) as caught:
        await a.then_alone.call_one([b, a])
    assert caught.value.cycle == cycle(0, 1, 0, endpoint="then_alone")
    with pytest.raises(DeadlockError) as caught:
        await a.one_at_a_time.call_one([b, a])
    assert caught.value.cycle == cycle(0, 1, 0, endpoint="one_at_a_time", last="one_at_a_time")


@in_the_job
async def test_a_call_to_a_mesh_fails_for_that_rank(rings):
    a, b, _ = rings
    with pytest.raises(MeshError) as caught:
        await a.go_all.call_one([b, a])
    ((_, error),) = caught.value.items()
    while isinstance(error, MeshError):
        ((_, error),) = error.items()
    assert isinstance(error, DeadlockError)
    assert error.cycle == cycle(0, 1, 0, endpoint="go_all", last="go_all")


@in_the_job
async def test_a_call_to_a_mesh_of_which_each_rank_calls_back(job, procs):
    async with procs.spawn("callers", Ring) as mesh, this_proc().spawn("asked", Ring) as asked:
        async with asyncio.timeout(20):
            with pytest.raises(MeshError) as caught:
                await asked.go_all.call([mesh, asked])
        assert all(isinstance(error, DeadlockError) for error in leaves(caught.value))


@in_the_job
async def test_it_is_none_while_another_rank_of_the_call_may_end_it(rings, procs):
    a, b, c = rings
    async with procs.slice(gpus=slice(1, 3)).spawn("pair", Ring) as pair:
        # One rank waits for the caller; the other fails, and with that the caller goes on.
        assert await a.gather.call_one(pair, a) == ["the other rank"]
    assert await a.go.call_one([b, c]) == "round"


@in_the_job
async def test_calls_with_a_deadline_are_no_way_out(rings):
    a, b, _ = rings
    start = time.perf_counter()
    with pytest.raises(DeadlockError):
        await a.go_within.call_one([b, a], 20.0)
    assert time.perf_counter() - start < 5, "at once, and not at the deadline"


@in_the_job
async def test_what_is_not_awaited_is_none(rings):
    a, b, _ = rings
    assert await a.without_waiting.call_one([b, a]) == "sent"
    # One that awaited it in the meantime would wait for itself, over a reply that another message has stored.
    while not await a.is_done.call_one():
        await asyncio.sleep(0.001)
    assert await a.outcome.call_one() == "round"


@in_the_job
async def test_one_that_awaits_later_is_found_then(rings):
    a, b, _ = rings
    with pytest.raises(DeadlockError) as caught:
        await a.wait_late.call_one([b, a], 0.3)
    assert caught.value.cycle == ("rings[gpus=0].wait_late", *cycle(1, 0))


@in_the_job
async def test_it_comes_before_a_time_out_and_can_be_caught(rings):
    a, b, _ = rings
    assert await a.within.call_one([b, a], 20) == "DeadlockError"


@in_the_job
async def test_a_time_out_that_is_shorter_breaks_the_cycle(rings):
    a, b, _ = rings
    assert await a.within.call_one([b, a], 0.001) in ("TimeoutError", "DeadlockError")
    assert await a.go.call_one([b]) == "round"


@in_the_job
async def test_one_that_a_broadcast_began_too(rings):
    a, b, _ = rings
    a.started_by_a_broadcast.broadcast([b, a])
    assert isinstance(await a.what_was_found.call_one(), DeadlockError)
