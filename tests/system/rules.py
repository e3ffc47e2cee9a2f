"""The rules of one-sided memory, which hold on every way. Each runs where the reader is, with a mesh of its owner. No pytest here."""

import asyncio

import numpy as np
from memories import MIB, fails, pattern, refused

from roost import CallTimeoutError, context
from roost.errors import AuthenticationError
from roost.rdma import Batch, Buffer, BufferGone, VersionError
from roost.rdma.transfers import transfers


async def a_read_gives_what_is_there(owner):
    for size in (1, 4096, 100_003, 5 * MIB + 1):
        buffer = await owner.lend.call_one(size)
        target = np.zeros(size, np.uint8)
        assert await buffer.read_into(target) is None
        assert (target == pattern(size)).all()


async def a_write_arrives(owner):
    for size in (1, 4096, 100_003, 5 * MIB + 1):
        buffer = await owner.lend.call_one(size)
        await buffer.write_from(pattern(size, 5))
        assert await owner.peek.call_one(buffer) == pattern(size, 5).tobytes()


async def what_is_behind_stays(owner):
    buffer = await owner.lend.call_one(1000)
    target = np.full(1500, 9, np.uint8)
    await buffer.read_into(target)
    assert (target[:1000] == pattern(1000)).all()
    assert (target[1000:] == 9).all()
    await buffer.write_from(np.full(300, 8, np.uint8))
    assert await owner.peek.call_one(buffer) == bytes([8] * 300) + pattern(1000)[300:].tobytes()


async def sizes_are_checked(owner):
    buffer = await owner.lend.call_one(1000)
    target = np.full(999, 9, np.uint8)
    refused(ValueError, lambda: buffer.read_into(target), "dst has 999 bytes, and the buffer has 1000")
    refused(ValueError, lambda: Batch().read(buffer, target), "dst of part 0 has 999 bytes")
    assert (target == 9).all()
    refused(ValueError, lambda: buffer.write_from(np.zeros(1001, np.uint8)), "src has 1001 bytes")
    refused(ValueError, lambda: Batch().write(buffer, np.zeros(1001, np.uint8)), "src of part 0")
    assert await owner.peek.call_one(buffer) == pattern(1000).tobytes()


async def nothing_is_refused(owner):
    buffer = await owner.lend.call_one(1000)
    none = np.zeros(0, np.uint8)
    refused(ValueError, lambda: Buffer(none), "no bytes")
    refused(ValueError, lambda: buffer.write_from(none), "no bytes")
    refused(ValueError, lambda: Batch().read(buffer[10:10], none), "no bytes")
    assert await Batch().submit() is None


async def an_offset_is_kept(owner):
    buffer = await owner.lend.call_one(1000)
    target = np.zeros(400, np.uint8)
    await buffer.read_into(target, offset=600)
    assert (target == pattern(1000)[600:]).all()
    await buffer.write_from(np.full(100, 7, np.uint8), offset=900)
    assert (await owner.peek.call_one(buffer))[900:] == bytes([7] * 100)
    refused(ValueError, lambda: buffer.read_into(target, offset=599), "401 from offset 599")
    refused(ValueError, lambda: buffer.write_from(target, offset=601), "399 from offset 601")
    for offset in (1000, -1, 1 << 70):
        refused(ValueError, lambda offset=offset: buffer.read_into(target, offset=offset))


async def memory_of_another_form_is_refused(owner):
    buffer = await owner.lend.call_one(1024)
    with_holes = np.zeros((32, 64), np.uint8)[:, ::2]
    refused(ValueError, lambda: buffer.read_into(with_holes), "dst is not contiguous")
    refused(ValueError, lambda: buffer.write_from(with_holes), "src is not contiguous")
    refused(ValueError, lambda: Buffer(with_holes), "a Buffer's memory is not contiguous")
    refused(ValueError, lambda: buffer.read_into(bytes(1024)), "dst is read-only")
    refused(ValueError, lambda: Batch().read(buffer, bytes(1024)), "dst of part 0 is read-only")
    await buffer.write_from(bytes(1024))
    assert await owner.peek.call_one(buffer) == bytes(1024)


async def buffers_may_overlap(owner):
    buffer = await owner.lend.call_one(1000)
    again = await owner.lend_again.call_one(buffer, 200, 700)
    await again.write_from(np.full(500, 3, np.uint8))
    target = np.zeros(1000, np.uint8)
    await buffer.read_into(target)
    assert (target[200:700] == 3).all()
    await owner.drop.call_one(again)
    await buffer.read_into(target)
    twice = np.zeros((2, 1000), np.uint8)
    await Batch().read(buffer, twice[0]).read(buffer, twice[1]).submit()
    assert (twice[0] == twice[1]).all()


async def targets_must_not_overlap(owner):
    buffer = await owner.lend.call_one(1000)
    target = np.full(1500, 9, np.uint8)
    batch = Batch().read(buffer, target[:1000]).read(buffer, target[500:])
    refused(ValueError, batch.submit, "part 1")
    batch = Batch().write(buffer[:600], target[:600]).write(buffer[599:], target[:401])
    refused(ValueError, batch.submit, "part 1")
    assert (target == 9).all()
    assert await owner.peek.call_one(buffer) == pattern(1000).tobytes()


async def a_batch_is_made_again_and_again(owner):
    buffers = [await owner.lend.call_one(5000, seed) for seed in range(8)]
    targets = [np.zeros(5000, np.uint8) for _ in range(4)]
    sources = [np.full(5000, seed, np.uint8) for seed in range(4)]
    batch = Batch()
    for number in range(4):
        batch.read(buffers[number], targets[number]).write(buffers[4 + number], sources[number])
    for round_ in range(5):
        for number in range(4):
            sources[number] += 1
        await batch.submit()
        for number in range(4):
            assert (targets[number] == pattern(5000, number)).all()
            assert await owner.peek.call_one(buffers[4 + number]) == bytes([number + round_ + 1] * 5000)


async def slices_are_resharded(owner):
    whole = pattern(64 * 48 * 4).view("f4").reshape(64, 48)
    buffer = await owner.lend.call_one(64 * 48 * 4, shape=(64, 48), dtype="f4")
    rows, columns, turned = np.zeros((16, 48), "f4"), np.zeros((64, 12), "f4"), np.zeros((48, 64), "f4")
    places = np.zeros((64, 96), "f4")
    batch = Batch().read(buffer[16:32], rows).read(buffer[:, 12:24], columns).read(buffer, turned.T)
    await batch.read(buffer[::2, -1], places[:32, 5]).submit()
    expected = whole[16:32], whole[:, 12:24], whole.T, whole[::2, -1]
    for got, wanted in zip((rows, columns, turned, places[:32, 5]), expected, strict=True):
        assert got.tobytes() == wanted.tobytes()
    assert not places[32:].any()
    new = np.arange(64 * 3, dtype="f4").reshape(3, 64).T
    await Batch().write(buffer[:, 3:6], new).submit()
    changed = whole.copy()
    changed[:, 3:6] = new
    assert await owner.peek.call_one(buffer) == changed.tobytes()
    refused(ValueError, lambda: Batch().read(buffer[:3], rows), "the shape")
    refused(ValueError, lambda: Batch().read(buffer[16:32], rows.view("i4")), "int32")


async def a_thousand_at_once(owner):
    buffer = await owner.lend.call_one(1000 * 640)
    each = [buffer[640 * number : 640 * (number + 1)] for number in range(1000)]
    targets = [np.zeros(640, np.uint8) for _ in each]
    batch = Batch()
    for view, target in zip(each, targets, strict=True):
        batch.read(view, target)
    await batch.submit()
    assert (np.concatenate(targets) == pattern(1000 * 640)).all()


async def what_was_dropped_is_gone(owner):
    buffer, other = await owner.lend.call_one(10_000), await owner.lend.call_one(10_000)
    target = np.zeros(10_000, np.uint8)
    await buffer.read_into(target)
    if context().proc == (await owner.run.call_one(who_am_i)):
        pass
    else:
        refused(PermissionError, buffer.drop, "owns the buffer")
        refused(PermissionError, buffer.update(version=1).__enter__, "owns the buffer")
    assert await owner.drop.call_one(buffer)
    assert not await owner.drop.call_one(buffer)
    target[:] = 9
    await fails(BufferGone, buffer.read_into(target))
    await fails(BufferGone, buffer.write_from(target))
    await fails(BufferGone, Batch().write(other, target).read(buffer, target).submit())
    assert (await owner.counts.call_one())["regions"] >= 1
    await other.read_into(target)


async def who_am_i():
    return context().proc


async def a_forged_handle_is_refused(owner):
    buffer = await owner.lend.call_one(1000)
    await buffer.read_into(np.zeros(1000, np.uint8))
    for number, error in ((37 + 3, AuthenticationError), (1 + 8 + 8 + 8 + 4, (AuthenticationError, BufferGone))):
        forged = forge(buffer, number)
        target = np.full(1000, 9, np.uint8)
        await fails(error, forged.read_into(target))
        await fails(error, forged.write_from(target))
        assert (target == 9).all()
    assert await owner.peek.call_one(buffer) == pattern(1000).tobytes()
    try:
        await forge(buffer, 1).read_into(np.zeros(1000, np.uint8))
    except (AuthenticationError, ValueError):
        pass
    else:
        raise AssertionError("a handle of another job was taken")


def forge(buffer, number):
    """The same handle with one byte changed."""
    make, (handle, *rest) = buffer.__reduce__()
    changed = bytearray(handle)
    changed[number] ^= 1
    return make(bytes(changed), *rest)


async def a_larger_size_in_a_handle_reads_nothing_beyond(owner):
    buffer = await owner.lend.call_one(1000)
    size_at = 1 + 8 + 8 + 8 + 4 + 8 + 16
    make, (handle, owner_name, _, item, dtype) = buffer.__reduce__()
    changed = bytearray(handle)
    changed[size_at : size_at + 8] = (5000).to_bytes(8, "little")
    forged = make(bytes(changed), owner_name, (5000,), item, dtype)
    target = np.full(5000, 9, np.uint8)
    await fails((ValueError, AuthenticationError, BufferGone), forged.read_into(target))
    assert (target[1000:] == 9).all()


async def versions_are_kept(owner):
    buffer = await owner.lend.call_one(300_000)
    target = np.zeros(300_000, np.uint8)
    assert await buffer.read_into(target, version=0) == 0
    await owner.write.call_one(buffer, 3, 3)
    assert await buffer.read_into(target, version=2) == 3
    assert (target == pattern(300_000, 3)).all()
    stale = await fails(VersionError, buffer.read_into(target, version=4))
    assert (stale.wanted, stale.found) == (4, 3)
    other = await owner.lend.call_one(1000)
    batch = Batch().read(buffer, target).read(other, np.zeros(1000, np.uint8))
    # Its owner may be between the two, so that this is known when the time is over.
    await fails(VersionError, batch.submit(version=1, timeout=0.3))
    await owner.write.call_one(other, 3, 1)
    assert await batch.submit(version=1) == 3


async def a_reader_waits_for_the_end_of_an_update(owner):
    buffer = await owner.lend.call_one(300_000)
    target = np.zeros(300_000, np.uint8)
    await owner.begin.call_one(buffer, 5)
    reading = buffer.read_into(target, version=0)
    await asyncio.sleep(0.1)
    assert not reading.done()
    await owner.finish.call_one(buffer, 5)
    assert await reading == 5
    assert (target == pattern(300_000, 5)).all()
    await owner.begin.call_one(buffer, 6)
    await owner.finish.call_one(buffer, None)
    await fails(CallTimeoutError, buffer.read_into(target, version=0, timeout=0.3), "an update of a buffer")
    await buffer.read_into(target)
    assert target[0] == 255
    await owner.write.call_one(buffer, 7, 7)
    assert await buffer.read_into(target, version=6) == 7
    assert (target == pattern(300_000, 7)).all()


async def checksums_are_compared(owner):
    buffer = await owner.lend.call_one(3 * MIB)
    target = np.zeros(3 * MIB, np.uint8)
    await buffer.read_into(target, checksum=True)
    assert (target == pattern(3 * MIB)).all()
    await buffer.write_from(pattern(3 * MIB, 1), checksum=True)
    assert await owner.peek.call_one(buffer) == pattern(3 * MIB, 1).tobytes()


async def what_is_given_up_writes_nothing_more(owner):
    size = 16 * MIB
    buffer = await owner.lend.call_one(size)
    target, after = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    await buffer.read_into(target)
    for delay in (0, 0.0005, 0.001, 0.003):
        task = asyncio.ensure_future(awaited(buffer.read_into(target)))
        await asyncio.sleep(delay)
        given_up = task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            assert given_up
        target[:] = 1
        # As much again comes the same way: what is late would be there.
        await buffer.read_into(after)
        assert (target == 1).all()
    for timeout in (1e-6, 0.0005, 0.002):
        try:
            await buffer.read_into(target, timeout=timeout)
        except CallTimeoutError:
            target[:] = 2
            await buffer.read_into(after)
            assert (target == 2).all()
    assert transfers().engine.counts()["transfers"] == 0
    await buffer.read_into(target)
    assert (target == pattern(size)).all()


async def awaited(reply):
    return await reply


async def memory_that_went_away_is_gone(owner):
    # First: made afterwards it might lie where the other was.
    target = np.zeros(64 * MIB, np.uint8)
    buffer = await owner.lend_what_is_unmapped.call_one(64 * MIB)
    await fails(BufferGone, buffer.read_into(target))
    await fails(BufferGone, buffer.write_from(target))
    fine = await owner.lend.call_one(1000)
    await fine.read_into(target)
    assert (target[:1000] == pattern(1000)).all()


async def times_that_make_no_sense_are_refused(owner):
    buffer = await owner.lend.call_one(1000)
    target = np.zeros(1000, np.uint8)
    for timeout in (0, -1, float("inf"), float("nan")):
        refused(ValueError, lambda timeout=timeout: buffer.read_into(target, timeout=timeout))
    for version in (-1, 1 << 64):
        refused(ValueError, lambda version=version: buffer.read_into(target, version=version))
    refused(TypeError, lambda: buffer.read_into(target, version="1"))
    refused(TypeError, lambda: buffer.read_into("text"))


RULES = [
    a_read_gives_what_is_there, a_write_arrives, what_is_behind_stays, sizes_are_checked, nothing_is_refused, an_offset_is_kept,
    memory_of_another_form_is_refused, buffers_may_overlap, targets_must_not_overlap, a_batch_is_made_again_and_again,
    slices_are_resharded, a_thousand_at_once, what_was_dropped_is_gone, a_forged_handle_is_refused,
    a_larger_size_in_a_handle_reads_nothing_beyond, versions_are_kept, a_reader_waits_for_the_end_of_an_update,
    checksums_are_compared, what_is_given_up_writes_nothing_more, memory_that_went_away_is_gone,
    times_that_make_no_sense_are_refused,
]  # fmt: skip
