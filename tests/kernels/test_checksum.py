"""The checksum against the same arithmetic on torch's integers, which wrap as the kernels' do."""

import ctypes
import mmap

import pytest

from .host import u64

torch = pytest.importorskip("torch")

# Address space that takes memory only where it is touched; Python names the flag from 3.13 on.
NORESERVE = 0x4000


def signed(value):
    return value - (1 << 64) if value >= 1 << 63 else value


def shifted(words, by):
    return (words >> by) & ((1 << (64 - by)) - 1)


def mix(words):
    words = (words ^ shifted(words, 30)) * signed(0xBF58476D1CE4E5B9)
    words = (words ^ shifted(words, 27)) * signed(0x94D049BB133111EB)
    return words ^ shifted(words, 31)


def wanted(memory, first=0):
    padded = torch.cat([memory, torch.zeros(-len(memory) % 8, dtype=torch.uint8)])
    words = padded.clone().view(torch.int64)
    numbers = torch.arange(first + 1, first + len(words) + 1) * signed(0x9E3779B97F4A7C15)
    return int(mix(words ^ mix(numbers)).sum()) & ((1 << 64) - 1)


def checksum(kernels, address, length, first=0, **how):
    total = ctypes.c_uint64(0)
    there = ctypes.c_void_p(ctypes.addressof(total))
    kernels.run("roost_checksum", ctypes.c_void_p(address), u64(length), u64(first), there, **how)
    return total.value


@pytest.mark.parametrize("offset", [0, 1, 4, 8, 15])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 24, 1000, 65_537, 1_000_003])
def test_any_length_and_alignment(kernels, offset, length, compared):
    whole = torch.randint(0, 256, (offset + length,), dtype=torch.uint8)
    memory = whole[offset:]
    assert checksum(kernels, whole.data_ptr() + offset, length) == wanted(memory)
    compared["checksum bytes"] = compared.get("checksum bytes", 0) + length


def test_parts_add_up_whatever_the_order(kernels):
    memory = torch.randint(0, 256, (100_000,), dtype=torch.uint8)
    cuts = [(50_000, 100_000), (0, 16), (16, 50_000)]
    parts = (checksum(kernels, memory.data_ptr() + a, b - a, a // 8) for a, b in cuts)
    assert sum(parts) & ((1 << 64) - 1) == wanted(memory) == checksum(kernels, memory.data_ptr(), 100_000, blocks=7)


def test_a_flipped_bit_and_words_that_changed_places(kernels):
    memory = torch.randint(0, 256, (4096,), dtype=torch.uint8)
    right = checksum(kernels, memory.data_ptr(), 4096)
    for bit in range(0, 4096 * 8, 997):
        memory[bit // 8] ^= 1 << (bit % 8)
        assert checksum(kernels, memory.data_ptr(), 4096, blocks=1) != right
        memory[bit // 8] ^= 1 << (bit % 8)
    words = memory.view(torch.int64)
    words[[3, 4]] = words[[4, 3]]
    assert checksum(kernels, memory.data_ptr(), 4096) != right


def test_the_last_block_of_more_than_two_to_the_thirty_one_words(kernels):
    length = (1 << 34) + (1 << 20) + 5
    space = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    memory = torch.frombuffer(space, dtype=torch.uint8)
    # A thread of this grid has one pair of words: the last block has the last of them.
    pairs = length // 16
    grid = (pairs + 255) // 256
    begin = (grid - 1) * 256 * 16
    memory[begin:] = torch.randint(0, 256, (length - begin,), dtype=torch.uint8)
    total = checksum(kernels, memory.data_ptr(), length, blocks=grid, only=(grid - 1, grid))
    whole = memory[begin : length // 16 * 16]
    assert total == wanted(whole, begin // 8)
