"""Broadcasts to the dead: each is kept, and a flood of them does not fill the log."""

import logging

import pytest
from loops import handled, on_a_loop
from staged import Trainer

from roost import context, this_host
from roost.testing import clock, kill, local_mesh

pytestmark = pytest.mark.usefixtures("nothing_left")

MANY = 10_000


@pytest.mark.parametrize("spawn", [local_mesh, this_host().spawn_procs])
@on_a_loop
async def test_a_flood_is_two_lines(spawn, caplog):
    caplog.set_level(logging.WARNING, "roost.dead_letters")
    with clock() as time:
        async with spawn({"gpus": 2}, supervise=handled) as procs:
            trainers = procs.spawn("trainers", Trainer)
            await trainers
            kill(procs)
            await procs.wait()
            for _ in range(MANY):
                trainers.step.broadcast()
            trainers.work.broadcast()
            lines = [record.getMessage() for record in caplog.records if record.name == "roost.dead_letters"]
            assert [line.split(" from ")[0] for line in lines] == ["broadcast step", "broadcast work"]
            await time.advance(1)
            lines = [record.getMessage() for record in caplog.records if record.name == "roost.dead_letters"][2:]
            assert [line.split(": broadcast ")[0] for line in lines] == [
                f"{2 * MANY - 1} more like this one", "1 more like this one",
            ]  # fmt: skip
            # Each is kept, as far as there is room; and it begins anew once it was quiet.
            assert len(context().job.dead_letters) == 1000
            await time.advance(2)
            trainers.slice(gpus=0).step.broadcast()
            assert caplog.records[-1].getMessage().startswith("broadcast step from driver to trainers[gpus=0]")
