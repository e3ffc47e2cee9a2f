"""Large parts in shared memory: real processes, real descriptors, real forks."""

import contextlib
import fcntl
import gc
import os
import pathlib
import pickle
import resource
import socket
import struct

import numpy as np
import pytest
from leftovers import descriptors

from roost import serialize
from roost._roost import SegmentMap, SegmentPool, SharedBuffer

MIB = 1 << 20
SENDER, RECEIVER = 11, 22


class Lane:
    """Both ends in one process: what the data and control lanes do between two."""

    def __init__(self, pool=None, segments=None, receiver=RECEIVER):
        self.pool = pool or SegmentPool()
        self.segments = segments or SegmentMap()
        self.receiver = receiver

    def reach(self, part):
        way = part.way(self.receiver)
        if isinstance(way, int):
            try:
                self.segments.add(SENDER, part.segment, part.segment_bytes, way)
            except OSError:
                self.pool.answered(self.receiver, part.segment, ok=False)
            else:
                self.pool.answered(self.receiver, part.segment, ok=True)
            way = part.way(self.receiver)
        return way

    def send(self, *buffers):
        """The parts as the receiver gets them."""
        received = []
        for part in self.pool.capture([memoryview(buffer).cast("B") for buffer in buffers]):
            if isinstance(part, bytes):
                received.append(part)
            elif self.reach(part) == "ready":
                part.hold(self.receiver)
                received.append(self.segments.view(part.segment, part.generation, part.offset, part.length))
            else:
                received.append(part.tobytes())
        return received

    def settle(self):
        """Pass on what each side has to tell the other."""
        notes = self.segments.drain_released()
        for _, segment, generation, retire in notes:
            self.pool.released(self.receiver, segment, generation, retire)
        for _, segment in self.pool.drain_forgotten():
            self.segments.forget(segment)
        return notes


def figures(seed, size=2 * MIB):
    block = np.random.default_rng(seed).integers(0, 255, 65_521, np.uint8)  # a prime: no two pages are alike
    return np.resize(block, size)


def test_small_parts_stay_bytes_and_large_ones_share_a_segment():
    lane = Lane()
    small, first, second = figures(1, 1000), figures(2), figures(3, MIB + 5)
    parts = lane.pool.capture([memoryview(part) for part in (small, first, second)])
    assert parts[0] == small.tobytes()
    assert parts[1].segment == parts[2].segment
    assert parts[2].offset % 64 == 0
    assert [part.tobytes() for part in parts[1:]] == [first.tobytes(), second.tobytes()]
    assert lane.pool.bytes()[0] >= first.nbytes + second.nbytes


def test_what_is_captured_stays_as_it_is():
    lane = Lane()
    array = figures(1)
    expected = array.tobytes()
    (part,) = lane.pool.capture([memoryview(array)])
    array[:] = 0
    assert part.tobytes() == expected


def test_a_view_is_writable_and_private():
    lane = Lane()
    array = figures(1)
    (buffer,) = lane.send(array)
    assert type(buffer) is SharedBuffer
    assert len(buffer) == array.nbytes
    back = np.frombuffer(buffer, np.uint8)
    np.testing.assert_array_equal(back, array)
    back[:] = 7
    assert memoryview(buffer)[0] == 7
    assert not memoryview(buffer).readonly
    assert buffer.original_bytes() == array.tobytes()  # what was sent, not what was written


def test_a_segment_is_used_again_and_shows_the_new_bytes():
    lane = Lane()
    seen = set()
    for seed in range(6):
        array = figures(seed)
        (part,) = lane.pool.capture([memoryview(array)])
        assert lane.reach(part) == "ready"
        seen.add(part.segment)
        assert part.generation == seed
        part.hold(RECEIVER)
        buffer = lane.segments.view(part.segment, part.generation, part.offset, part.length)
        back = np.frombuffer(buffer, np.uint8)
        np.testing.assert_array_equal(back, array)
        back[:] = 99  # written pages must not hide the next generation
        del part, buffer, back
        lane.settle()
    assert len(seen) == 1
    assert lane.segments.figures() == (1, 0)


def test_a_segment_in_use_is_not_used_again():
    lane = Lane()
    (held,) = lane.send(figures(1))
    (other,) = lane.send(figures(2))
    assert bytes(held) == figures(1).tobytes()
    assert bytes(other) == figures(2).tobytes()
    assert lane.segments.figures()[0] == 2
    del other
    lane.settle()
    (third,) = lane.send(figures(3))
    assert lane.segments.figures()[0] == 2
    assert bytes(held) == figures(1).tobytes()
    assert bytes(third) == figures(3).tobytes()


def test_a_part_is_released_when_the_last_array_over_it_dies():
    lane = Lane()
    (buffer,) = lane.send(figures(1))
    whole = np.frombuffer(buffer, np.uint8)
    piece = whole[100:200].reshape(10, 10)
    view = memoryview(buffer)
    del buffer, whole
    assert lane.settle() == []
    del piece
    assert not lane.segments.has_released()
    del view
    assert [note[3] for note in lane.settle()] == [False]
    assert lane.pool.bytes()[0] == lane.pool.bytes()[1]


def test_a_sender_that_still_needs_a_part_keeps_it():
    lane = Lane()
    (part,) = lane.pool.capture([memoryview(figures(1))])
    other = lane.pool.capture([memoryview(figures(2))])[0]
    assert other.segment != part.segment
    segment = part.segment
    del part
    assert lane.pool.capture([memoryview(figures(3))])[0].segment == segment


def test_one_use_for_many_receivers():
    pool = SegmentPool()
    lanes = [Lane(pool, receiver=100 + at) for at in range(8)]
    array = figures(1)
    (part,) = pool.capture([memoryview(array)])
    views = []
    for lane in lanes:
        assert lane.reach(part) == "ready"
        part.hold(lane.receiver)
        views.append(lane.segments.view(part.segment, part.generation, part.offset, part.length))
    assert pool.bytes()[0] < 2 * array.nbytes
    for at, view in enumerate(views):
        np.frombuffer(view, np.uint8)[:] = at
    assert [memoryview(view)[5] for view in views] == list(range(8))
    del part
    while views:
        assert pool.bytes()[1] == 0
        views.pop()
        view = None
        for lane in lanes:
            lane.settle()
    assert pool.bytes()[1] == pool.bytes()[0]


def test_each_actor_of_a_proc_gets_a_part_of_its_own():
    lane = Lane()
    array = figures(1)
    (part,) = lane.pool.capture([memoryview(array)])
    assert lane.reach(part) == "ready"
    buffers = []
    for _ in range(3):
        part.hold(RECEIVER)
        buffers.append(lane.segments.view(part.segment, part.generation, part.offset, part.length))
    for at, buffer in enumerate(buffers):
        mine = np.frombuffer(buffer, np.uint8)
        np.testing.assert_array_equal(mine, array)
        mine[:] = at
    assert [memoryview(buffer)[9] for buffer in buffers] == [0, 1, 2]
    assert [buffer.is_mapped for buffer in buffers] == [True, False, False]
    del mine, buffer, buffers
    assert len(lane.settle()) == 3


def test_what_is_kept_is_capped_and_the_rest_copied():
    lane = Lane(segments=SegmentMap(kept_bytes_max=3 * MIB))
    kept = []
    for seed in range(4):
        (buffer,) = lane.send(figures(seed))
        kept.append(np.frombuffer(buffer, np.uint8))
        lane.settle()
    del buffer
    lane.settle()
    assert lane.segments.figures()[1] == 2 * MIB
    assert lane.pool.bytes()[1] > 0  # the segments that were copied from are free again
    for seed, array in enumerate(kept):
        np.testing.assert_array_equal(array, figures(seed))


def test_bytes_are_copied_once_and_let_go():
    lane = Lane()
    value = bytes(figures(1))
    dumped = serialize.dump_call((value,), {"more": bytearray(value)})
    buffers = lane.send(*dumped.buffers)
    args, kwargs = serialize.load_call(dumped.payload, buffers)
    assert type(args[0]) is bytes
    assert type(kwargs["more"]) is bytearray
    assert args[0] == kwargs["more"] == value
    del buffers
    gc.collect()
    assert len(lane.settle()) == 2


def test_values_over_shared_memory():
    torch = pytest.importorskip("torch")
    lane = Lane()
    value = {"array": figures(1), "tensor": torch.arange(1_000_000.0), "view": torch.arange(1_000_000)[5:700_000]}
    dumped = serialize.dumps(value)
    back = serialize.loads(dumped.payload, buffers=lane.send(*dumped.buffers))
    np.testing.assert_array_equal(back["array"], value["array"])
    assert torch.equal(back["tensor"], value["tensor"])
    assert torch.equal(back["view"], value["view"])
    back["tensor"].zero_()
    back["array"][:] = 0
    gc.collect()
    assert lane.settle() == []  # torch keeps its memory without lending it
    assert value["tensor"][-1] == 999_999
    del back
    gc.collect()
    assert len(lane.settle()) == 3


def test_a_receiver_that_ends_holds_nothing():
    lane = Lane()
    (buffer,) = lane.send(figures(1))
    assert lane.pool.bytes()[1] == 0
    lane.pool.receiver_gone(RECEIVER)
    assert lane.pool.bytes()[1] == lane.pool.bytes()[0]
    lane.pool.released(RECEIVER, 1, 0, False)
    (part,) = lane.pool.capture([memoryview(figures(2))])
    assert isinstance(part.way(RECEIVER), int), "its next incarnation has mapped nothing"
    del buffer


def test_a_release_of_another_generation_frees_nothing():
    lane = Lane()
    (part,) = lane.pool.capture([memoryview(figures(1))])
    lane.reach(part)
    part.hold(RECEIVER)
    segment, generation = part.segment, part.generation
    del part
    for _ in range(3):
        lane.pool.released(RECEIVER, segment, generation + 1, False)
        lane.pool.released(33, segment, generation, False)
    assert lane.pool.bytes()[1] == 0
    lane.pool.released(RECEIVER, segment, generation, False)
    lane.pool.released(RECEIVER, segment, generation, False)
    assert lane.pool.bytes()[1] == lane.pool.bytes()[0]


def test_memory_is_bounded():
    lane = Lane(SegmentPool(bytes_max=5 * MIB, idle_bytes_max=3 * MIB))
    held = lane.send(figures(1)) + lane.send(figures(2))
    assert type(lane.send(figures(3))[0]) is bytes  # no room: the bytes go in the frame
    held.clear()
    lane.settle()
    assert lane.pool.bytes()[1] <= 3 * MIB
    # Idle memory makes room for a segment of another size.
    assert type(lane.send(figures(4, 4 * MIB))[0]) is SharedBuffer
    lane.settle()
    assert lane.pool.bytes()[0] <= 5 * MIB


def test_what_the_sender_gives_up_the_receiver_unmaps():
    lane = Lane(SegmentPool(idle_bytes_max=0))
    (buffer,) = lane.send(figures(1))
    assert lane.segments.figures()[0] == 1
    del buffer
    lane.settle()
    assert lane.pool.bytes() == (0, 0)
    assert lane.segments.figures() == (0, 0)


def test_views_outlive_their_sender():
    lane = Lane()
    (buffer,) = lane.send(figures(1))
    lane.segments.sender_gone(SENDER)
    del lane.pool
    gc.collect()
    np.testing.assert_array_equal(np.frombuffer(buffer, np.uint8), figures(1))
    assert lane.segments.figures()[0] == 1
    del buffer
    assert lane.segments.figures() == (0, 0)
    assert lane.segments.drain_released() == []


def test_places_that_do_not_exist_are_refused():
    lane = Lane()
    (buffer,) = lane.send(figures(1))
    (part,) = lane.pool.capture([memoryview(figures(2))])
    lane.reach(part)
    view = lane.segments.view
    with pytest.raises(ValueError, match="was not mapped here"):
        view(part.segment + 99, 0, 0, 10)
    for offset, length in [(part.segment_bytes, 1), (0, part.segment_bytes + 1), (2**64 - 1, 2), (5, 2**64 - 1)]:
        with pytest.raises(ValueError, match="passes the end of a shared segment"):
            view(part.segment, 0, offset, length)
    kept = view(part.segment, 0, 0, 10)
    with pytest.raises(ValueError, match="while generation 0 is held"):
        view(part.segment, 1, 0, 10)
    del buffer, kept


def open_descriptors():
    return {entry.name for entry in pathlib.Path("/proc/self/fd").iterdir()}


def memfd(size, seals=0):
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_only_sealed_memory_of_the_right_size_is_mapped(tmp_path):
    segments = SegmentMap()
    both = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(plain, MIB)
    before = open_descriptors()
    for fd, size in [(memfd(MIB), MIB), (memfd(MIB, fcntl.F_SEAL_GROW), MIB), (memfd(MIB, both), MIB + 1)]:
        with pytest.raises(OSError):
            segments.add(SENDER, 1, size, fd)
    with pytest.raises(OSError):
        segments.add(SENDER, 1, MIB, plain)
    with pytest.raises(OSError):
        segments.add(SENDER, 1, 0, memfd(MIB, both))
    with pytest.raises(ValueError):
        segments.add(SENDER, 1, MIB, -1)
    segments.add(SENDER, 1, MIB, memfd(MIB, both))
    with pytest.raises(OSError):
        segments.add(SENDER, 1, MIB, memfd(MIB, both))
    assert segments.figures() == (1, 0)
    assert open_descriptors() <= before  # every descriptor is closed, whatever came of it


def test_a_receiver_cannot_write_to_a_segment():
    pool = SegmentPool()
    (part,) = pool.capture([memoryview(figures(1))])
    fd = part.way(RECEIVER)
    with contextlib.closing(os.fdopen(fd, "r+b", buffering=0)) as file:
        with pytest.raises(PermissionError):
            file.write(b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 10)


def test_without_descriptors_the_bytes_go_in_the_frame():
    lane = Lane()
    (part,) = lane.pool.capture([memoryview(figures(1))])
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_descriptors()), limit[1]))
    spare = []
    try:
        with contextlib.suppress(OSError):
            while True:
                spare.append(os.dup(0))
        assert part.way(RECEIVER) == "inline"
        (more,) = lane.pool.capture([memoryview(figures(2, 8 * MIB))])
    finally:
        for fd in spare:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert type(more) is bytes
    assert isinstance(part.way(RECEIVER), int)


def test_a_refusal_is_not_asked_again_at_once():
    lane = Lane()
    (part,) = lane.pool.capture([memoryview(figures(1))])
    os.close(part.way(RECEIVER))
    assert part.way(RECEIVER) == "wait"
    lane.pool.answered(RECEIVER, part.segment, ok=False)
    assert part.way(RECEIVER) == "inline"
    (other,) = lane.pool.capture([memoryview(figures(2))])
    assert other.way(RECEIVER) == "inline"
    assert isinstance(other.way(33), int)


def test_at_a_fork_what_is_held_is_never_filled_again():
    lane = Lane()
    array = figures(1)
    (held,) = lane.send(array)
    mine = np.frombuffer(held, np.uint8)
    to_child, to_parent = socket.socketpair()
    lane.segments.before_fork()
    child = os.fork()
    if child == 0:
        to_child.recv(1)
        # Nothing here was read before the parent let go of it.
        os._exit(0 if np.array_equal(mine, array) else 1)
    del mine, held
    notes = lane.settle()
    assert [note[3] for note in notes] == [True, False]
    for seed in range(2, 6):
        lane.send(figures(seed))
        lane.settle()
    to_parent.send(b"x")
    assert os.waitpid(child, 0)[1] == 0
    to_child.close()
    to_parent.close()


def test_a_fork_with_nothing_held_costs_nothing():
    lane = Lane()
    lane.send(figures(1))
    lane.settle()
    lane.segments.before_fork()
    assert lane.settle() == []
    (part,) = lane.pool.capture([memoryview(figures(2))])
    assert part.generation == 1


def test_a_forked_child_may_end_and_drop_everything():
    lane = Lane()
    (held,) = lane.send(figures(1))
    lane.segments.before_fork()
    child = os.fork()
    if child == 0:
        del held, lane.pool, lane.segments
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(held) == figures(1).tobytes()
    lane.settle()


def receive_and_answer(channel):
    """A second process: maps what it is offered, changes the values, says what it saw, and releases."""
    segments = SegmentMap()
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 1 << 16, 4)
        if not data:
            os._exit(0)
        message = pickle.loads(data)
        if message[0] == "offer":
            segments.add(SENDER, message[1], message[2], fds[0])
            channel.send(pickle.dumps(("mapped", message[1])))
            continue
        _, payload, places = message
        value = serialize.loads(payload, buffers=[segments.view(*place) for place in places])
        total = int(value.sum())
        value[:] = 1
        del value
        channel.send(pickle.dumps((total, segments.drain_released())))


def test_two_processes():
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        try:
            here.close()
            receive_and_answer(there)
        finally:
            os._exit(1)
    there.close()
    pool = SegmentPool()
    offers = 0
    for seed in range(10):
        array = np.random.default_rng(seed).integers(0, 1000, 300_000)
        dumped = serialize.dumps(array)
        (part,) = pool.capture(dumped.buffers)
        way = part.way(RECEIVER)
        if way != "ready":
            offers += 1
            offer = pickle.dumps(("offer", part.segment, part.segment_bytes))
            socket.send_fds(here, [offer], [way])
            os.close(way)
            pool.answered(RECEIVER, pickle.loads(here.recv(1000))[1], ok=True)
        part.hold(RECEIVER)
        place = (part.segment, part.generation, part.offset, part.length)
        here.send(pickle.dumps(("value", dumped.payload, [place])))
        del part
        total, released = pickle.loads(here.recv(1 << 16))
        assert total == array.sum()
        for _, segment, generation, retire in released:
            pool.released(RECEIVER, segment, generation, retire)
    assert offers == 1
    here.close()
    assert os.waitpid(child, 0)[1] == 0


def test_a_killed_receiver_leaves_nothing():
    gc.collect()
    before = segments_held()
    here, there = socket.socketpair()
    pool = SegmentPool()
    (part,) = pool.capture([memoryview(figures(1, 32 * MIB))])
    way = part.way(RECEIVER)
    child = os.fork()
    if child == 0:
        segments = SegmentMap()
        segments.add(SENDER, part.segment, part.segment_bytes, os.dup(way))
        held = segments.view(part.segment, part.generation, part.offset, part.length)
        np.frombuffer(held, np.uint8)[:] = 1
        there.send(b"x")
        there.recv(1)
    os.close(way)
    here.recv(1)
    pool.answered(RECEIVER, part.segment, ok=True)
    part.hold(RECEIVER)
    del part
    os.kill(child, 9)
    os.waitpid(child, 0)
    pool.receiver_gone(RECEIVER)
    assert pool.bytes()[1] == pool.bytes()[0]
    del pool
    gc.collect()
    # Nobody else ever had it, so with the last descriptor and mapping its memory is free.
    assert segments_held() <= before
    here.close()
    there.close()


def segments_held():
    """How many descriptors and mappings of segments this process has."""
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    names = [link for _, _, link in descriptors()]
    return sum("memfd:roost" in line for line in maps + names)


def test_local_copies_are_private():
    segments = SegmentMap()
    small, large = figures(1, 1000), figures(2)
    copies = segments.copies([memoryview(small), memoryview(large)])
    assert type(copies[0]) is bytearray
    assert type(copies[1]) is SharedBuffer
    np.frombuffer(copies[1], np.uint8)[:] = 0
    np.testing.assert_array_equal(large, figures(2))
    assert copies[0] == small.tobytes()
    assert struct.unpack_from("B", copies[1]) == (0,)


@pytest.mark.parametrize("size", [MIB, 5 * MIB + 4321, 30 * MIB + 17])
@pytest.mark.parametrize("touch", ["nothing", "one page", "every third page", "all", "read"])
def test_what_was_received_is_passed_on_as_it_is_now(size, touch):
    lane, onward = Lane(), Lane()
    array = figures(1, size)
    lead, buffer = lane.send(figures(2, MIB + 100), array)  # so that the second does not begin with a page
    mine = np.frombuffer(buffer, np.uint8)
    expected = array.copy()
    for changed in (mine, expected):
        if touch == "one page":
            changed[size // 2 : size // 2 + 10] = 1
        elif touch == "every third page":
            changed[:: 3 * 4096] = 2
        elif touch == "all":
            changed[:] = 3
        elif touch == "read":
            assert changed.sum() >= 0
    for _ in range(3):  # a new segment, then a used one
        (passed,) = onward.send(mine)
        np.testing.assert_array_equal(np.frombuffer(passed, np.uint8), expected)
        (piece,) = onward.send(mine[7 : 7 + MIB + 9])
        np.testing.assert_array_equal(np.frombuffer(piece, np.uint8), expected[7 : 7 + MIB + 9])
        del passed, piece
        onward.settle()
    del lead


def test_what_was_received_is_passed_on_by_a_forked_child():
    lane = Lane()
    (buffer,) = lane.send(figures(1))
    mine = np.frombuffer(buffer, np.uint8)
    mine[:100] = 1
    lane.segments.before_fork()
    child = os.fork()
    if child == 0:
        mine[5000:6000] = 2
        (part,) = SegmentPool().capture([memoryview(mine)])
        os._exit(0 if part.tobytes() == mine.tobytes() else 1)
    mine[:] = 9
    assert os.waitpid(child, 0)[1] == 0
