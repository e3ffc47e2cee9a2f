"""torch.distributed's default group, made by a mesh: it works, and a death ends what is under way in it."""

import os
import signal
import time

import pytest

from roost import Restart, this_host

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

SIZE = 3


async def test_torch_distributed_works_and_a_death_ends_its_collectives(figures):
    from torch_ranks import Trainer

    late = []
    restart = Restart(limit=10, within_s=60, backoff_s=(0.01, 0.02))
    async with this_host().spawn_procs({"gpus": SIZE}, preload=["torch", "torch_ranks"], restart=restart) as procs:
        mesh = procs.spawn("trainers", Trainer)
        for in_new_group in (False, True):
            assert [*(await mesh.join.call()).values()] == [(rank, SIZE) for rank in range(SIZE)]
            assert [*(await mesh.sums.call()).values()] == [(6.0, 2.0, 1.0), (6.0, 2.0, 1.0), (6.0, 1.0, 1.0)]
            survivors = mesh.slice(gpus=slice(0, SIZE - 1))
            holding = survivors.hold.call(in_new_group=in_new_group)
            await survivors.is_inside.call()
            killed_at = time.monotonic()
            os.kill((await mesh.states()).item(gpus=SIZE - 1).pid, signal.SIGKILL)
            for at, text, suspects in (await holding).values():
                assert f"trainers[gpus={SIZE - 1}] died" in text
                assert suspects == (f"trainers[gpus={SIZE - 1}]",)
                late.append(at - killed_at)
            await mesh.ready()
        assert [*(await mesh.join.call()).values()] == [(rank, SIZE) for rank in range(SIZE)]
        said = (await mesh.join_again.call()).item(gpus=0)
        assert "torch.distributed has a default group in this process; destroy it first" in said
    figures(f"survivors were free after {', '.join(f'{1000 * one:.0f}' for one in late)} ms")
