"""`roost.kernels` on the CPU against the kernels' own sources, compiled for the host: the same bits."""

import ctypes

import pytest

from .host import f32, pointer, u64

torch = pytest.importorskip("torch")
from roost import kernels as ours  # noqa: E402 (needs torch)

from .test_fp8 import dequantise, quantise, same_bits  # noqa: E402
from .test_pack import CASTS, FORMATS, close, move, pieces_of  # noqa: E402
from .values import every_exponent, small_range  # noqa: E402

SIZES = [0, 1, 7, 4096, 3, 70_001, 5]


@pytest.mark.parametrize(("mine", "theirs"), CASTS)
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_buckets(kernels, mine, theirs, scale, compared):
    tensors = [every_exponent(size + 40, size)[40:].to(FORMATS[mine]) for size in SIZES]
    starts, elements = close(tensors)
    wanted = torch.zeros(elements, dtype=FORMATS[theirs])
    move(kernels, f"roost_pack_{mine}_to_{theirs}", pieces_of(tensors, starts), len(tensors), wanted, elements, scale)
    bucket = ours.pack(tensors, dtype=FORMATS[theirs], scale=scale)
    assert same_bits(bucket, wanted)
    back = [torch.zeros_like(tensor) for tensor in tensors]
    mirror = [torch.zeros_like(tensor) for tensor in tensors]
    move(kernels, f"roost_unpack_{theirs}_to_{mine}", pieces_of(mirror, starts), len(mirror), wanted, elements, scale)
    ours.unpack(bucket, back, scale=scale)
    assert all(same_bits(one, other) for one, other in zip(back, mirror, strict=True))
    compared["roost.kernels"] = compared.get("roost.kernels", 0) + 2 * elements


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64, torch.float8_e4m3fn, torch.uint8])
def test_what_are_no_numbers_to_the_kernels_is_moved_as_it_is(dtype):
    tensors = [torch.randint(0, 2, (size,)).to(dtype) for size in (3, 0, 17)]
    room = torch.zeros(25, dtype=dtype)
    bucket = ours.pack(tensors, room)
    back = [torch.zeros_like(tensor) for tensor in tensors]
    ours.unpack(bucket, back)
    assert bucket is room
    as_bytes = torch.uint8
    for one, other in zip(back, tensors, strict=True):
        assert torch.equal(one.view(as_bytes), other.view(as_bytes))
    assert not room[20:].view(as_bytes).any()


@pytest.mark.parametrize("kind", ["ocp", "fnuz"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("columns", [1, 255, 4096])
def test_eight_bits(kernels, kind, name, columns, compared):
    rows = 64
    numbers = torch.cat([
        every_exponent(rows * columns // 2, columns), small_range(rows * columns - rows * columns // 2, 2),
    ]).reshape(rows, columns).to(FORMATS[name])  # fmt: skip
    numbers[0] = 0
    numbers[1, 0], numbers[2, -1], numbers[3] = float("nan"), float("inf"), float("-inf")
    numbers[4, 0] = -torch.tensor(float("nan"))
    codes, scales = quantise(kernels, numbers, kind)
    found = ours.quantise(numbers, format=kind)
    assert found.format == kind
    assert same_bits(found.scales, scales)
    assert same_bits(found.codes, codes)
    for dtype in FORMATS.values():
        assert same_bits(ours.dequantise(found, dtype=dtype), dequantise(kernels, codes, scales, kind, dtype))
    compared["roost.kernels"] = compared.get("roost.kernels", 0) + 4 * numbers.numel()


@pytest.mark.parametrize(("local", "gradient"), [("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16"), ("f16", "f16")])
@pytest.mark.parametrize("given", [True, False])
def test_the_outer_step(kernels, local, gradient, given, compared):
    count, share, rate, momentum = 30_003, 1 / 3, 0.7, 0.9
    outer, velocity = every_exponent(count, 1), every_exponent(count, 2)
    led, slope = small_range(count, 3).to(FORMATS[local]), small_range(count, 4).to(FORMATS[gradient])
    mine = [outer.clone(), velocity.clone(), led.clone()]
    wanted = torch.zeros(count, dtype=FORMATS[gradient])
    kernels.run(
        f"roost_pseudo_gradient_{local}_to_{gradient}", pointer(outer), pointer(led), pointer(wanted), u64(count)
    )
    assert same_bits(ours.pseudo_gradient(outer, led, dtype=FORMATS[gradient]), wanted)
    there = pointer(slope) if given else ctypes.c_void_p(None)
    arguments = (
        pointer(outer),
        pointer(velocity),
        pointer(led),
        there,
        u64(count),
        f32(share),
        f32(rate),
        f32(momentum),
    )
    kernels.run(f"roost_outer_step_{local}_from_{gradient if given else 'f32'}", *arguments)
    step = {"share": share, "learning_rate": rate, "momentum": momentum}
    ours.outer_step(*mine, slope if given else None, **step)
    assert all(same_bits(one, other) for one, other in zip(mine, (outer, velocity, led), strict=True))
    compared["roost.kernels"] = compared.get("roost.kernels", 0) + 4 * count


@pytest.mark.parametrize("length", [0, 1, 7, 8, 65_537])
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_checksums(kernels, length, offset):
    memory = torch.randint(0, 256, (offset + length,), dtype=torch.uint8)[offset:]
    total = ctypes.c_uint64(0)
    there = ctypes.c_void_p(ctypes.addressof(total))
    kernels.run("roost_checksum", pointer(memory), u64(length), u64(0), there)
    assert ours.checksum(memory) == finished(total.value, length)


def finished(total, length):
    """What checksum.hip leaves to the host: the length counts too."""

    def mix(word):
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
        word = (word ^ word >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
        return word ^ word >> 31

    return mix(total ^ mix(length + 1))


def test_a_quantised_gradient_travels_with_its_format():
    import pickle

    numbers = small_range(512, 1).reshape(4, 128)
    sent = ours.quantise(numbers, format="fnuz")
    came = pickle.loads(pickle.dumps(sent))
    assert came.format == "fnuz"
    assert same_bits(ours.dequantise(came), ours.dequantise(sent))


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        (lambda: ours.pack([]), ValueError, "no tensors and no bucket"),
        (lambda: ours.pack([torch.ones(3), torch.ones(3).half()]), TypeError, "tensor 1 torch.float16"),
        (lambda: ours.pack([torch.ones(4, 4).t()]), ValueError, "tensor 0 is not contiguous"),
        (lambda: ours.pack([torch.ones(4)], torch.ones(3)), ValueError, "4 elements do not fit a bucket of 3"),
        (lambda: ours.pack([torch.ones(4)], dtype=torch.float64), TypeError, "does not become torch.float64"),
        (lambda: ours.pack([torch.ones(4, dtype=torch.int32)], scale=0.5), TypeError, "scale=0.5"),
        (lambda: ours.pack([torch.ones(4).half()], dtype=torch.bfloat16), TypeError, "do not become each other"),
        (lambda: ours.quantise(torch.ones(4, dtype=torch.int8)), TypeError, "numbers is of torch.int8"),
        (lambda: ours.quantise(torch.ones(4), format="e5m2"), ValueError, "e5m2"),
        (lambda: ours.quantise(torch.tensor(1.0)), ValueError, "no rows"),
        (lambda: ours.dequantise(ours.quantise(torch.ones(2, 4)), torch.ones(8)), ValueError, "do not fit out"),
        (lambda: ours.pseudo_gradient(torch.ones(3), torch.ones(4)), ValueError, "local has the shape"),
        (lambda: ours.pseudo_gradient(torch.ones(3).half(), torch.ones(3)), TypeError, "outer is of torch.float16"),
        (lambda: ours.checksum([1, 2]), TypeError, "of the type list, not a tensor"),
        (lambda: ours.checksum(torch.ones(4, device="meta")), ValueError, "no kernels for tensors on meta"),
    ],
)
def test_what_does_not_fit_is_said(what, error, said):
    with pytest.raises(error, match=said):
        what()
