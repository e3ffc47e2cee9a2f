"""Actors whose ranks use torch.distributed."""

import asyncio
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from roost import Actor, context, endpoint
from roost.errors import CollectiveError

torch.set_num_threads(1)


class Trainer(Actor):
    """One rank."""

    def __init__(self):
        self.group = self.whole = self.loop = None
        self.inside = asyncio.Event()

    @endpoint
    async def join(self):
        self.loop = asyncio.get_running_loop()
        if self.group is not None:
            await self.group.close()
        self.group = await context().mesh.process_group(timeout=20)
        return dist.get_rank(), dist.get_world_size()

    @endpoint
    async def join_again(self):
        try:
            await context().mesh.process_group(timeout=20)
        except CollectiveError as error:
            return str(error)
        return None

    @endpoint
    def sums(self):
        """Of the default group, of one of torch's own beside it, and of gradients."""
        mine = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(mine)
        self.whole = dist.new_group()
        pair, of_pair = dist.new_group([0, 1]), torch.tensor([1.0])
        if dist.get_rank() < 2:
            dist.all_reduce(of_pair, group=pair)
        model = torch.nn.Linear(1, 1, bias=False)
        # It averages gradients as long as somebody holds it.
        parallel = DistributedDataParallel(model)
        parallel(torch.tensor([[float(dist.get_rank())]])).sum().backward()
        return mine.item(), of_pair.item(), model.weight.grad.item()

    @endpoint(concurrent=True)
    def hold(self, *, in_new_group):
        """Be in an operation that not all ranks begin: when it ended, and what was said."""
        self.loop.call_soon_threadsafe(self.inside.set)
        try:
            with self.group.explained():
                dist.all_reduce(torch.ones(1000), group=self.whole if in_new_group else None)
        except CollectiveError as error:
            return time.monotonic(), str(error), error.suspects
        finally:
            self.loop.call_soon_threadsafe(self.inside.clear)
        return None

    @endpoint(concurrent=True)
    async def is_inside(self):
        """Once it is."""
        await self.inside.wait()
