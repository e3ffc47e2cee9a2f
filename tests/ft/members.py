"""Managers of several members in one process, each on a thread of its own, around a real `Quorums` and a group that adds up."""

import threading
from dataclasses import replace

from roost.errors import CollectiveError
from roost.ft.manager import Manager
from roost.ft.quorum import Condemned, Decided, Formed, Grant, Verdict
from roost.ft.quorums import Quorums
from roost.ft.timeouts import Timeouts


class Sum:
    """A group of threads."""

    def __init__(self, shared, rank):
        self.shared, self.rank = shared, rank
        self.quorum_id = -1
        self.aborted = None
        self.fails_at = None
        self.can_average = False
        self.calls = 0

    def configure(self, store, quorum_id, rank, world):
        self.quorum_id, self.aborted, self.calls = quorum_id, None, 0
        self.shared.configure(quorum_id, world)

    def abort(self, reason, until=None):
        self.aborted = self.aborted or reason
        self.shared.abort(self.quorum_id)

    def averages(self, tensor):
        return self.can_average

    def allreduce(self, tensor, *, averages=False):
        assert self.can_average or not averages
        self.calls += 1
        if self.fails_at == self.calls:
            self.fails_at = None
            raise CollectiveError("injected")
        return SumWork(self, tensor, self.calls, averages)

    def getBackendName(self):  # noqa: N802
        return "sum"

    def close(self):
        pass


class SumWork:
    def __init__(self, group, tensor, number, averages):
        self.group, self.tensor, self.number, self.averages = group, tensor, number, averages

    def wait(self, timeout_s):
        shared = self.group.shared
        shared.add(self.group.quorum_id, self.number, self.tensor, timeout_s)
        if self.averages:
            self.tensor.div_(shared.worlds[self.group.quorum_id])


class Shared:
    def __init__(self):
        self.changed = threading.Condition()
        self.worlds, self.sums, self.aborted = {}, {}, set()

    def configure(self, quorum_id, world):
        self.worlds[quorum_id] = world

    def abort(self, quorum_id):
        with self.changed:
            self.aborted.add(quorum_id)
            self.changed.notify_all()

    def add(self, quorum_id, number, tensor, timeout_s):
        with self.changed:
            parts = self.sums.setdefault((quorum_id, number), [])
            parts.append(tensor.clone())
            self.changed.notify_all()
            done = self.changed.wait_for(
                lambda: len(parts) == self.worlds[quorum_id] or quorum_id in self.aborted, timeout_s
            )
            if not done or len(parts) < self.worlds[quorum_id]:
                raise CollectiveError("aborted")
            tensor.copy_(sum(parts))


def sum_group(world):
    shared = Shared()
    groups = [Sum(shared, rank) for rank in range(world)]
    for rank, group in enumerate(groups):
        group.configure("", 1, rank, world)
    return groups


class ThreadLink:
    """The way to a coordinator that is a lock around the machine."""

    def __init__(self, members, replica):
        self.members, self.replica = members, replica

    def ask(self, ask):
        return self.members.ask(self.replica, ask)

    def vote(self, vote, *, idles):
        self.members.voted(self.replica, vote, idles)
        return lambda: self.members.decided(self.replica, vote)

    def know(self, *, has_state, last):
        pass

    def mark(self, what, limit_s):
        pass

    def reached(self, phase):
        pass


class NoTransfer:
    def digest(self, state):
        return "same"

    def stage(self, quorum, state):
        pass

    def take(self, quorum, source, own):
        raise AssertionError("nothing is to be taken")


class Members:
    """`with Members(3) as members`: `members.run(function)` runs it for each rank on a thread."""

    def __init__(self, count, timeout_s=10.0):
        self.changed = threading.Condition()
        self.machine = Quorums(0, count)
        self.granted, self.healing = {}, set()
        shared = Shared()
        self.groups = [Sum(shared, rank) for rank in range(count)]
        timeouts = Timeouts(timeout_s)
        self.managers = [
            Manager(ThreadLink(self, rank), group, NoTransfer(), timeouts) for rank, group in enumerate(self.groups)
        ]

    def __enter__(self):
        for rank in range(len(self.managers)):
            self.machine.heard(rank, 0, None)
        return self

    def __exit__(self, *_):
        for manager in self.managers:
            manager.shutdown()

    def ask(self, replica, ask):
        with self.changed:
            self.apply(self.machine.asked(replica, 0, 0, ask))
            self.changed.wait_for(lambda: replica in self.granted, 10)
            quorum = self.granted.pop(replica)
            if self.healing:
                quorum = replace(quorum, healing=tuple(self.healing))
                quorum = Healed(quorum)
            return Grant(quorum, "")

    def voted(self, replica, vote, idles):
        with self.changed:
            self.apply(self.machine.voted(replica, 0, 0, vote, idles))

    def decided(self, replica, vote):
        with self.changed:
            self.changed.wait_for(lambda: self.machine.decision(vote.quorum_id, vote.step) is not None, 10)
            granted = self.granted.pop(replica, None)
            return Verdict(
                self.machine.decision(vote.quorum_id, vote.step), None if granted is None else Grant(granted, "")
            )

    def apply(self, outputs):
        for output in outputs:
            if isinstance(output, Formed):
                self.granted.update(dict.fromkeys(output.quorum.members, output.quorum))
            elif isinstance(output, Condemned):
                for group in self.groups:
                    if group.quorum_id == output.quorum_id:
                        group.abort(output.reason)
            else:
                assert isinstance(output, Decided)
        self.changed.notify_all()

    def run(self, member):
        errors = []

        def guarded(rank):
            try:
                member(rank)
            except BaseException as error:
                errors.append(error)
                with self.changed:
                    self.apply(self.machine.died(rank))

        threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(len(self.managers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        if errors:
            raise errors[0]


class Healed:
    """A quorum with members that take no part, and nothing for them to take."""

    def __init__(self, quorum):
        self._quorum = quorum

    def __getattr__(self, name):
        return getattr(self._quorum, name)

    def sources_of(self, replica):
        return ()
