"""A program for torchrun: every rank calls `attach_torchrun`, the first drives. No pytest here."""

import asyncio
import os

import far
import torch.distributed

import roost


async def main():
    hosts = await roost.attach_torchrun()
    if hosts is None:
        assert os.environ["RANK"] != "0"
        return
    async with hosts, hosts.spawn_procs({"gpus": 2}) as procs:
        residents = procs.spawn("residents", far.Resident)
        print(dict(procs.sizes), [life for life, _ in await residents.life.call()])


torch.distributed.init_process_group("gloo")
asyncio.run(main())
# The agents of the others end with their processes.
torch.distributed.barrier()
torch.distributed.destroy_process_group()
