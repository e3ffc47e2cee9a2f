"""Whoever got a death, in whatever way and however late, has heard of it: in the driver, and in an actor that owns."""

import asyncio
import signal

import pytest
from hearers import WAYS, Boss, Doomed
from loops import on_a_loop
from mortal import Mortal

from roost import ActorDied, MeshError, this_host, this_proc

pytestmark = pytest.mark.usefixtures("nothing_left")

BY_NAME = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


@BY_NAME
@on_a_loop
async def test_in_the_driver(way):
    async with this_host().spawn_procs({"n": 2}) as procs:
        assert await way(procs.spawn("doomed", Doomed)) == "got"


@BY_NAME
@on_a_loop
async def test_in_an_actor_that_owns(way):
    async with this_proc().spawn("boss", Boss) as boss:
        assert await boss.go.call_one(way.__name__) == "got"
        assert await boss.lives.call_one()


@on_a_loop
async def test_one_that_nobody_looked_at_fails_the_owner_once_it_is_let_go():
    async with this_proc().spawn("boss", Boss) as boss:
        await boss.keep.call_one()
        assert await boss.lives.call_one(), "somebody may still look"
        with pytest.raises(ActorDied, match=r"in its mesh pair, of which pair\[n=0\] was killed by SIGKILL"):
            await boss.let_go.call_one()


@on_a_loop
async def test_nor_is_an_error_heard_that_a_stream_was_let_go_with():
    async with this_proc().spawn("boss", Boss) as boss:
        with pytest.raises(ActorDied, match="in its mesh pair") as caught:
            await boss.drop.call_one()
        assert caught.value.failure.cause.signal == signal.SIGKILL


@pytest.mark.parametrize("verb", ["ready", "call"])
@on_a_loop
async def test_who_was_told_that_a_mesh_does_not_start_has_heard_of_all_its_ranks(verb):
    async with this_host().spawn_procs({"n": 3}) as procs:
        mesh = procs.spawn("mortals", Mortal, "raise")
        with pytest.raises((ActorDied, MeshError)):
            await (mesh.ready() if verb == "ready" else mesh.pid.call())
        await mesh.wait()
        await asyncio.sleep(0.1)
