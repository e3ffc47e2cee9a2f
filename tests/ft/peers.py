"""Actors that stage a state and take one, without training."""

import os
import signal
import threading
import time
from pathlib import Path

from roost import Actor, context, endpoint
from roost.ft.coordinator import Member
from roost.ft.ledger import News
from roost.ft.quorum import Quorum
from roost.ft.staging import Shelf
from roost.ft.state import StateTransfer
from roost.rdma import Batch


class Notes:
    """In place of a ledger."""

    class staged:  # noqa: N801
        @staticmethod
        def broadcast(seconds, nbytes):
            pass


class Peak:
    """The most memory that this process has for itself while a block runs; what it maps of another's is the other's."""

    def __enter__(self):
        self.before = self.most = self.now()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        self.mib = max(self.most, self.now()) - self.before

    def look(self):
        while not self.done.wait(0.002):
            self.most = max(self.most, self.now())

    @staticmethod
    def now():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


class Peer(Actor):
    def __init__(self, mib):
        self.mib = mib
        self.shelf = Shelf()

    def transfer(self, peers):
        member = Member(context().point["replicas"], 0, 0)
        return StateTransfer(member, self.shelf, peers, Notes, News(), 60.0)

    def state(self, value):
        import torch

        count = self.mib * (1 << 20) // 4 // 8
        big = {str(number): torch.full((count,), float(value + number)) for number in range(8)}
        return {"manager": {"step": value}, "user": {"big": big, "steps": [torch.tensor(float(value))] * 100}}

    @endpoint
    def stage(self, step, peers):
        self.kept = getattr(self, "kept", None) or self.transfer(peers)
        state = self.state(step)
        began = time.monotonic()
        self.kept.stage(Quorum(7, step, (0, 1, 2), (0, 0, 0), (1, 2), (0, 0)), state)
        return time.monotonic() - began

    @endpoint(concurrent=True)
    async def staged(self, quorum_id, step):
        return await self.shelf.get(quorum_id, step)

    @endpoint
    def take(self, step, peers, own):
        """Seconds, how much more memory it had for itself at most, in MiB, and whether the state is as it should be."""
        import torch

        torch.set_num_threads(1)
        transfer = self.transfer(peers)
        mine = self.state(99) if own else {}
        with Peak() as peak:
            began = time.monotonic()
            found = transfer.take(Quorum(7, step, (0, 1, 2), (0, 0, 0), (1, 2), (0, 0)), 0, mine)
            took = time.monotonic() - began
        wanted = self.state(step)
        same = all(torch.equal(found["user"]["big"][name], one) for name, one in wanted["user"]["big"].items())
        in_place = own and found["user"]["big"]["0"].data_ptr() == mine["user"]["big"]["0"].data_ptr()
        return took, peak.mib, same and found["manager"]["step"] == step, in_place

    @endpoint
    def alone(self, step, peers):
        """Seconds that one-sided memory takes for the same bytes in one piece, into new memory and into that again."""
        import torch

        staged = peers.slice(replicas=0, procs=0).staged.call_one(7, step).result()
        into = torch.empty(staged.manifest.nbytes, dtype=torch.uint8)
        part = staged.buffer[: len(into)]
        took = []
        for _ in range(2):
            began = time.monotonic()
            Batch().read(part, into).submit(version=staged.version).result()
            took.append(time.monotonic() - began)
        return tuple(took)

    @endpoint(concurrent=True)
    async def die(self):
        os.kill(os.getpid(), signal.SIGKILL)
