"""Tensors into a bucket and out of it, against torch's copies and conversions."""

import ctypes
import mmap

import pytest

from .host import Piece, f32, pointer, u32, u64

torch = pytest.importorskip("torch")
from .test_fp8 import same_bits  # noqa: E402 (needs torch)
from .values import every_exponent  # noqa: E402

# Address space that takes memory only where it is touched; Python names the flag from 3.13 on.
NORESERVE = 0x4000

FORMATS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
CASTS = [
    ("f32", "f32"),
    ("f32", "bf16"),
    ("f32", "f16"),
    ("bf16", "f32"),
    ("bf16", "bf16"),
    ("f16", "f32"),
    ("f16", "f16"),
]
SIZES = [0, 1, 7, 8, 4096, 3, 0, 70_001, 16_384, 5, 40_000]


def pieces_of(tensors, starts):
    return (Piece * len(tensors))(*(Piece(t.data_ptr(), s, t.numel()) for t, s in zip(tensors, starts, strict=True)))


def close(tensors):
    """Where each begins when they lie one behind the other, and the sum."""
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + tensor.numel())
    return starts[:-1], starts[-1]


def move(kernels, name, pieces, count, bucket, elements, scale=1.0, **how):
    table = ctypes.c_void_p(ctypes.addressof(pieces))
    kernels.run(name, table, u32(count), pointer(bucket), u64(elements), f32(scale), **how)


@pytest.mark.parametrize(("ours", "theirs"), CASTS)
@pytest.mark.parametrize("scale", [1.0, 0.125, 1 / 3])
def test_the_bucket_has_what_torch_converts_and_gives_it_back(kernels, ours, theirs, scale, compared):
    tensors = [every_exponent(size + 40, size)[40:].to(FORMATS[ours]) for size in SIZES]
    starts, elements = close(tensors)
    bucket = torch.zeros(elements, dtype=FORMATS[theirs])
    move(kernels, f"roost_pack_{ours}_to_{theirs}", pieces_of(tensors, starts), len(tensors), bucket, elements, scale)
    wanted = torch.cat([(tensor.float() * scale).to(FORMATS[theirs]) for tensor in tensors])
    assert same_bits(bucket, wanted)
    back = [torch.zeros_like(tensor) for tensor in tensors]
    move(kernels, f"roost_unpack_{theirs}_to_{ours}", pieces_of(back, starts), len(back), bucket, elements, scale)
    for mine, start in zip(back, starts, strict=True):
        assert same_bits(mine, (wanted[start : start + mine.numel()].float() * scale).to(FORMATS[ours]))
    compared["packed"] = compared.get("packed", 0) + 2 * elements


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_every_float_that_rounds_to_a_half(kernels, name, compared):
    numbers = every_exponent(3 << 20, 9)
    bucket = torch.zeros(len(numbers), dtype=FORMATS[name])
    move(kernels, f"roost_pack_f32_to_{name}", pieces_of([numbers], [0]), 1, bucket, len(numbers))
    assert same_bits(bucket, numbers.to(FORMATS[name]))
    compared[f"f32 to {name}"] = len(numbers)


@pytest.mark.parametrize("source", range(0, 17, 3))
@pytest.mark.parametrize("target", [0, 1, 4, 7, 16])
def test_bytes_of_any_alignment_and_nothing_beside_them(kernels, source, target):
    memory = torch.randint(0, 256, (40_000,), dtype=torch.uint8)
    tensors = [
        memory[source : source + 33],
        memory[100 + source : 100 + source + 20_000],
        memory[source:source],
        memory[30_000:30_001],
    ]
    starts = [target, target + 40, target + 20_041, target + 20_050]
    room = torch.full((20_100,), 0xEE, dtype=torch.uint8)
    wanted = room.clone()
    for tensor, start in zip(tensors, starts, strict=True):
        wanted[start : start + len(tensor)] = tensor
    move(kernels, "roost_pack_bytes_to_bytes", pieces_of(tensors, starts), 4, room, len(room), blocks=2)
    assert torch.equal(room, wanted)
    back = torch.full((40_000,), 0xDD, dtype=torch.uint8)
    targets = [
        back[source : source + 33],
        back[100 + source : 100 + source + 20_000],
        back[source:source],
        back[30_000:30_001],
    ]
    wanted = back.clone()
    wanted[source : source + 33] = tensors[0]
    wanted[100 + source : 100 + source + 20_000] = tensors[1]
    wanted[30_000:30_001] = tensors[3]
    move(kernels, "roost_unpack_bytes_to_bytes", pieces_of(targets, starts), 4, room, len(room), blocks=5)
    assert torch.equal(back, wanted)


def test_a_bucket_of_more_than_two_to_the_thirty_one(kernels):
    # Address space that takes memory only where it is touched: the tensors lie before, over and behind 2^31 and 2^32.
    elements = (1 << 32) + 100_000
    space = mmap.mmap(-1, elements, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    bucket = torch.frombuffer(space, dtype=torch.uint8)
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (1000, 50_000, 50_001, 90_000)]
    starts = [5, (1 << 31) - 25_000, (1 << 32) - 50_000, elements - 90_000 - 7]
    pieces = pieces_of(tensors, starts)
    chunk, grid = 1 << 14, (elements >> 14) + 1
    for tensor, start in zip(tensors, starts, strict=True):
        first, last = start // chunk, (start + len(tensor) - 1) // chunk
        move(kernels, "roost_pack_bytes_to_bytes", pieces, 4, bucket, elements, blocks=grid, only=(first, last + 1))
        assert torch.equal(bucket[start : start + len(tensor)], tensor)
    back = [torch.zeros_like(tensor) for tensor in tensors]
    for tensor, start in zip(tensors, starts, strict=True):
        only = (start // chunk, (start + len(tensor) - 1) // chunk + 1)
        move(
            kernels, "roost_unpack_bytes_to_bytes", pieces_of(back, starts), 4, bucket, elements, blocks=grid, only=only
        )
    assert all(torch.equal(mine, wanted) for mine, wanted in zip(back, tensors, strict=True))


def test_nothing_at_all(kernels):
    empty = torch.zeros(0)
    move(kernels, "roost_pack_f32_to_f32", pieces_of([], []), 0, empty, 0)
    move(kernels, "roost_pack_f32_to_bf16", pieces_of([empty], [0]), 1, empty, 0)
