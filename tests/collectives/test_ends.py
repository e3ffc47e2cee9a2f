"""A rank that dies or hangs in the middle of an operation: all others are freed and told who it was."""

import os
import signal
import time

import pytest

from roost import Restart, this_host
from roost.errors import ActorDied, CollectiveError, MeshError

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

PRELOAD = ["torch", "computing"]
SIZE = 8
# Where it does not matter how many they are.
FEW = 4


@pytest.fixture
def joined():
    """A mesh whose ranks have a communicator."""

    def make(size=FEW, **options):
        return this_host().spawn_procs({"gpus": size}, preload=PRELOAD, name="procs", **options)

    return make


async def spawned(procs, libraries=None):
    from computing import Member

    mesh = procs.spawn("trainers", Member, libraries)
    await mesh.join.call()
    return mesh


async def killed_in_an_operation(mesh, who, *, of_part):
    """How long after the kill each of the others was free; of one whose process had to be ended for that there is no time."""
    holding = mesh.hold.call(who, of_part)
    await mesh.is_inside.call()
    pid = (await mesh.states()).item(gpus=who).pid
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    late = []
    for point, outcome in (await holding.outcomes()).items():
        if point["gpus"] == who:
            assert isinstance(outcome, ActorDied)
            continue
        if isinstance(outcome, ActorDied):
            # gloo did not give up a send: that is not promised, but that the process is ended then.
            assert "roost.collectives ends this process" in outcome.failure.stderr
            continue
        at, errors, part_is_broken = outcome
        assert errors
        for text, suspects, failure in errors:
            assert f"trainers[gpus={who}] died" in text
            assert suspects == (f"trainers[gpus={who}]",)
            assert failure.signal == signal.SIGKILL
        # What was split off ends as well, whether the dead rank was in it or not.
        assert part_is_broken
        late.append(at - killed_at)
    return late


@pytest.mark.timeout(900)
async def test_a_death_in_mid_operation_frees_all_others_and_names_the_dead(
    joined, libraries, rounds, promised, figures
):
    late: list[float] = []
    kills = rounds(5, 200)
    restart = Restart(limit=1000, within_s=60, backoff_s=(0.01, 0.02))
    async with joined(SIZE, restart=restart) as procs:
        mesh = await spawned(procs, libraries)
        for number in range(kills):
            if number % 2:
                await mesh.divide.call()
            late += await killed_in_an_operation(mesh, number % SIZE, of_part=number % 2 == 1)
            await mesh.ready()
            assert set((await mesh.rebuild.call()).values()) == {36.0}
    ended = kills * (SIZE - 1) - len(late)
    figures(f"{ended} of {kills * (SIZE - 1)} survivors were ended with what gloo did not give up")
    assert ended <= (kills if libraries == "sockets" else 0)
    promised(f"free after a kill, {SIZE} ranks", late, 99, 0.1)


async def test_a_rank_that_does_not_come_is_named_at_the_deadline(joined, libraries):
    async with joined() as procs:
        mesh = await spawned(procs, libraries)
        told = await mesh.wait_for.call(2, 0.5)
        for point, said in told.items():
            if point["gpus"] == 2:
                continue
            text, suspects, seconds = said
            assert suspects == ("trainers[gpus=2]",)
            assert "trainers[gpus=2] has not begun it (it has begun none)" in text
            assert 0.4 < seconds < 5
        # The one that did not come hears of it at its next operation.
        with pytest.raises(MeshError) as caught:
            await mesh.slice(gpus=slice(2, 3)).sum.call()
        assert isinstance(caught.value.exceptions[0], CollectiveError)
        assert set((await mesh.rebuild.call()).values()) == {10.0}


async def test_a_rank_that_stands_still_is_named_at_the_deadline(joined):
    async with joined() as procs:
        mesh = await spawned(procs)
        pid = (await mesh.states()).item(gpus=1).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            others = mesh.slice(gpus=slice(2, 4))
            told = others.wait_for.call(1, 0.5)
            first = mesh.slice(gpus=slice(0, 1)).wait_for.call(1, 0.5)
            for said in (*(await told).values(), *(await first).values()):
                assert said[1] == ("trainers[gpus=1]",)
                assert "trainers[gpus=1] does not answer" in said[0]
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_ranks_that_do_not_come_to_the_meeting_are_named(joined):
    from computing import Member

    async with joined() as procs:
        mesh = procs.spawn("trainers", Member)
        with pytest.raises(MeshError) as caught:
            # Time enough for the library to be imported on a busy machine.
            await mesh.slice(gpus=slice(0, 2)).join.call(timeout=2)
        first = caught.value.exceptions[0]
        assert isinstance(first, CollectiveError)
        assert first.suspects == ("trainers[gpus=2]", "trainers[gpus=3]")
        assert "trainers[gpus=2], trainers[gpus=3] did not come in time" in str(first)
        # Nothing is left of it: the next meeting is a new one.
        assert [*(await mesh.join.call()).values()] == [(rank, FEW) for rank in range(FEW)]


async def one_that_cannot_abort_is_ended(mesh):
    """Rank 3 does not come, so all abort; at rank 1 that hangs."""
    outcomes = await mesh.wait_for.call(3, 0.5).outcomes()
    failure = outcomes.item(gpus=1).failure
    assert failure.signal == signal.SIGKILL
    assert "roost.collectives ends this process: all_reduce, operation 1" in failure.stderr
    for rank in (0, 2):
        assert outcomes.item(gpus=rank)[1] == ("trainers[gpus=3]",)


async def test_an_abort_that_hangs_ends_its_process(joined):
    async with joined() as procs:
        mesh = await spawned(procs)
        await mesh.cannot_be_freed.call(1)
        await one_that_cannot_abort_is_ended(mesh)


async def faulty(procs, standin, faults):
    """A mesh whose ranks' stand-in libraries have these faults."""
    from computing import Member

    mesh = procs.spawn("trainers", Member, standin)
    await mesh.join_with_faults.call(faults)
    return mesh


async def test_an_abort_that_hangs_in_the_library_ends_its_process(joined, standin):
    async with joined() as procs:
        mesh = await faulty(procs, standin, {1: "hang_abort=1"})
        await one_that_cannot_abort_is_ended(mesh)


async def test_an_operation_that_hangs_in_the_library_ends_at_the_deadline(joined, standin):
    async with joined() as procs:
        mesh = await faulty(procs, standin, {2: "hang=2"})
        assert set((await mesh.sum.call()).values()) == {10.0}
        for text, suspects, _ in (await mesh.wait_for.call(None, 0.5)).values():
            assert "all ranks have begun it, and at all of them the library is still beginning it" in text
            assert suspects == ()
        assert set((await mesh.rebuild.call()).values()) == {10.0}


async def test_a_rank_whose_call_of_the_library_does_not_return_is_named(joined, standin):
    async with joined() as procs:
        mesh = await faulty(procs, standin, {2: "hang_call=2"})
        assert set((await mesh.sum.call()).values()) == {10.0}
        for text, suspects, _ in (await mesh.wait_for.call(None, 0.5)).values():
            assert "at trainers[gpus=2] the library's call has not returned, where the others are further" in text
            assert suspects == ("trainers[gpus=2]",)
        assert set((await mesh.rebuild.call()).values()) == {10.0}


async def test_a_rank_that_hangs_in_an_operation_is_named_where_the_host_shares_memory(joined):
    async with joined() as procs:
        mesh = await spawned(procs)
        await mesh.hang_in.call(2, "all_reduce")
        for point, said in (await mesh.wait_for.call(None, 0.5).outcomes()).items():
            if point["gpus"] == 2:
                # Nothing but its end frees it.
                assert isinstance(said, ActorDied)
                continue
            text, suspects, _ = said
            assert "all ranks have begun it, and what is missing is the part of trainers[gpus=2]" in text
            assert suspects == ("trainers[gpus=2]",)


async def test_who_has_ended_an_operation_is_not_suspected(joined):
    async with joined() as procs:
        mesh = await spawned(procs, "sockets")
        await mesh.hang_in.call(3, "broadcast")
        outcomes = await mesh.wait_for.call(None, 0.5, "broadcast").outcomes()
        assert isinstance(outcomes.item(gpus=3), ActorDied)
        # Gloo's ranks wait for those to whom they pass it on.
        ended = [rank for rank in range(FEW) if outcomes.item(gpus=rank) is None]
        assert ended
        names = [f"trainers[gpus={rank}]" for rank in range(FEW)]
        inside = tuple(names[rank] for rank in range(FEW) if rank not in ended)
        with pytest.raises(MeshError) as caught:
            await mesh.slice(gpus=slice(0, 3)).sum.call()
        for error in caught.value.exceptions:
            assert isinstance(error, CollectiveError)
            assert error.suspects == inside
            assert f"it has ended at {', '.join(names[rank] for rank in ended)}, and hangs at {inside[0]}" in str(error)


async def test_what_the_library_says_of_an_error_is_told_at_all_ranks(joined, standin):
    async with joined() as procs:
        mesh = await faulty(procs, standin, {1: "fail=2:6"})
        for text, suspects in (await mesh.until_it_fails.call()).values():
            assert "trainers[gpus=1] had an error in all_reduce, operation 2: ncclCommGetAsyncError returned 6" in text
            assert "operation 2 failed, as the test wanted" in text
            assert suspects == ()


async def test_a_start_that_hangs_in_the_library_ends_with_the_rank_that_dies(joined, standin):
    from computing import Member

    async with joined() as procs:
        mesh = procs.spawn("trainers", Member, standin)
        joining = mesh.join_with_faults.call(dict.fromkeys(range(FEW), "hang_init=1"))
        await mesh.is_inside.call()
        os.kill((await mesh.states()).item(gpus=2).pid, signal.SIGKILL)
        outcomes = await joining.outcomes()
        for rank in (0, 1, 3):
            assert "trainers[gpus=2] died" in str(outcomes.item(gpus=rank))
