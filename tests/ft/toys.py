"""Small trainers, and how their runs are looked at."""

import hashlib
import os
import random
import signal
import time

from roost import context, endpoint
from roost.ft import Trainer


class Toy(Trainer):
    """Learns y = sum of x, with AdamW; every replica builds the same."""

    def __init__(self, width=16, pace_s=0.0, seed=0):
        self.width, self.pace_s, self.seed = width, pace_s, seed
        self.seen = []

    def build(self):
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(self.seed)
        first = torch.nn.Sequential(torch.nn.Linear(4, self.width), torch.nn.Tanh())
        model = torch.nn.Sequential(first, torch.nn.Sequential(torch.nn.Linear(self.width, 1)))
        self.torch = torch
        self.noise = torch.Generator().manual_seed(100 + context().point["replicas"])
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(self, step, batch):
        self.seen.append((step, batch))
        torch = self.torch
        if self.pace_s:
            time.sleep(self.pace_s)
        x = torch.randn(8, 4, generator=self.noise)
        loss = torch.nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @endpoint(concurrent=True)
    def pid(self):
        return os.getpid()

    @endpoint(concurrent=True)
    def digest(self):
        whole = hashlib.sha256()
        for value in self.model.state_dict().values():
            whole.update(value.numpy().tobytes())
        return whole.hexdigest()

    @endpoint(concurrent=True)
    def outer(self):
        return self.outer_state()

    @endpoint(concurrent=True)
    def items(self):
        return self.seen

    @endpoint(concurrent=True)
    def quorum_id(self):
        return self._training._manager.quorum.id


class DiesLast(Toy):
    """One whose replica 1 dies in the last of 20 steps, once."""

    def step(self, step, batch):
        if step == 19 and context().point["replicas"] == 1 and context().incarnation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(step, batch)


class Gambler(Toy):
    """One that notes what it draws in each step: torch's numbers, alike in all replicas, and Python's, which are not."""

    def build(self):
        built = super().build()
        random.seed(context().point["replicas"])
        self.drawn = []
        return built

    def step(self, step, batch):
        self.drawn.append((step, self.torch.rand(()).item(), random.random()))
        return super().step(step, batch)

    @endpoint(concurrent=True)
    def draws(self):
        return self.drawn


class Doubtful(Toy):
    """One that votes no on some steps that have gone well, as who loses the others right after them does."""

    def step(self, step, batch):
        manager = self._training._manager
        if not self.seen:
            draws, plain = random.Random(context().point["replicas"]), manager.should_commit

            def doubting():
                manager._wait_for_all()
                if draws.random() < 0.1:
                    manager.report_error(RuntimeError("a doubt"))
                return plain()

            manager.should_commit = doubting
        return super().step(step, batch)


class ComesBackLate(DiesLast):
    """One whose replica 1 dies in the last step, and builds no more before a file is there."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def build(self):
        while context().incarnation and not os.path.exists(self.gate):
            time.sleep(0.005)
        return super().build()


class HangsFirst(Toy):
    """One whose replica 1 stands still in the first step of its second life."""

    def step(self, step, batch):
        if not self.seen and context().incarnation == 1:
            time.sleep(1_000_000)
        return super().step(step, batch)


class FromCheckpoint(Toy):
    """One whose model has learnt before."""

    def build(self):
        self.first_step = 50
        return super().build()


class Broken(Toy):
    """One that cannot begin."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def build(self):
        if self.what == "build":
            raise ZeroDivisionError("division by zero")
        return super().build()

    def state_dict(self):
        state = super().state_dict()
        if self.what == "state":
            state["note"] = lambda: None
        return state
