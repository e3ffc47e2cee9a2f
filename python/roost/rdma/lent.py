"""Memory of this process, as users hand it in: tensors, arrays, and whatever else lends a buffer.

Neither numpy nor torch is imported here: a value of theirs can only come when they are loaded already.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, NamedTuple

from roost._roost import buffer_address
from roost.errors import Unavailable
from roost.rdma.layout import Layout

__all__ = ["Lent", "is_array", "is_tensor", "lend"]


class Lent(NamedTuple):
    """Memory that its owner keeps where it is while `keep` lives."""

    address: int
    """Of the first element."""
    layout: Layout
    """From that address on: its offset is 0."""
    is_writable: bool
    keep: Any

    def check_contiguous(self, what: str) -> None:
        """Refuse memory with holes.

        Raises:
            ValueError: its elements do not lie one behind the other.
        """
        if not self.layout.is_contiguous:
            raise ValueError(
                f"{what} is not contiguous (shape {self.layout.shape}, strides {self.layout.strides} in bytes): "
                "give a contiguous copy, or read and write it in a Batch, which takes strided memory"
            )

    def check_writable(self, what: str) -> None:
        """Refuse memory that must not be written.

        Raises:
            ValueError: it is read-only.
        """
        if not self.is_writable:
            raise ValueError(f"{what} is read-only: give memory that may be written")

    def check_size(self, what: str) -> None:
        """Refuse memory without a byte.

        Raises:
            ValueError: it is empty.
        """
        if not self.layout.size:
            raise ValueError(f"{what} has no bytes: nothing can be read or written there")


def is_tensor(value: object) -> bool:
    """Whether it is one of torch's."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_array(value: object) -> bool:
    """Whether it is one of numpy's; numbers of numpy's are none."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, "ndarray", ()))


def lend(value: Any, what: str) -> Lent:
    """Where the memory of a value lies.

    Args:
        value: a tensor, an array, or an object with the buffer protocol.
        what: what it is to the caller, for people.

    Raises:
        TypeError: it has no memory to lend.
        ValueError: what it has is of no use here: objects, sparse, on no device, freed.
        Unavailable: it lies on a device that this build does not reach.
    """
    if is_tensor(value):
        return _of_tensor(value, what)
    if is_array(value):
        return _of_array(value, what)
    if hasattr(value, "__cuda_array_interface__"):
        raise Unavailable(
            f"{what} lies in the memory of a GPU, which roost.rdma does not reach yet: copy it to the host"
        )
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(
            f"{what} must be a tensor, an array or a buffer such as a memoryview, not {type(value).__name__}"
        ) from None
    strides = view.strides or ()
    layout = Layout(0, view.shape or (), strides, view.itemsize, _FORMATS.get(view.format, ""))
    return Lent(buffer_address(view), layout, not view.readonly, view)


# What the struct module calls what numpy and torch call otherwise; "B" and "c" are bytes, of anything.
_FORMATS = {
    "b": "int8", "h": "int16", "i": "int32", "l": "int64", "q": "int64", "H": "uint16", "I": "uint32", "L": "uint64",
    "Q": "uint64", "e": "float16", "f": "float32", "d": "float64", "?": "bool",
}  # fmt: skip


def _of_array(array: Any, what: str) -> Lent:
    if array.dtype.hasobject:
        raise ValueError(f"{what} is an array of Python objects (dtype {array.dtype}), which lie elsewhere")
    dtype = _name_of(array.dtype)
    layout = Layout(0, tuple(array.shape), tuple(array.strides), array.itemsize, dtype)
    return Lent(array.__array_interface__["data"][0], layout, array.flags.writeable, array)


@lru_cache(maxsize=64)
def _name_of(dtype: Any) -> str:
    # numpy makes it up anew each time, which takes as long as the rest of what is done here.
    name: str = dtype.name if dtype.isnative else dtype.str
    return name


def _of_tensor(tensor: Any, what: str) -> Lent:
    torch: Any = sys.modules["torch"]
    kind = tensor.device.type
    if kind == "meta":
        raise ValueError(f"{what} is on the device 'meta', where tensors have no memory")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise ValueError(f"{what} is sparse, quantized or nested: give tensors of plain memory, one by one")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"{what} is a conjugated or negated view of its memory: give tensor.resolve_conj().resolve_neg()"
        )
    if kind != "cpu":
        raise Unavailable(
            f"{what} is on the device {tensor.device}, which roost.rdma does not reach yet: give tensor.cpu()"
        )
    item = tensor.element_size()
    strides = tuple(stride * item for stride in tensor.stride())
    dtype = str(tensor.dtype).removeprefix("torch.")
    layout = Layout(0, tuple(tensor.size()), strides, item, dtype)
    address = _address(tensor, layout, what)
    return Lent(address, layout, is_writable=True, keep=tensor)


def _address(tensor: Any, layout: Layout, what: str) -> int:
    if not layout.size:
        return 0
    try:
        address: int = tensor.data_ptr()
        there = tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{what} ({type(tensor).__name__}) has no memory of its own: {error}") from None
    end = tensor.storage_offset() * layout.item_bytes + layout.extent[1]
    if not address or there < end:
        raise ValueError(f"the storage of {what} was freed: it has {there} bytes, and the tensor needs {end}")
    return address
