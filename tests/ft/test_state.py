"""States that travel between real processes."""

import asyncio

import pytest

from peers import Peer
from roost import ActorDied, this_host

pytest.importorskip("torch")

pytestmark = [pytest.mark.timeout(200), pytest.mark.asyncio(loop_scope="module")]

MIB = 128


async def peers_on(procs, mib=MIB):
    peers = await procs.spawn("peers", Peer, mib)
    return peers, *(peers.slice(replicas=replica, procs=0) for replica in range(3))


def three():
    return this_host().spawn_procs({"replicas": 3, "procs": 1}, preload=["torch", "roost.ft.state"])


async def test_newcomers_share_one_staged_state_and_take_it_without_a_second_copy(figures):
    async with three() as procs:
        peers, donor, first, second = await peers_on(procs)
        # Asked for before it is there: it is waited for.
        taking = [first.take.call_one(3, peers, False), second.take.call_one(3, peers, True)]
        staged_s = await donor.stage.call_one(3, peers)
        (took, peak, same, _), (took_in_place, peak_in_place, same_too, in_place) = await asyncio.gather(*taking)
        again_s = await donor.stage.call_one(4, peers)
        warm = await first.take.call_one(4, peers, True)
    assert (same, same_too, in_place, warm[2]) == (True, True, True, True)
    assert peak < 1.1 * MIB + 8
    assert peak_in_place < 0.1 * MIB + 8
    figures(
        f"{MIB} MiB: staged in {1000 * staged_s:.0f} ms, again in {1000 * again_s:.0f}; taken {1000 * took:.0f} and "
        f"{1000 * took_in_place:.0f} (both with the wait for staging), then {1000 * warm[0]:.0f} ms = {MIB / 1024 / warm[0]:.2f} GiB/s; "
        f"peak of a newcomer {peak:.0f} MiB, into tensors that are there {peak_in_place:.0f}"
    )


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
