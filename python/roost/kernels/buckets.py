"""Many tensors into one bucket, and out of it again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from roost import libraries
from roost.kernels.tensors import (
    check_dtype,
    check_formats,
    check_same_place,
    check_tensor,
    device_of,
    format_of,
    stream_of,
)
from roost.values import check_finite, check_items

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["pack", "unpack"]


def pack(tensors: Sequence[Any], bucket: Any = None, *, dtype: Any = None, scale: float = 1.0) -> Any:
    """Gather tensors, one behind the other, in a bucket: one collective then does for all.

    Args:
        tensors: contiguous, of one dtype, on one device.
        bucket: where they go: one-dimensional, with room for at least all of them; what is behind them stays as it is. One that
            fits is made when it is left out.
        dtype: of a bucket that is made: torch.float32, and for tensors of that torch.bfloat16 or torch.float16; the tensors' own
            when it is left out.
        scale: what every number is multiplied by, in torch.float32, on its way.

    Returns:
        The bucket.

    Raises:
        TypeError: no tensors, dtypes that are not converted, or a scale for what are no numbers.
        ValueError: no tensors and no bucket, several devices, what is not contiguous, too small a bucket, or a scale that is not finite.
    """
    torch = libraries.torch()
    check_dtype("pack's", dtype)
    tensors, elements = _checked("pack's", tensors, scale)
    if bucket is None:
        if not tensors:
            raise ValueError("no tensors and no bucket: nothing says what the bucket is to be")
        bucket = torch.empty(elements, dtype=tensors[0].dtype if dtype is None else dtype, device=tensors[0].device)
    scale = float(scale)
    _check_bucket(tensors, bucket, elements, scale)
    if not elements:
        return bucket
    if not _moved_on_device(tensors, bucket, scale, unpack=False):
        for part, tensor in _parts(tensors, bucket):
            part.copy_(_scaled(tensor.reshape(-1), scale))
    return bucket


def unpack(bucket: Any, tensors: Sequence[Any], *, scale: float = 1.0) -> None:
    """Spread a bucket over tensors, as `pack` has gathered them.

    Args:
        bucket: one-dimensional, at least as long as all tensors are together.
        tensors: contiguous, of one dtype, on the bucket's device; they are overwritten.
        scale: what every number is multiplied by, in torch.float32, on its way: one by the number of replicas, say.

    Raises:
        TypeError: no tensors, dtypes that are not converted, or a scale for what are no numbers.
        ValueError: several devices, what is not contiguous, too small a bucket, or a scale that is not finite.
    """
    tensors, elements = _checked("unpack's", tensors, scale)
    scale = float(scale)
    _check_bucket(tensors, bucket, elements, scale)
    if elements and not _moved_on_device(tensors, bucket, scale, unpack=True):
        with libraries.torch().no_grad():
            for part, tensor in _parts(tensors, bucket):
                tensor.view(-1).copy_(_scaled(part, scale))


def _checked(owner: str, tensors: Sequence[Any], scale: float) -> tuple[tuple[Any, ...], int]:
    """The tensors, and how many elements all have together."""
    check_finite(owner, "scale", scale, least=-math.inf)
    if isinstance(tensors, libraries.torch().Tensor):
        raise TypeError(f"{owner} tensors are a list, and this is one tensor: give [tensor]")
    listed = check_items(owner, "tensors", tensors, "[weight, bias]")
    for number, tensor in enumerate(listed):
        check_tensor(f"tensor {number}", tensor)
        if tensor.dtype != listed[0].dtype:
            raise TypeError(
                f"tensors of one bucket have one dtype: {listed[0].dtype}, and tensor {number} {tensor.dtype}"
            )
        check_same_place(**{"tensor 0": listed[0], f"tensor {number}": tensor})
    return listed, sum(tensor.numel() for tensor in listed)


def _check_bucket(tensors: Sequence[Any], bucket: Any, elements: int, scale: float) -> None:
    check_tensor("the bucket", bucket)
    if bucket.dim() != 1:
        raise ValueError(f"a bucket has one dimension, not the shape {tuple(bucket.shape)}: give bucket.view(-1)")
    if bucket.numel() < elements:
        raise ValueError(f"{elements} elements do not fit a bucket of {bucket.numel()}")
    if not tensors:
        return
    check_same_place(bucket=bucket, tensors=tensors[0])
    ours, theirs = format_of(tensors[0]), format_of(bucket)
    if ours is None or theirs is None:
        if tensors[0].dtype != bucket.dtype:
            raise TypeError(f"{tensors[0].dtype} does not become {bucket.dtype}: a bucket of these has their own dtype")
        if scale != 1.0:
            raise TypeError(
                f"scale={scale!r}: only floats of 16 and 32 bits are multiplied, {bucket.dtype} is moved as it is"
            )
    else:
        check_formats("the bucket", ours, theirs)


def _parts(tensors: Sequence[Any], bucket: Any) -> Iterator[tuple[Any, Any]]:
    """Each tensor, and its part of the bucket."""
    start = 0
    for tensor in tensors:
        yield bucket[start : start + tensor.numel()], tensor
        start += tensor.numel()


def _scaled(numbers: Any, scale: float) -> Any:
    """In float32, as the kernels have it. By one, numbers stay what they are."""
    return numbers if scale == 1.0 else numbers.float() * scale


def _moved_on_device(tensors: Sequence[Any], bucket: Any, scale: float, *, unpack: bool) -> bool:
    kernels = device_of(bucket)
    if kernels is None:
        return False
    # What are no numbers are so many bytes.
    ours, theirs = format_of(tensors[0]), format_of(bucket)
    width = 1 if ours is not None else bucket.element_size()
    pieces = []
    for part, tensor in _parts(tensors, bucket):
        start = (part.data_ptr() - bucket.data_ptr()) // (bucket.element_size() // width)
        pieces.append((tensor.data_ptr(), start, tensor.numel() * width))
    place = bucket.data_ptr(), bucket.numel() * width, theirs or "bytes"
    kernels.pack(pieces, ours or "bytes", place, unpack, scale, stream_of(bucket))
    return True
