"""An actor whose batches come from forked DataLoader workers. Imported by procs: no pytest here."""

import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from roost import Actor, endpoint


class Numbers(Dataset):
    """Batches of one array that came by shared memory, which the workers inherit."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.from_numpy(self.array[index * 1000 : (index + 1) * 1000].copy())


class Loading(Actor):
    def __init__(self):
        self.batches = None

    @endpoint
    async def start(self, array):
        """Start two workers that keep running; their process ids."""
        loader = DataLoader(
            Numbers(array), batch_size=8, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
        )
        self.loader, self.batches = loader, iter(loader)
        return [worker.pid for worker in self.batches._workers]

    @endpoint
    async def total(self):
        """The sum over what the workers give in one round."""
        total = sum(int(batch.sum()) for batch in self.batches)
        self.batches = iter(self.loader)
        return total

    @endpoint
    async def echo(self, array):
        return array + np.uint8(1)

    @endpoint
    async def pid(self):
        return os.getpid()
