"""What an actor owns ends with it, also where it lives in a process of somebody else's."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from loops import handled, next_of, on_a_loop, wait_until_gone
from owner import Owner

from roost import Restart, this_host
from roost.errors import StoppedError


async def ended(mesh):
    """What calls to an actor are answered with, once they are."""
    async with asyncio.timeout(20):
        while True:
            try:
                await mesh.pid.call_one()
            except StoppedError as error:
                return str(error)
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("restart", [None, Restart(backoff_s=(0, 0))], ids=["for good", "restarted"])
@on_a_loop
async def test_when_the_owners_process_dies_so_does_what_it_had_in_others(restart, tmp_path):
    path = tmp_path / "lives"
    async with (
        this_host().spawn_procs(name="theirs", restart=Restart(backoff_s=(0, 0))) as theirs,
        this_host().spawn_procs(name="owners", restart=restart, supervise=handled) as own,
    ):
        owner = own.spawn("owner", Owner)
        owned = await owner.own.call_one(theirs, str(path))
        there = await owned.pid.call_one()
        os.kill(await owner.pid.call_one(), signal.SIGKILL)
        assert "its owner ended with its process" in await ended(owned)
        # Nor do they come back when their process is started again.
        os.kill(there, signal.SIGKILL)
        events = theirs.events()
        await next_of(events, "recovered")
        assert Path(path).read_text().split() == [str(there)]
        if restart is not None:
            # The owner's next life has what it spawns then.
            again = await (await owner.ready()).own.call_one(theirs, str(path))
            assert await again.pid.call_one() != there


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_an_owner_that_was_started_again_has_processes_as_before():
    async with this_host().spawn_procs(restart=Restart(backoff_s=(0, 0))) as procs:
        owner = procs.spawn("owner", Owner)
        events = procs.events()
        before = await owner.own_procs.call_one()
        os.kill(await owner.pid.call_one(), signal.SIGKILL)
        for pid in before:
            wait_until_gone(pid)
        await next_of(events, "recovered")
        assert len(set(await owner.own_procs.call_one())) == 2
