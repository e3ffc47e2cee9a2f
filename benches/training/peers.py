"""The same work with torch's data-parallel class, and with torchft's own quorum, manager, transport and data-parallel class."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from benches.training.work import learn, model

from roost import Actor, context, endpoint

_LIMIT = timedelta(seconds=10)
_QUORUM_LIMIT = timedelta(seconds=30)


class Plain(Actor):
    """One replica of a data-parallel run."""

    @endpoint
    def store(self) -> int:
        """The port of the store, which this replica has."""
        import torch.distributed as dist

        self.server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return int(self.server.port)

    @endpoint
    def train(self, port: int, world: int, steps: int, pace_s: float) -> float:
        """Steps a second."""
        import torch

        meet(port, world)
        built, optimizer = model()
        net = torch.nn.parallel.DistributedDataParallel(built)
        return rate(lambda: learn(net, optimizer, pace_s), steps)

    @endpoint
    def train_averaging(self, port: int, world: int, steps: int, pace_s: float, every: int) -> float:
        """Steps a second where parameters are averaged every so many steps, all in one piece: as little as such training can do."""
        import torch
        import torch.distributed as dist
        from torch.nn.utils import parameters_to_vector, vector_to_parameters

        meet(port, world)
        net, optimizer = model()
        done = 0

        def once() -> None:
            nonlocal done
            learn(net, optimizer, pace_s)
            done += 1
            if done % every == 0:
                with torch.no_grad():
                    whole = parameters_to_vector(net.parameters())
                    dist.all_reduce(whole)
                    vector_to_parameters(whole.div_(world), net.parameters())

        return rate(once, steps)

    @endpoint
    def train_alone(self, steps: int, pace_s: float) -> float:
        """Steps a second without anybody else."""
        net, optimizer = model()
        return rate(lambda: learn(net, optimizer, pace_s), steps)


def meet(port: int, world: int) -> None:
    """Make torch's default group, by the store at a port."""
    import torch.distributed as dist

    client = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=client, rank=context().point["replicas"], world_size=world)


class Torchft(Actor):
    """One replica of torchft's."""

    @endpoint
    def train(self, lighthouse: str, steps: int, pace_s: float, every: int, log: str) -> float:
        """Steps a second; each commit is a line of the log: when, which replica, which step, how many took part.

        Args:
            lighthouse: its address.
            steps: how many, or 0 for no end.
            pace_s: as of `learn`.
            every: how many steps lie between two syncs by DiLoCo; with 1 gradients are averaged in each.
            log: the path of a file, or "" for none.
        """
        import torch
        import torch.distributed as dist
        from torchft import DistributedDataParallel, Manager, ProcessGroupGloo
        from torchft.local_sgd import DiLoCo
        from torchft.optim import OptimizerWrapper

        replica = context().point["replicas"]
        built, plain = model()

        def load(state: Any) -> None:
            built.load_state_dict(state["model"])
            plain.load_state_dict(state["optimizer"])

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        manager = Manager(
            pg=ProcessGroupGloo(timeout=_LIMIT), min_replica_size=1, load_state_dict=load,
            state_dict=lambda: {"model": built.state_dict(), "optimizer": plain.state_dict()}, replica_id=f"replica_{replica}",
            store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1, lighthouse_addr=lighthouse, hostname="127.0.0.1",
            timeout=_LIMIT, quorum_timeout=_QUORUM_LIMIT, connect_timeout=_LIMIT, use_async_quorum=False,
        )  # fmt: skip
        if every > 1:
            outer = torch.optim.SGD(built.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            net, optimizer = built, plain
            DiLoCo(manager, [built], plain, outer, every).__enter__()
        else:
            net, optimizer = DistributedDataParallel(manager, built), OptimizerWrapper(manager, plain)

        def once() -> None:
            before = manager.current_step()
            learn(net, optimizer, pace_s)
            if log and manager.current_step() != before:
                with open(log, "a") as file:
                    file.write(f"{time.time()} {replica} {manager.current_step()} {manager.num_participants()}\n")

        try:
            return rate(once, steps)
        finally:
            manager.shutdown(wait=False)


def rate(once: Any, steps: int) -> float:
    """How often it is done in a second; for ever when `steps` is 0. The first ones do not count."""
    for _ in range(10):
        once()
    began, done = time.monotonic(), 0
    while not steps or done < steps:
        once()
        done += 1
    return done / (time.monotonic() - began)
