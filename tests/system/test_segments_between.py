"""Large parts in shared memory between processes: seals, descriptors, forks, kills."""

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
from lanes import MIB, RECEIVER, SENDER, Lane, figures
from leftovers import descriptors

from roost import serialize
from roost._roost import SegmentMap, SegmentPool, SharedBuffer


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
    assert type(more) is bytearray
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
