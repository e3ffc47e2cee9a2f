"""Eight-bit codes by the kernels' integers against torch's own conversions, bit for bit."""

import ctypes
import re
import shutil

import pytest

from .host import KERNELS, Kernels, pointer, u32, u64

torch = pytest.importorskip("torch")
from .values import every_exponent, small_range, ties  # noqa: E402 (needs torch)

KINDS = {"ocp": torch.float8_e4m3fn, "fnuz": torch.float8_e4m3fnuz}
FORMATS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def codes_of(numbers, dtype):
    """What torch makes of them: finite numbers beyond the range are the largest, infinity and NaN are NaN."""
    largest = torch.finfo(dtype).max
    clamped = torch.where(numbers.isfinite(), numbers.clamp(-largest, largest), float("nan"))
    codes = clamped.to(dtype).view(torch.uint8)
    if dtype == torch.float8_e4m3fn:
        codes = torch.where(clamped.isnan(), torch.where(torch.signbit(numbers), 0xFF, 0x7F).to(torch.uint8), codes)
    return codes


def quantise(kernels, numbers, kind, scales=None, blocks=3, stride=None):
    name = next(name for name, dtype in FORMATS.items() if dtype == numbers.dtype)
    rows, columns = numbers.shape
    codes = torch.full((rows, columns), 0x55, dtype=torch.uint8)
    given = scales is not None
    scales = torch.full((rows,), -1.0) if scales is None else scales
    arguments = (
        pointer(numbers),
        u64(rows),
        u64(columns),
        u64(stride or columns),
        pointer(codes),
        pointer(scales),
        u32(given),
    )
    kernels.run(f"roost_quantise_{name}_{kind}", *arguments, blocks=blocks)
    return codes, scales


def dequantise(kernels, codes, scales, kind, dtype):
    name = next(name for name, known in FORMATS.items() if known == dtype)
    rows, columns = codes.shape
    numbers = torch.full((rows, columns), 77.0, dtype=dtype)
    arguments = (pointer(codes), pointer(scales), u64(rows), u64(columns), u64(columns), pointer(numbers))
    kernels.run(f"roost_dequantise_{name}_{kind}", *arguments)
    return numbers


def same_bits(mine, wanted):
    """How many differ; a NaN is a NaN, whatever its last bits."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[mine.element_size()]
    differ = mine.view(integers) != wanted.view(integers)
    if mine.is_floating_point():
        differ &= ~(mine.isnan() & wanted.isnan())
    return int(differ.sum()) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_sort_of_number_becomes_the_code_that_torch_makes_of_it(kernels, kind, compared):
    dtype = KINDS[kind]
    numbers = torch.cat([every_exponent(1 << 20, 1), small_range(3 << 19, 2), ties(dtype)])
    columns = len(numbers) // 8
    numbers = numbers[: 8 * columns].reshape(8, columns)
    codes, _ = quantise(kernels, numbers, kind, torch.ones(8))
    assert same_bits(codes, codes_of(numbers, dtype))
    compared[f"f32 to fp8 {kind}"] = numbers.numel()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_every_half_there_is(kernels, kind, name, compared):
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(FORMATS[name]).reshape(16, -1)
    codes, _ = quantise(kernels, numbers, kind, torch.ones(16))
    assert same_bits(codes, codes_of(numbers.float(), KINDS[kind]))
    compared[f"{name} to fp8 {kind}"] = numbers.numel()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("columns", [1, 3, 255, 256, 1027, 4096])
def test_a_rows_scale_is_its_largest_finite_number(kernels, kind, name, columns, compared):
    dtype = KINDS[kind]
    rows = 64
    numbers = (small_range(rows * columns, columns, -30, 20)).reshape(rows, columns).to(FORMATS[name])
    numbers[0] = 0
    numbers[1, 0] = float("nan")
    numbers[2, -1] = float("inf")
    numbers[3] = float("-inf")
    numbers[4] *= 2.0**-100 if name != "f16" else 2.0**-10
    numbers[5] = torch.tensor(3e38 if name != "f16" else 6e4)
    codes, scales = quantise(kernels, numbers, kind)
    wide = numbers.float()
    largest = torch.where(wide.isfinite(), wide.abs(), 0.0).amax(1)
    wanted = torch.where(largest == 0, 1.0, (largest / torch.finfo(dtype).max).clamp(min=2.0**-126))
    assert same_bits(scales, wanted)
    assert same_bits(codes, codes_of(wide * (1.0 / wanted)[:, None], dtype))
    back = dequantise(kernels, codes, scales, kind, FORMATS[name])
    assert same_bits(back, (codes.view(dtype).float() * scales[:, None]).to(FORMATS[name]))
    compared["rows"] = compared.get("rows", 0) + 2 * numbers.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_every_code_comes_back_as_what_torch_reads(kernels, kind, compared):
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).repeat(64, 1)
    scales = small_range(64, 5, -20, 20).abs()
    for dtype in FORMATS.values():
        back = dequantise(kernels, codes, scales, kind, dtype)
        assert same_bits(back, (codes.view(KINDS[kind]).float() * scales[:, None]).to(dtype))
        compared["codes"] = compared.get("codes", 0) + codes.numel()


@pytest.mark.parametrize("offset", range(1, 5))
@pytest.mark.parametrize("columns", [0, 1, 17, 513])
def test_any_alignment_and_stride_and_nothing_beside_the_rows(kernels, offset, columns):
    stride, rows = columns + 5, 9
    whole = small_range(offset + rows * stride, 3)
    view = whole[offset : offset + rows * stride].reshape(rows, stride)[:, :columns]
    room = torch.full((offset + rows * columns + 8,), 0xAB, dtype=torch.uint8)
    codes = room[offset : offset + rows * columns].reshape(rows, columns)
    scales = torch.ones(rows)
    arguments = (
        pointer(view),
        u64(rows),
        u64(columns),
        u64(stride),
        ctypes.c_void_p(room.data_ptr() + offset),
        pointer(scales),
    )
    kernels.run("roost_quantise_f32_ocp", *arguments, u32(1), blocks=2)
    assert same_bits(codes.contiguous(), codes_of(view.contiguous(), torch.float8_e4m3fn))
    assert (room[:offset] == 0xAB).all()
    assert (room[offset + rows * columns :] == 0xAB).all()


def test_a_wrong_exponent_put_in_by_hand_is_caught(tmp_path):
    sources = tmp_path / "kernels"
    shutil.copytree(KERNELS, sources)
    text = (sources / "device.h").read_text()
    broken, count = re.subn(r"\(128 - Bias\) << 23", "(127 - Bias) << 23", text)
    assert count == 1
    (sources / "device.h").write_text(broken)
    numbers = small_range(4096, 4).reshape(1, -1)
    codes, _ = quantise(Kernels(tmp_path, sources), numbers, "ocp", torch.ones(1))
    assert not same_bits(codes, codes_of(numbers, torch.float8_e4m3fn))
