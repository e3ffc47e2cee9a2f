"""Checksums of tensors, the same on a GPU as on the CPU."""

from __future__ import annotations

from typing import Any

from roost import libraries
from roost._roost import host_checksum
from roost.kernels.tensors import device_of, stream_of

__all__ = ["checksum"]


def checksum(tensor: Any) -> int:
    """64 bits that change when a bit of the tensor's memory does, or when words change places.

    Made for finding errors of transfers, not for keeping out who wants to deceive. On a GPU it waits for the current stream.

    Args:
        tensor: contiguous, of any dtype.

    Returns:
        From 0 to 2^64 - 1; the same on all machines, which are little-endian.

    Raises:
        TypeError: it is no tensor.
        ValueError: it is not contiguous.
    """
    torch = libraries.torch()
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a {type(tensor).__name__} is no tensor")
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous: give its .contiguous()")
    size = tensor.numel() * tensor.element_size()
    kernels = device_of(tensor)
    if kernels is None:
        return host_checksum(tensor.data_ptr(), size)
    return kernels.checksum(tensor.data_ptr(), size, stream_of(tensor))
