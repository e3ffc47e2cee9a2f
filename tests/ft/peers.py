"""Actors that stage a state and take one, without training."""

import os
import signal
import threading
import time
from pathlib import Path

from roost import Actor, context, endpoint
from roost.errors import CollectiveError
from roost.ft.ledger import News
from roost.ft.quorum import Member, Quorum
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


def quorum(step):
    return Quorum(7, step, (0, 1, 2), (0, 0, 0), (1, 2), ((0,), (0,)))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Peer(Actor):
    def __init__(self, mib):
        self.mib = mib
        self.shelf = Shelf()

    def transfer(self, peers, aborted=lambda: None):
        member = Member(context().point["replicas"], 0, 0)
        return StateTransfer(member, self.shelf, peers, Notes, News(), 60.0, aborted)

    def state(self, value, inner=None):
        """A state of a step; replicas have all but `inner` alike."""
        import torch

        count = self.mib * (1 << 20) // 4 // 8
        big = {str(number): torch.full((count,), float(value + number)) for number in range(8)}
        user = {"big": big, "steps": [torch.tensor(float(value))] * 100}
        if inner is not None:
            user["inner"] = [torch.full((count,), float(inner)), torch.tensor(float(inner))]
        return {"manager": {"step": value}, "user": user}

    @endpoint
    def stage(self, step, peers, inner=None):
        self.kept = getattr(self, "kept", None) or self.transfer(peers)
        state = self.state(step, inner)
        began = time.monotonic()
        self.kept.stage(quorum(step), state)
        return time.monotonic() - began

    @endpoint(concurrent=True)
    async def staged(self, quorum_id, step):
        return await self.shelf.get(quorum_id, step)

    @endpoint
    def take(self, step, peers, own, sources=(0,)):
        """Seconds, how much more memory it had for itself at most, in MiB, and whether the state is as it should be."""
        import torch

        torch.set_num_threads(1)
        transfer = self.transfer(peers)
        mine = self.state(99) if own else {}
        with Peak() as peak:
            began = time.monotonic()
            found = transfer.take(quorum(step), sources, mine)
            took = time.monotonic() - began
        same = self.is_state(found, step)
        in_place = own and found["user"]["big"]["0"].data_ptr() == mine["user"]["big"]["0"].data_ptr()
        return took, peak.mib, same and found["manager"]["step"] == step, in_place

    @endpoint
    def take_while(self, step, peers, sources, dies, after):
        """Take a state, and kill one of its donors when so many reads were begun: whose it is, who gave, what differs, reads begun."""
        from roost.ft import reading

        reading._LOAD_BYTES = 1 << 20
        begun = []
        plain = reading._Reading._submit

        def submit(self, donor):
            is_begun = plain(self, donor)
            if is_begun:
                begun.append(donor)
                if len(begun) == after:
                    for pid in dies:
                        os.kill(pid, signal.SIGKILL)
                    while any(is_alive(pid) for pid in dies):
                        time.sleep(0.001)
            return is_begun

        reading._Reading._submit = submit
        try:
            transfer = self.transfer(peers)
            found = transfer.take(quorum(step), sources, {})
        finally:
            reading._Reading._submit = plain
        inner, small = found["user"].get("inner", (None, None))
        same = self.is_state(found, step)
        return (
            same,
            transfer._news.donors,
            None if inner is None else (inner.unique().tolist(), small.item()),
            len(begun),
        )

    @endpoint
    def take_in_vain(self, step, peers, after):
        """Take what nobody stages, in a quorum that is aborted when that was looked at so often: seconds, and why it ended."""
        looks = iter([None] * after)
        began = time.monotonic()
        try:
            self.transfer(peers, lambda: next(looks, "replica 0 has left")).take(quorum(step), (0, 2), {})
        except CollectiveError as error:
            return time.monotonic() - began, str(error)

    def is_state(self, found, step):
        import torch

        wanted = self.state(step)
        return all(torch.equal(found["user"]["big"][name], one) for name, one in wanted["user"]["big"].items())

    @endpoint(concurrent=True)
    async def pid(self):
        return os.getpid()

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
