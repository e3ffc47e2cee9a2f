"""No descriptors are left in some process: a clear error, everything else goes on, and all works again afterwards."""

import asyncio
import os
import resource

import numpy as np
import pytest
from greedy import Greedy, take_all
from loops import on_a_loop
from procs import template_pid

from roost import ActorDied, context, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

# Large enough for shared memory.
ARRAY = np.ones(4 << 20, np.uint8)


@on_a_loop
async def test_in_a_proc():
    async with this_host().spawn_procs({"ranks": 3}) as procs:
        greedy = procs.spawn("greedy", Greedy)
        first, second, third = greedy
        await greedy.echo.call(1)
        await second.take.call_one()
        # What is connected goes on; what would need a descriptor goes as bytes, both ways.
        assert await second.total.call_one(ARRAY) == ARRAY.size
        assert (await second.echo.call_one(ARRAY)).sum() == ARRAY.size
        # A new connection cannot be made, and the caller is told why.
        with pytest.raises(ActorDied, match="descriptors"):
            await first.ask.call_one(second, 5)
        with pytest.raises(ActorDied, match="descriptors"):
            await second.ask.call_one(third, 5)
        # Others do not notice.
        assert await first.ask.call_one(third, 6) == 6
        await second.give_back.call_one()
        assert await first.ask.call_one(second, 7) == 7
        assert await second.ask.call_one(third, 8) == 8
        assert await second.total.call_one(ARRAY) == ARRAY.size


@on_a_loop
async def test_in_the_driver():
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        greedy = procs.spawn("greedy", Greedy)
        await greedy.echo.call(1)
        taken = take_all()
        try:
            # What is connected goes on.
            assert list(await greedy.total.call(ARRAY)) == [ARRAY.size] * 2
            assert (await greedy.slice(ranks=0).echo.call_one(ARRAY)).sum() == ARRAY.size
            late = this_host().spawn_procs(name="late")
            with pytest.raises(ActorDied, match="descriptors"):
                await asyncio.wait_for(late.spawn("actor", Greedy).ready(), 10)
        finally:
            for fd in taken:
                os.close(fd)
        await late.stop()
        async with this_host().spawn_procs(name="later") as later:
            assert await later.spawn("actor", Greedy).echo.call_one(3) == 3
        assert list(await greedy.total.call(ARRAY)) == [ARRAY.size] * 2


@on_a_loop
async def test_in_the_template():
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        greedy = procs.spawn("greedy", Greedy)
        await greedy.echo.call(1)
        template = template_pid(bytes.fromhex(context().job.id))
        usual = resource.prlimit(template, resource.RLIMIT_NOFILE, (8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try:
            with pytest.raises(ActorDied, match=r"late.* did not start.*descriptors"):
                async with this_host().spawn_procs({"ranks": 2}, name="late"):
                    pass
            assert list(await greedy.echo.call(2)) == [2, 2]
        finally:
            resource.prlimit(template, resource.RLIMIT_NOFILE, usual)
        async with this_host().spawn_procs(name="later") as later:
            assert await later.spawn("actor", Greedy).echo.call_one(3) == 3
