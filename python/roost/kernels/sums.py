"""Checksums of tensors, the same on a GPU as on the CPU."""

from __future__ import annotations

from typing import Any

from roost._roost import host_checksum
from roost.kernels.tensors import check_tensor, device_of, stream_of

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
        ValueError: it is not contiguous, or has no memory as it is (sparse, nested, a conjugated or negated view).
    """
    check_tensor("checksum's tensor", tensor)
    size = tensor.numel() * tensor.element_size()
    kernels = device_of(tensor)
    if kernels is None:
        return host_checksum(tensor.data_ptr(), size)
    return kernels.checksum(tensor.data_ptr(), size, stream_of(tensor))
