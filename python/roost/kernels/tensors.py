"""What the kernels ask of tensors, and where they run."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from roost import gpus, libraries

if TYPE_CHECKING:
    from roost._roost import DeviceKernels

__all__ = [
    "check_dtype", "check_formats", "check_numbers", "check_same_place", "check_tensor", "device_of", "format_of", "on_device",
    "stream_of",
]  # fmt: skip


def format_of(tensor: Any) -> str | None:
    """What the kernels call a tensor's numbers: "f32", "bf16", "f16"; None for what they know only as bytes."""
    torch = libraries.torch()
    found: str | None = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}.get(tensor.dtype)
    return found


def check_tensor(what: str, tensor: Any) -> None:
    """Refuse what is no tensor whose elements lie in memory one behind the other, as they are.

    Raises:
        TypeError: it is no tensor.
        ValueError: it is sparse or nested, not contiguous, or a conjugated or negated view.
    """
    torch = libraries.torch()
    if not isinstance(tensor, torch.Tensor):
        advice = ": give torch.from_numpy() of it" if type(tensor).__module__ == "numpy" else ""
        raise TypeError(f"{what} is of the type {type(tensor).__name__}, not a tensor{advice}")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ValueError(f"{what} is sparse or nested: give tensors of plain memory, as .to_dense() makes")
    if not tensor.is_contiguous():
        raise ValueError(f"{what} is not contiguous: give its .contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"{what} is a conjugated or negated view of its memory: give its .resolve_conj().resolve_neg()"
        )


def check_numbers(what: str, tensor: Any, *, only_f32: bool = False) -> str:
    """The format of a tensor that has to be contiguous and of numbers that the kernels know.

    Raises:
        TypeError: it is no tensor, or of another dtype.
        ValueError: as `check_tensor`.
    """
    check_tensor(what, tensor)
    name = format_of(tensor)
    if name is None or (only_f32 and name != "f32"):
        known = "torch.float32" if only_f32 else "torch.float32, torch.bfloat16 or torch.float16"
        raise TypeError(f"{what} is of {tensor.dtype}; convert it to {known} first")
    return name


def check_dtype(owner: str, dtype: Any) -> None:
    """Refuse a dtype that is none; None leaves it to us.

    Raises:
        TypeError: it is something else.
    """
    if dtype is not None and not isinstance(dtype, libraries.torch().dtype):
        raise TypeError(f"{owner} dtype={dtype!r} is no dtype: give one of torch's, such as torch.bfloat16")


def check_formats(what: str, first: str, second: str) -> None:
    """Refuse what the kernels do not convert: one half into the other.

    Raises:
        TypeError: it is so.
    """
    if {first, second} == {"bf16", "f16"}:
        raise TypeError(f"{what}: torch.bfloat16 and torch.float16 do not become each other; convert to torch.float32")


def check_same_place(**tensors: Any) -> None:
    """Refuse tensors of different devices.

    Raises:
        ValueError: they are not all on one.
    """
    places = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(places.values())) > 1:
        said = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise ValueError(f"all tensors have to be on one device: {said}")


def device_of(tensor: Any) -> DeviceKernels | None:
    """The kernels of a tensor's GPU; None for one on the CPU.

    Raises:
        Unavailable: no kernel was compiled for that GPU.
        ValueError: it is neither on a GPU nor on the CPU.
    """
    place = tensor.device
    if place.type == "cpu":
        return None
    if place.type != "cuda":
        raise ValueError(f"there are no kernels for tensors on {place}: only for those on a GPU or the CPU")
    return _kernels(place.index)


@functools.cache
def _kernels(number: int) -> DeviceKernels:
    from roost._roost import DeviceKernels

    return DeviceKernels(gpus.wanted(), number)


def on_device(tensor: Any) -> tuple[int, str]:
    """A tensor's address and format, as the extension takes them."""
    return tensor.data_ptr(), format_of(tensor) or "bytes"


def stream_of(tensor: Any) -> int:
    """Torch's current stream on a tensor's GPU."""
    return int(libraries.torch().cuda.current_stream(tensor.device).cuda_stream)
