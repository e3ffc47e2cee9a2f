"""Groups of processes. This pins, per version of torch, that a gloo group is aborted by the end of its connections."""

import multiprocessing
import os
import signal
import threading
import time
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


def in_a_collective(rank, world, store, told, go):
    """The last member never takes part in the second collective, and is killed."""
    from roost.ft.group import GlooGroup

    torch.set_num_threads(1)
    group = GlooGroup(ADDRESS, 30)
    group.configure(store, 1, rank, world)
    tensor = torch.ones(1000)
    group.allreduce(tensor).wait(30)
    told.put((rank, tensor[0].item(), os.getpid()))
    if rank == world - 1:
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


@pytest.mark.parametrize("world", [2, 5, 8])
def test_all_survivors_are_out_of_a_collective_as_soon_as_it_is_aborted(world, crew, figures):
    server, store = opened()
    members = crew(world, store, in_a_collective)
    assert all(value == world for _, value, _ in members.tell(world))
    members.go.set()
    told = members.tell(2 * (world - 1))
    late = [value for _, value, _ in told if value != "closed"]
    figures(f"{world} members: the last was out {1000 * max(late):.1f} ms after the abort")
    assert len(late) == world - 1
    assert max(late) < 1.0
    del server


def late(rank, world, store, told, go):
    """The last member comes to the collective when a group would have had to be made long ago: it takes its state, say."""
    from roost.ft.group import GlooGroup

    group = GlooGroup(ADDRESS, LATE_S)
    group.configure(store, 1, rank, world)
    tensor = torch.ones(1000)
    if rank == world - 1:
        time.sleep(1.25 * LATE_S)
    group.allreduce(tensor).wait(30)
    told.put(tensor[0].item())
    group.close()


def test_a_collective_may_take_longer_than_making_its_group(crew):
    server, store = opened()
    assert crew(2, store, late).tell(2) == [2.0, 2.0]
    del server


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
