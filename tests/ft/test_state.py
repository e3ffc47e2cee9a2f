"""States that travel between real processes."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from peers import Peer
from roost import ActorDied, this_host

pytest.importorskip("torch")

pytestmark = [pytest.mark.timeout(200), pytest.mark.asyncio(loop_scope="module")]


async def peers_on(procs, mib):
    peers = await procs.spawn("peers", Peer, mib)
    return peers, *(peers.slice(replicas=replica, procs=0) for replica in range(3))


def three():
    return this_host().spawn_procs({"replicas": 3, "procs": 1}, preload=["torch", "roost.ft.state"])


async def test_newcomers_share_one_staged_state_and_take_it_without_a_second_copy(figures, rounds):
    mib = rounds(128, 1024)
    async with three() as procs:
        peers, donor, first, second = await peers_on(procs, mib)
        # Asked for before it is there: it is waited for.
        taking = [first.take.call_one(3, peers, False), second.take.call_one(3, peers, True)]
        staged_s = await donor.stage.call_one(3, peers)
        (took, peak, same, _), (took_in_place, peak_in_place, same_too, in_place) = await asyncio.gather(*taking)
        again_s = await donor.stage.call_one(4, peers)
        warm = await first.take.call_one(4, peers, True)
        alone = await second.alone.call_one(4, peers)
        new = await second.take.call_one(4, peers, False)
        await second.stage.call_one(4, peers)
        of_two = await first.take.call_one(4, peers, True, (0, 2))
        new_of_two = await first.take.call_one(4, peers, False, (0, 2))
    assert (same, same_too, in_place, warm[2], of_two[2]) == (True,) * 5
    assert peak < 1.1 * mib + 8
    assert peak_in_place < 0.1 * mib + 8
    figures(
        f"{mib} MiB: staged in {1000 * staged_s:.0f} ms, again in {1000 * again_s:.0f}; two at once, with the wait for that, in "
        f"{1000 * took:.0f} and {1000 * took_in_place:.0f}; peak of a newcomer {peak:.0f} MiB, into tensors that are there "
        f"{peak_in_place:.0f}"
    )
    for what, seconds, floor in (("new tensors", new[0], alone[0]), ("tensors that are there", warm[0], alone[1])):
        rate, of_floor = mib / 1024 / seconds, floor / seconds
        figures(f"one into {what}: {rate:.2f} GiB/s, checksum and all: {of_floor:.2f} of one-sided memory alone")
        # What else this machine does is left out by the long form alone, which has it for itself.
        assert of_floor >= rounds(0.1, 0.7)

    for what, one, two in (("new tensors", new, new_of_two), ("tensors that are there", warm, of_two)):
        rates = mib / 1024 / one[0], mib / 1024 / two[0]
        figures(f"into {what}: {rates[0]:.2f} GiB/s from one donor, {rates[1]:.2f} from two")


async def test_a_newcomer_waits_for_no_state_of_a_quorum_that_is_over():
    """A donor that has left it, because it could not make the group, say, stages nothing for it."""
    async with three() as procs:
        peers, _, newcomer, _ = await peers_on(procs, 1)
        seconds, error = await newcomer.take_in_vain.call_one(3, peers, 3)
    assert error == "the state of a peer was not taken: replica 0 has left"
    # A minute is how long it may take where something comes of the quorum.
    assert seconds < 20


async def handled(_):
    return True


@asynccontextmanager
async def four():
    """A newcomer, and donors that may die."""
    procs = this_host().spawn_procs({"replicas": 4, "procs": 1}, preload=["torch", "roost.ft.state"], supervise=handled)
    async with procs:
        peers = await procs.spawn("peers", Peer, 16)
        yield peers, [peers.slice(replicas=replica, procs=0) for replica in range(4)]


@pytest.mark.parametrize("dies", [1, 0], ids=["another", "the first"])
async def test_when_a_donor_dies_in_mid_transfer_the_others_go_on(dies):
    async with four() as (peers, (*donors, newcomer)):
        for one in donors:
            await one.stage.call_one(3, peers)
        pid = await donors[dies].pid.call_one()
        same, gave, _, begun = await newcomer.take_while.call_one(3, peers, (0, 1, 2), [pid], 4)
    assert same
    assert gave[0] == (1 if dies == 0 else 0)
    assert 2 in gave
    # 16 MiB in pieces of one, of which none was read again that was there.
    assert begun <= 16 + 2


async def test_what_differs_is_the_first_donors_alone():
    async with four() as (peers, (*donors, newcomer)):
        for number, one in enumerate(donors):
            await one.stage.call_one(3, peers, 10 + number)
        same, gave, inner, _ = await newcomer.take_while.call_one(3, peers, (1, 0, 2), [], 0)
    assert (same, inner) == (True, ([11.0], 11.0))
    assert gave[0] == 1
    assert set(gave) == {0, 1, 2}


async def test_a_state_is_one_donors_whoever_dies():
    """The first has given some of what differs when it dies: all of that is the next one's then."""
    async with four() as (peers, (*donors, newcomer)):
        for number, one in enumerate(donors):
            await one.stage.call_one(3, peers, 10 + number)
        pid = await donors[0].pid.call_one()
        same, gave, inner, _ = await newcomer.take_while.call_one(3, peers, (0, 1, 2), [pid], 8)
    assert (same, inner, gave[0]) == (True, ([11.0], 11.0), 1)


async def test_when_all_donors_die_there_is_no_state():
    async with four() as (peers, (*donors, newcomer)):
        for one in donors:
            await one.stage.call_one(3, peers)
        pids = [await one.pid.call_one() for one in donors[:2]]
        with pytest.raises(ActorDied):
            await newcomer.take_while.call_one(3, peers, (0, 1), pids, 3)


async def test_a_donor_that_is_dead_or_dies_meanwhile_is_an_error():
    procs = this_host().spawn_procs({"replicas": 3, "procs": 1}, preload=["torch", "roost.ft.state"], supervise=handled)
    async with procs:
        peers, donor, first, _ = await peers_on(procs, 8)
        waiting = first.take.call_one(3, peers, False)
        donor.die.broadcast()
        with pytest.raises(ActorDied):
            await waiting


async def test_a_state_that_is_staged_for_a_later_step_is_not_taken_for_an_earlier_one():
    async with three() as procs:
        peers, donor, first, _ = await peers_on(procs, 8)
        await donor.stage.call_one(5, peers)
        with pytest.raises(LookupError, match="is staged"):
            await first.take.call_one(4, peers, False)
