"""The outer step of DiLoCo against torch's, operation by operation, bit for bit."""

import ctypes

import pytest

from .host import f32, pointer, u64

torch = pytest.importorskip("torch")
from .test_fp8 import same_bits  # noqa: E402 (needs torch)
from .values import every_exponent, small_range  # noqa: E402

FORMATS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PAIRS = [("f32", "f32"), ("f32", "bf16"), ("bf16", "f32"), ("bf16", "bf16"), ("f16", "f32"), ("f16", "f16")]


def numbers(count, seed, dtype=torch.float32):
    return torch.cat([small_range(count - count // 4, seed), every_exponent(count // 4, seed)]).to(dtype)


@pytest.mark.parametrize(("local", "gradient"), PAIRS)
@pytest.mark.parametrize("count", [0, 1, 5, 30_003])
def test_the_pseudo_gradient(kernels, local, gradient, count, compared):
    outer, ours = numbers(count, 1), numbers(count, 2, FORMATS[local])
    slope = torch.zeros(count, dtype=FORMATS[gradient])
    kernels.run(
        f"roost_pseudo_gradient_{local}_to_{gradient}", pointer(outer), pointer(ours), pointer(slope), u64(count)
    )
    assert same_bits(slope, (outer - ours.float()).to(FORMATS[gradient]))
    compared["pseudo-gradient"] = compared.get("pseudo-gradient", 0) + count


@pytest.mark.parametrize(("local", "gradient"), PAIRS)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(("count", "offset"), [(0, 0), (3, 0), (30_003, 0), (1001, 1), (1002, 2)])
def test_three_steps_of_momentum(kernels, local, gradient, given, count, offset, compared):
    share, rate, momentum = 1 / 3, 0.7, 0.9
    outer, speed = numbers(count + offset, 1)[offset:], numbers(count + offset, 2)[offset:]
    ours = numbers(count + offset, 3, FORMATS[local])[offset:]
    wanted_outer, wanted_speed = outer.clone(), speed.clone()
    for step in range(3):
        slope = numbers(count + offset, 4 + step, FORMATS[gradient])[offset:]
        taken = slope.float() * share if given else wanted_outer - ours.float()
        wanted_speed = wanted_speed * momentum + taken
        wanted_outer = wanted_outer - (taken + wanted_speed * momentum) * rate
        wanted_local = wanted_outer.to(FORMATS[local])
        there = pointer(slope) if given else ctypes.c_void_p(None)
        arguments = (
            pointer(outer),
            pointer(speed),
            pointer(ours),
            there,
            u64(count),
            f32(share),
            f32(rate),
            f32(momentum),
        )
        kernels.run(f"roost_outer_step_{local}_from_{gradient}", *arguments)
        assert same_bits(outer, wanted_outer)
        assert same_bits(speed, wanted_speed)
        assert same_bits(ours, wanted_local)
        compared["outer step"] = compared.get("outer step", 0) + 3 * count


@pytest.mark.slow
@pytest.mark.timeout(180)  # importing torch's optimizers takes seconds
def test_it_is_what_torchs_own_optimizer_does(kernels):
    count = 4096
    start, slopes = small_range(count, 1), [small_range(count, 2 + i) for i in range(3)]
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True, foreach=False)
    outer, speed, ours = start.clone(), torch.zeros(count), start.clone()
    for slope in slopes:
        parameter.grad = slope
        optimizer.step()
        arguments = (
            pointer(outer),
            pointer(speed),
            pointer(ours),
            pointer(slope),
            u64(count),
            f32(1.0),
            f32(0.7),
            f32(0.9),
        )
        kernels.run("roost_outer_step_f32_from_f32", *arguments)
    # torch may fuse a product with a sum, so the last bit may differ.
    torch.testing.assert_close(outer, parameter.detach(), rtol=1e-5, atol=1e-3)
