"""torchft's own manager heals by our transport."""

import asyncio

import pytest
from lighthouses import Replica

import roost.ft.quiet  # noqa: F401 - before torchft
from roost import this_host
from roost.ft.transport import Shelves, StateTransport

pytest.importorskip("torchft")

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture
def lighthouse():
    from torchft.coordination import LighthouseServer

    # Whoever lives is waited for, so that the newcomer is in the quorum that it asks for.
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=20_000)
    yield server.address()
    server.shutdown()


async def test_a_newcomer_takes_the_trained_state_of_a_peer(lighthouse):
    async with this_host().spawn_procs(
        {"replicas": 2}, preload=["roost.ft.quiet", "torch", "roost.ft.transport"]
    ) as procs:
        shelves = await procs.spawn("shelves", Shelves)
        replicas = await procs.spawn("replicas", Replica)
        first, second = replicas
        await first.begin.call_one(shelves, lighthouse)
        assert await first.train.call_one(1, 3) == ([3.0], [])
        await second.begin.call_one(shelves, lighthouse)
        told = await asyncio.gather(first.train.call_one(2, 3), second.train.call_one(2, 3))
        await replicas.end.call()
    (weights, nothing), (healed, taken) = told
    assert (healed, nothing, len(taken)) == (weights, [], 1)
    # It began with 1, and its peer was at 3 before it came.
    assert taken[0] >= 3


async def test_a_transport_wants_a_shelf_beside_it():
    with pytest.raises(RuntimeError, match="spawn its shelves first"):
        StateTransport(None, {})
