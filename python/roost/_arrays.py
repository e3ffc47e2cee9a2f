"""Arrays and tensors: their memory leaves the pickle, and what arrives is writable.

Neither numpy nor torch is imported here: a value of theirs can only come when they are loaded already.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OUT_OF_BAND_BYTES_MIN", "Storages", "rule"]

OUT_OF_BAND_BYTES_MIN = 32 * 1024
"""From this size on a buffer is a part of its own; smaller ones cost less inside the pickle (measured)."""

_ALIGNMENT = 64  # of a range cut out of a storage: every item size divides it


def rule(kind: type) -> Callable[[Any, Any], Any] | None:
    """How values of a type are reduced, when it is an array or tensor."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and kind is getattr(numpy, "ndarray", None):
        return _reduce_array
    # While torch is being imported by another thread it may be there without its classes.
    if torch is not None and hasattr(torch, "Tensor"):
        if kind is torch.Tensor:
            return _reduce_tensor
        if kind is torch.nn.Parameter:
            return _reduce_parameter
    return _reduce_storage if kind is _Storage else None


def _load(module: str) -> Any:
    return importlib.import_module(module)


# ---- numpy


def _reduce_array(_collector: Any, array: Any) -> Any:
    flags = array.flags
    large = array.nbytes >= OUT_OF_BAND_BYTES_MIN
    if (not large and flags.writeable) or array.dtype.hasobject:
        return NotImplemented
    if not (flags.c_contiguous or flags.f_contiguous) or (not large and not flags.writeable):
        array = array.copy(order="C")
    order = "C" if array.flags.c_contiguous else "F"
    flat = array.reshape(-1, order=order)
    # Seen as bytes: numpy lends no buffer of dates, and no writable one of an array that is only read here.
    lent = flat.view("u1") if array.flags.writeable else _writable(array.ctypes.data, array.nbytes, array)
    return rebuild_array, (pickle.PickleBuffer(lent), array.dtype, array.shape, order)


def rebuild_array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    """An array over a part."""
    return _load("numpy").frombuffer(buffer, dtype).reshape(shape, order=order)


def _writable(address: int, size: int, owner: Any) -> Any:
    """A buffer over memory that is only read, which pickle takes for writable, so that what arrives is."""
    ctypes: Any = importlib.import_module("ctypes")
    lent = (ctypes.c_char * size).from_address(address)
    lent.owner = owner
    return lent


# ---- torch


class _Range:
    """The bytes of a storage that its tensors use."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class _Storage:
    """A storage as it is pickled: once, however many tensors look at it."""

    __slots__ = ("range", "storage", "used")

    def __init__(self, storage: Any, this: _Range | None) -> None:
        self.storage = storage
        self.range = this
        self.used = this or _Range(sys.maxsize, 0)


class Storages:
    """The torch storages that one pickle names, and which part of each is used.

    A tensor that is a small view of a large storage brings only the part that the tensors of the same pickle look at.
    Which that is, is known at the end: the pickle is then made once more, from `narrowed()`.
    """

    def __init__(self, known: dict[int, _Storage] | None = None) -> None:
        self._known = known
        self._found: dict[int, _Storage] = {}

    def find(self, tensor: Any) -> _Storage:
        """The storage of a tensor."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # the address of torch's own object: storages have no other identity
        found = self._found.get(key)
        used = _extent(tensor)
        if found is None:
            size = storage.nbytes()
            whole: _Range | None = _Range(0, size)
            if self._known is not None:
                whole = self._known[key].used if key in self._known else whole
            elif size >= OUT_OF_BAND_BYTES_MIN and used.end - used.start < size:
                whole = None
            found = self._found[key] = _Storage(storage, whole)
        if found.range is None:
            found.used = _Range(min(found.used.start, used.start), max(found.used.end, used.end))
        return found

    def is_partial(self) -> bool:
        """Whether the range of some storage had to be left open."""
        return any(storage.range is None for storage in self._found.values())

    def narrowed(self) -> Storages:
        """For pickling once more: each range is known. The storages are kept alive, so that addresses stay theirs."""
        return Storages(self._found)


def _extent(tensor: Any) -> _Range:
    item = tensor.element_size()
    start = tensor.storage_offset() * item
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    start -= start % _ALIGNMENT
    return _Range(start, (tensor.storage_offset() + last + 1) * item)


def _reduce_tensor(collector: Any, tensor: Any) -> Any:
    if not _is_plain(tensor):
        return NotImplemented
    return rebuild_tensor, _tensor_args(collector, tensor)


def _reduce_parameter(collector: Any, parameter: Any) -> Any:
    if not _is_plain(parameter):
        return NotImplemented
    return rebuild_parameter, _tensor_args(collector, parameter)


def _is_plain(tensor: Any) -> bool:
    torch = _load("torch")
    return (
        tensor.layout is torch.strided
        and tensor.device.type not in ("meta", "xla")
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and not tensor.__dict__
        and not tensor._backward_hooks
    )


def _tensor_args(collector: Any, tensor: Any) -> tuple[Any, ...]:
    size, stride = tuple(tensor.size()), tensor.stride()
    if tensor.numel() == 0:
        return tensor.device.type, tensor.dtype, 0, size, stride, tensor.requires_grad
    if collector.storages is None:
        collector.storages = Storages()
    storage = collector.storages.find(tensor)
    start = storage.range.start if storage.range is not None else 0
    offset = tensor.storage_offset() - start // tensor.element_size()
    return storage, tensor.dtype, offset, size, stride, tensor.requires_grad


def _reduce_storage(_collector: Any, pickled: _Storage) -> Any:
    torch = _load("torch")
    storage, this = pickled.storage, pickled.range
    if this is None:  # it will be pickled again
        return rebuild_storage, (b"", "cpu")
    size = this.end - this.start
    memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, this.start, (size,), (1,))
    memory = memory.cpu()
    lent = memory.numpy() if "numpy" in sys.modules else _writable(memory.data_ptr(), size, memory)
    return rebuild_storage, (pickle.PickleBuffer(lent), storage.device.type)


def rebuild_storage(buffer: Any, device: str) -> Any:
    """A storage over a part, or a copy of it on the device that it came from."""
    torch = _load("torch")
    memory = torch.frombuffer(buffer, dtype=torch.uint8)
    return (memory if device == "cpu" else memory.to(_present(device))).untyped_storage()


def _present(device: str) -> str:
    torch = _load("torch")
    module = getattr(torch, device, None)
    if module is None or not module.is_available():
        raise RuntimeError(f"a tensor came from a {device} device, and this process sees none: send tensor.cpu()")
    return device


def rebuild_tensor(*args: Any) -> Any:
    """A tensor that looks at a storage; without elements, only the name of its device came."""
    storage, dtype, offset, size, stride, requires_grad = args
    torch = _load("torch")
    if isinstance(storage, str):
        made = torch.empty_strided(size, stride, dtype=dtype, device="cpu" if storage == "cpu" else _present(storage))
    else:
        made = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)
    return made.requires_grad_() if requires_grad else made


def rebuild_parameter(*args: Any) -> Any:
    """A parameter over a storage."""
    *rest, requires_grad = args
    return _load("torch").nn.Parameter(rebuild_tensor(*rest, False), requires_grad)
