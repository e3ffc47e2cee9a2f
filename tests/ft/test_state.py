"""States that travel between real processes."""

import asyncio

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
    assert (same, same_too, in_place, warm[2]) == (True, True, True, True)
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


async def test_a_donor_that_is_dead_or_dies_meanwhile_is_an_error():
    async def handled(_):
        return True

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
