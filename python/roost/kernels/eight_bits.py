"""Rows of numbers as eight-bit codes with one scale a row. What the codes mean travels with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roost import libraries
from roost.kernels.tensors import check_dtype, check_numbers, check_same_place, check_tensor, device_of, stream_of
from roost.values import check_one_of

__all__ = ["Quantised", "dequantise", "quantise"]

_FORMATS = ("ocp", "fnuz")
# The smallest normal number of float32: the inverse of a scale is finite.
_SCALE_LEAST = 2.0**-126


@dataclass(frozen=True, slots=True)
class Quantised:
    """Numbers in eight bits each: a message like any other value.

    Args:
        codes: torch.uint8, in the numbers' own shape.
        scales: torch.float32, one a row: what the codes of that row are multiplied by.
        format: "ocp" is E4M3 with values up to 448, as most hardware reads it; "fnuz" is E4M3 FNUZ with values up to 240, as the
            matrix units of gfx942 (MI300X) read it.
    """

    codes: Any
    scales: Any
    format: str


def quantise(numbers: Any, *, format: str = "ocp") -> Quantised:  # noqa: A002 - what it is called in `Quantised`
    """Rows of numbers in eight bits each.

    The largest finite number of a row becomes the largest code. Rounding is to the nearest, ties to even; infinity and NaN become
    NaN, so that a gradient that has burst is still seen at the other end.

    Args:
        numbers: contiguous, torch.float32, bfloat16 or float16; rows are along the last dimension.
        format: "ocp" or "fnuz": see `Quantised`.

    Raises:
        TypeError: another dtype.
        ValueError: not contiguous, a number without dimensions, or another format.
    """
    torch = libraries.torch()
    name = check_numbers("numbers", numbers)
    check_one_of("quantise's", "format", format, _FORMATS)
    if not numbers.dim():
        raise ValueError("numbers without a dimension have no rows: give numbers.reshape(1)")
    rows, columns = _rows(numbers)
    kernels = device_of(numbers)
    if kernels is None:
        codes, scales = _quantised(numbers.reshape(rows, columns), _dtype(format))
        return Quantised(codes.reshape(numbers.shape), scales, format)
    codes = torch.empty_like(numbers, dtype=torch.uint8)
    scales = torch.ones(rows, dtype=torch.float32, device=numbers.device)
    if codes.numel():
        place = numbers.data_ptr(), name, rows, columns, columns
        kernels.quantise(place, (codes.data_ptr(), format), scales.data_ptr(), False, stream_of(numbers))
    return Quantised(codes, scales, format)


def dequantise(quantised: Quantised, out: Any = None, *, dtype: Any = None) -> Any:
    """The numbers again, each to the nearest that its dtype has.

    Args:
        quantised: what `quantise` gave, here or at another end.
        out: where they go: contiguous, in the shape of the codes. Made when it is left out.
        dtype: of what is made; torch.float32 when left out.

    Returns:
        The numbers.

    Raises:
        TypeError: another dtype, or something else than `quantise` gave.
        ValueError: shapes or devices that do not belong together, or a format that is not known.
    """
    torch = libraries.torch()
    codes, scales = _codes_and_scales(quantised)
    check_dtype("dequantise's", dtype)
    if out is None:
        out = torch.empty(codes.shape, dtype=torch.float32 if dtype is None else dtype, device=codes.device)
    name = check_numbers("out", out)
    check_same_place(codes=codes, scales=scales, out=out)
    rows, columns = _rows(codes)
    if out.shape != codes.shape or scales.numel() != rows:
        raise ValueError(
            f"codes of shape {tuple(codes.shape)} with {scales.numel()} scales do not fit out, of shape {tuple(out.shape)}"
        )
    kernels = device_of(out)
    if kernels is None:
        numbers = codes.reshape(rows, columns).view(_dtype(quantised.format)).float()
        with torch.no_grad():
            out.view(rows, columns).copy_(numbers * scales.reshape(rows, 1))
    elif codes.numel():
        place = out.data_ptr(), name, rows, columns, columns
        kernels.quantise(place, (codes.data_ptr(), quantised.format), scales.data_ptr(), True, stream_of(out))
    return out


def _codes_and_scales(quantised: object) -> tuple[Any, Any]:
    """What it is made of, which somebody else may have put together."""
    torch = libraries.torch()
    if not isinstance(quantised, Quantised):
        raise TypeError(
            f"dequantise: {type(quantised).__name__} is not what quantise() gives: codes of your own go into "
            "Quantised(codes, scales, format)"
        )
    check_one_of("dequantise's", "format", quantised.format, _FORMATS)
    for name, tensor, dtype in (("codes", quantised.codes, torch.uint8), ("scales", quantised.scales, torch.float32)):
        check_tensor(name, tensor)
        if tensor.dtype != dtype:
            raise TypeError(f"{name} is of {tensor.dtype}, and those of a Quantised are of {dtype}")
    if not quantised.codes.dim():
        raise ValueError("codes without a dimension have no rows: give codes.reshape(1)")
    return quantised.codes, quantised.scales


def _rows(tensor: Any) -> tuple[int, int]:
    """How many rows there are, and how long each is."""
    columns = tensor.shape[-1]
    return tensor.shape[:-1].numel(), columns


def _dtype(format: str) -> Any:  # noqa: A002
    torch = libraries.torch()
    return torch.float8_e4m3fn if format == "ocp" else torch.float8_e4m3fnuz


def _quantised(numbers: Any, dtype: Any) -> tuple[Any, Any]:
    """Codes and scales by torch's own conversion."""
    torch = libraries.torch()
    most = torch.finfo(dtype).max
    wide = numbers.detach().float()
    finite = torch.where(wide.isfinite(), wide.abs(), 0.0)
    largest = finite.amax(1) if wide.shape[1] else torch.zeros(wide.shape[0])
    scales = torch.where(largest == 0, 1.0, (largest / most).clamp(min=_SCALE_LEAST))
    scaled = wide * (1.0 / scales)[:, None]
    # Finite numbers beyond the largest become the largest. What is none is NaN, of which one format has two; torch knows one.
    codes = torch.where(scaled.isfinite(), scaled.clamp(-most, most), torch.nan).to(dtype).view(torch.uint8)
    if dtype == torch.float8_e4m3fn:
        codes |= (~scaled.isfinite() & wide.signbit()).to(torch.uint8) << 7
    return codes, scales
