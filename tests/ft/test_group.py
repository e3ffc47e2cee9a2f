"""Groups of processes. This pins, per version of torch, that a gloo group is aborted by the end of its connections."""

import multiprocessing
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from roost.errors import CollectiveError

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ADDRESS = "127.0.0.1"
LATE_S = 2.0


def opened():
    from roost.collectives.gloo import served_store

    return served_store(ADDRESS)


class Crew:
    """Forked members that configure, average once, and then do what they are told."""

    def __init__(self, world, store, member):
        context = multiprocessing.get_context("fork")
        self.told = context.Queue()
        self.go = context.Event()
        self.procs = [
            context.Process(target=member, args=(rank, world, store, self.told, self.go)) for rank in range(world)
        ]
        for one in self.procs:
            one.start()

    def tell(self, count, timeout_s=60):
        return [self.told.get(timeout=timeout_s) for _ in range(count)]

    def end(self):
        for one in self.procs:
            one.kill()
            one.join()


@pytest.fixture
def crew():
    crews = []

    def make(world, store, member):
        crews.append(Crew(world, store, member))
        return crews[-1]

    yield make
    for one in crews:
        one.end()


def in_a_collective(size, by_memory, rank, world, store, told, go):
    """The last member never takes part in the second collective, and is killed."""
    from roost.ft.group import GlooGroup

    torch.set_num_threads(1)
    group = GlooGroup(ADDRESS, 30)
    group.configure(store, 1, rank, world)
    assert group._host is not None
    if not by_memory:
        group._host = None
    tensor = torch.ones(size)
    group.allreduce(tensor).wait(30)
    told.put((rank, tensor[0].item(), os.getpid()))
    if rank == world - 1:
        # Who is killed while its queue still has the others' lock leaves them without a way to say anything.
        told.close()
        told.join_thread()
        go.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    aborted_at = []

    def abort():
        go.wait()
        time.sleep(0.1)  # the news of the death takes no longer
        aborted_at.append(time.monotonic())
        group.abort(f"replica {world - 1} died")

    threading.Thread(target=abort, daemon=True).start()
    try:
        group.allreduce(tensor).wait(30)
    except CollectiveError as error:
        ended = time.monotonic()
        while not aborted_at:
            time.sleep(0.001)
        told.put((rank, ended - aborted_at[0], str(error)))
    group.close()
    told.put((rank, "closed", ""))


@pytest.mark.parametrize(("size", "by_memory"), [(1000, False), (1000, True), (1_000_000, True)])
@pytest.mark.parametrize("world", [2, 5, 8])
def test_all_survivors_are_out_of_a_collective_as_soon_as_it_is_aborted(world, size, by_memory, crew, figures):
    server, store = opened()
    members = crew(world, store, partial(in_a_collective, size, by_memory))
    assert all(value == world for _, value, _ in members.tell(world))
    members.go.set()
    told = members.tell(2 * (world - 1))
    late = [value for _, value, _ in told if value != "closed"]
    way = "memory" if by_memory else "gloo"
    figures(f"{world} members, {size} numbers by {way}: the last was out {1000 * max(late):.1f} ms after the abort")
    assert len(late) == world - 1
    assert max(late) < 1.0
    del server


def late(by_memory, rank, world, store, told, go):
    """The last member comes to the collective when a group would have had to be made long ago: it takes its state, say."""
    from roost.ft.group import GlooGroup

    group = GlooGroup(ADDRESS, LATE_S)
    group.configure(store, 1, rank, world)
    if not by_memory:
        group._host = None
    tensor = torch.ones(1000)
    if rank == world - 1:
        time.sleep(1.25 * LATE_S)
    group.allreduce(tensor).wait(30)
    told.put(tensor[0].item())
    group.close()


@pytest.mark.parametrize("by_memory", [True, False])
def test_a_collective_may_take_longer_than_making_its_group(by_memory, crew):
    server, store = opened()
    assert crew(2, store, partial(late, by_memory)).tell(2) == [2.0, 2.0]
    del server


def where_the_library_is_not_woken(rank, world, store, told, go):
    """An abort that the library does not feel."""
    from roost.ft.group import GlooGroup

    group = GlooGroup(ADDRESS, 10)
    group.configure(f"{store}/first", 1, rank, world)
    group._host = None
    if rank:
        go.wait()
    else:
        group._gloo._shut = lambda: None
        threading.Timer(0.1, group.abort, ("replica 1 died",)).start()
        began = time.monotonic()
        try:
            group.allreduce(torch.ones(10)).wait(60)
        except CollectiveError as error:
            group.close()
            told.put((time.monotonic() - began, str(error)))
    group.configure(f"{store}/second", 2, rank, world)
    tensor = torch.ones(10)
    group.allreduce(tensor).wait(30)
    told.put(tensor[0].item())


def test_who_waits_leaves_an_operation_behind_that_no_abort_ends(crew, figures):
    server, store = opened()
    members = crew(2, store, where_the_library_is_not_woken)
    ((seconds, error),) = members.tell(1)
    figures(f"out {seconds:.2f} s after the abort")
    assert seconds < 5
    assert "replica 1 died" in error
    members.go.set()
    # And goes on in the next quorum.
    assert members.tell(2) == [2.0, 2.0]
    del server


def summing(rank, world, store, told, go):
    """Sums of all kinds, of what is small and large, and of what lies in no one piece."""
    from roost.ft.group import GlooGroup

    torch.set_num_threads(1)
    group = GlooGroup(ADDRESS, 30)
    group.configure(store, 1, rank, world)
    found = []
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
    ):
        for count in (0, 3, 700_001):
            tensor = torch.full((count,), rank + 1, dtype=dtype)
            group.allreduce(tensor).wait(30)
            found.append((str(dtype), count, tensor.unique().tolist()))
    turned = torch.arange(6.0).view(2, 3).t() * (rank + 1)
    group.allreduce(turned).wait(30)
    several = [torch.full((100_000,), float(number * (rank + 1))) for number in range(20)]
    for pending in [group.allreduce(one) for one in several]:
        pending.wait(30)
    averages = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        tensor = torch.full((700_001,), rank + 1, dtype=dtype)
        assert group.averages(tensor)
        group.allreduce(tensor, averages=True).wait(30)
        averages += tensor.unique().tolist()
    assert not group.averages(torch.ones(3, dtype=torch.int64))
    assert not group.averages(torch.ones(3, 3).t()[1:])
    told.put((group._host is not None, found, turned.tolist(), [one.unique().tolist() for one in several], averages))
    group.close()


def test_members_on_one_host_sum_by_memory(crew):
    server, store = opened()
    for by_memory, found, turned, several, averages in crew(3, store, summing).tell(3):
        assert by_memory
        assert averages == [2.0] * 3
        assert all(values == ([6] if count else []) for _, count, values in found)
        assert len(found) == 24
        assert turned == [[0, 18], [6, 24], [12, 30]]
        assert several == [[6.0 * number] for number in range(20)]
    del server


def alone_in_a_collective(rank, world, store, told, go):
    """One member waits for the others no longer than it was told."""
    from roost.ft.group import GlooGroup

    group = GlooGroup(ADDRESS, 30)
    group.configure(store, 1, rank, world)
    if rank:
        go.wait()
        return
    for count in (10, 1_000_000):
        tensor = torch.ones(count)
        try:
            group.allreduce(tensor).wait(0.2)
        except CollectiveError as error:
            told.put((str(error), tensor.unique().tolist()))


def test_members_that_do_not_come_are_waited_for_no_longer_than_was_said(crew):
    server, store = opened()
    members = crew(2, store, alone_in_a_collective)
    told = members.tell(2)
    members.go.set()
    assert all("its members have not come within 0.2 s" in error and values == [1.0] for error, values in told)
    del server


def late_where_the_others_have_left(rank, world, store, told, go):
    """The first two cannot make their group, since one of them leaves it; the last one comes when they have gone."""
    from roost.ft.group import GlooGroup

    group = GlooGroup(ADDRESS, LATE_S)
    if rank == world - 1:
        go.wait()
        if store.endswith("told"):
            group.abort("replica 0 has left", until=7)
    elif rank == 0:
        threading.Timer(0.5, group.abort, ("an injected error",)).start()
    began = time.monotonic()
    try:
        group.configure(store.removesuffix("told"), 7, rank, world)
        group.allreduce(torch.ones(10)).wait(30)
    except CollectiveError as error:
        told.put((rank, time.monotonic() - began, str(error)))
    # What it has left stays as it is: it waits for the next quorum.
    go.wait()
    time.sleep(60)


@pytest.mark.parametrize("is_told", [True, False], ids=["told of it", "told of nothing"])
def test_who_comes_to_a_group_that_the_others_have_left_does_not_wait_there(is_told, crew):
    server, store = opened()
    members = crew(3, store + ("told" if is_told else ""), late_where_the_others_have_left)
    members.tell(2)
    members.go.set()
    ((rank, seconds, error),) = members.tell(1, timeout_s=20)
    assert rank == 2
    assert seconds < (1 if is_told else 3 * LATE_S)
    assert not is_told or "quorum 7 was aborted: replica 0 has left" in error
    del server


def test_a_quorum_that_is_over_is_not_joined_and_a_later_one_is_left_alone():
    from roost.ft.group import GlooGroup

    group = GlooGroup(ADDRESS, 5)
    group.configure("", 3, 0, 1)
    group.abort("replica 1 left", until=2)
    group.allreduce(torch.ones(2)).wait(1)
    group.abort("replica 1 left", until=5)
    with pytest.raises(CollectiveError, match="quorum 3 was aborted: replica 1 left"):
        group.allreduce(torch.ones(2))
    for quorum in (4, 5):
        with pytest.raises(CollectiveError, match=f"quorum {quorum} was aborted: replica 1 left"):
            group.configure("", quorum, 0, 1)
    group.abort("heard late", until=4)
    group.configure("", 6, 0, 1)
    group.allreduce(torch.ones(2)).wait(1)


def without_a_member(rank, world, store, told, go):
    """The last one never comes."""
    from roost.ft.group import GlooGroup

    if rank == world - 1:
        return
    group = GlooGroup(ADDRESS, 60)
    told.put(rank)
    began = time.monotonic()
    try:
        group.configure(store, 1, rank, world)
    except CollectiveError as error:
        told.put((time.monotonic(), time.monotonic() - began, str(error)))


def test_the_end_of_its_store_frees_who_waits_there_for_the_dead(crew, figures):
    server, store = opened()
    members = crew(3, store, without_a_member)
    members.tell(2)
    time.sleep(0.5)  # both are in C by now, and nothing tells of it
    ended = time.monotonic()
    del server
    told = members.tell(2)
    figures(f"free {1000 * max(at - ended for at, *_ in told):.0f} ms after the end of the store")
    assert all(at - ended < 2.0 for at, *_ in told)


def test_a_store_that_is_gone_is_an_error_at_once():
    from roost.ft.group import GlooGroup

    server, store = opened()
    del server
    began = time.monotonic()
    with pytest.raises(CollectiveError):
        GlooGroup(ADDRESS, 60).configure(store, 1, 0, 2)
    assert time.monotonic() - began < 5


def test_a_group_of_one_needs_no_store():
    from roost.ft.group import GlooGroup

    group = GlooGroup(ADDRESS, 5)
    group.configure("", 3, 0, 1)
    tensor = torch.ones(2)
    group.allreduce(tensor).wait(1)
    assert tensor.tolist() == [1, 1]
    group.abort("x")
    with pytest.raises(CollectiveError, match="quorum 3 was aborted: x"):
        group.allreduce(tensor)
    group.configure("", 4, 0, 1)
    group.allreduce(tensor).wait(1)


def test_stores_listen_on_their_address_alone():
    server, address = opened()
    port = int(address.rpartition(":")[2])
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    listening = [one[1] for one in sockets if one[3] == "0A"]
    assert [one for one in listening if one.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]
    del server
