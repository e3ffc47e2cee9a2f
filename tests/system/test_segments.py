"""Large parts in shared memory: who holds a segment, when it is used again, how much is kept."""

import gc

import numpy as np
import pytest
from lanes import MIB, RECEIVER, SENDER, Lane, figures

from roost import serialize
from roost._roost import SegmentMap, SegmentPool, SharedBuffer


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
    assert type(lane.send(figures(3))[0]) is bytearray  # no room: the bytes go in the frame
    held.clear()
    lane.settle()
    assert lane.pool.bytes()[1] <= 3 * MIB
    # Idle memory makes room for a segment of another size.
    assert type(lane.send(figures(4, 4 * MIB))[0]) is SharedBuffer
    lane.settle()
    assert lane.pool.bytes()[0] <= 5 * MIB


def test_segments_leave_a_process_its_other_descriptors():
    lane = Lane(SegmentPool(segments_max=3))
    held = [lane.send(figures(seed, 300_000 + 90_000 * seed))[0] for seed in range(5)]
    assert [type(one) for one in held] == [SharedBuffer] * 3 + [bytearray] * 2  # who gets what is held costs none
    # Too much for a frame has a segment all the same.
    held += lane.send(figures(5, 32 * MIB))
    assert type(held[-1]) is SharedBuffer
    for seed, one in enumerate(held[:5]):
        np.testing.assert_array_equal(one, figures(seed, 300_000 + 90_000 * seed))
    # One that is idle makes room for one of another size.
    held.clear()
    del one
    lane.settle()
    assert type(lane.send(figures(6, 2 * MIB))[0]) is SharedBuffer


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
