"""Numbers that formats disagree about: every exponent, ties, what is beyond range, tiny ones, zeros, infinities, NaN."""

import torch


def every_exponent(count: int, seed: int) -> torch.Tensor:
    """Bit patterns at random, so that each exponent is as likely as any other; with the ugly ones mixed in."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (count,), generator=generator, dtype=torch.int64).to(torch.int32)
    numbers = bits.view(torch.float32)
    numbers[: len(UGLY)] = torch.tensor(UGLY[:count])
    return numbers


def small_range(count: int, seed: int, low: int = -16, high: int = 12) -> torch.Tensor:
    """Numbers of the magnitudes that eight bits can hold, and of those next to them."""
    generator = torch.Generator().manual_seed(seed)
    exponent = torch.randint(low, high, (count,), generator=generator)
    return torch.ldexp(torch.rand(count, generator=generator) * 2 - 1, exponent)


def ties(dtype: torch.dtype) -> torch.Tensor:
    """Half way between each two neighbours of an eight-bit format, and a hair to either side."""
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype).float()
    numbers = codes[codes.isfinite()].sort().values.double()
    middles = ((numbers[1:] + numbers[:-1]) / 2).float()
    up, down = torch.tensor(float("inf")), torch.tensor(float("-inf"))
    return torch.cat([middles, torch.nextafter(middles, up), torch.nextafter(middles, down), numbers.float()])


UGLY = [
    0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38,
    65504.0, 65519.99, 65520.0, 65536.0, 5.9604645e-08, 2.9802322e-08, 2.98023259e-08, 6.097555e-05, 6.1035156e-05,
    448.0, 449.0, 463.9, 464.0, 464.1, 480.0, 240.0, 247.9, 248.0, 256.0, 2.0**-9, 2.0**-10, 2.0**-11, 1.5 * 2.0**-10,
]  # fmt: skip
