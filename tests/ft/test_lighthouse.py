"""The actor around torchft's lighthouse: whom it has wait, and for what."""

import asyncio
from types import SimpleNamespace

import pytest

from roost.ft import lighthouse
from roost.ft.ending import End
from roost.ft.lighthouse import Lighthouse
from roost.ft.quorum import Member, Report
from roost.ft.service import Counts
from roost.ft.timeouts import Timeouts

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="module")]


class Companions:
    """Notes what is broadcast to them."""

    def __init__(self):
        self.renewed = []
        self.renew = SimpleNamespace(broadcast=self.renewed.append)


@pytest.fixture
def two(monkeypatch):
    """One with two replicas, in its first life, which has none of torchft's yet."""
    monkeypatch.setattr(lighthouse, "context", lambda: SimpleNamespace(incarnation=0))
    return Lighthouse(Companions(), None, "127.0.0.1", Timeouts(5.0), Counts(replicas=2, procs=1, min_replicas=2))


async def arrived(two):
    """The first replica has its manager, and waits for the second."""
    waiting = asyncio.ensure_future(two.arrive(Member(0, 0, 0)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def finished(two):
    await two.finish("it is told to")
    return End(error="it is told to")


async def over_elsewhere(two):
    await two.over(End(base=20))
    return End(base=20)


async def heard_of(two):
    two._heard(1, 0, Report(0, has_state=True, end=End(base=30)))
    return End(base=30)


@pytest.mark.parametrize("ends", [finished, over_elsewhere, heard_of])
async def test_who_waits_for_the_others_hears_of_the_end(two, ends):
    waiting = await arrived(two)
    end = await ends(two)
    assert await asyncio.wait_for(waiting, 5) == end
    # And so does who comes later.
    assert await asyncio.wait_for(two.arrive(Member(1, 0, 0)), 5) == end


async def test_who_waits_for_the_others_goes_on_when_they_have_come(two):
    waiting = await arrived(two)
    assert await asyncio.wait_for(two.arrive(Member(1, 0, 0)), 5) is None
    assert await asyncio.wait_for(waiting, 5) is None
