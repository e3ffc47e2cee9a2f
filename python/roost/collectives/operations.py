"""What the collectives are to the group: each is checked at once, before anybody waits for it, then begun in the library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from roost import libraries
from roost.values import check_integer, check_one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.collectives.library import Begun, Library

__all__ = ["Alike", "Between", "Operation", "Operations", "ReduceOp", "described"]

ReduceOp = Literal["sum", "product", "max", "min", "average"]

Between = tuple[int, ...]
"""Whose operations are counted together: those of all members without a rank, messages by the ranks of their sender and receiver."""
Alike = tuple[Any, int, str]
"""What an operation is on, alike at all its members: a dtype, how many elements, and words for the rest."""

_OPS = get_args(ReduceOp)
_WORDS = {op: f" ({op})" for op in _OPS}
_REDUCED = ("float32", "float64", "bfloat16", "float16", "int8", "uint8", "int32", "int64")


@dataclass(slots=True)
class Operation:
    """One that is to be begun."""

    name: str
    begin: Callable[[], Begun | None]
    """In the order of the group's operations; gives None when it has ended already."""
    result: Any = None
    """What the caller gets, once it is done."""
    alike: Alike | None = None
    between: Between = ()
    number: int = 0
    """Its place among those that it is counted with, from 1; known once it was begun."""


def described(name: str, alike: Alike | None) -> str:
    """For people."""
    if alike is None:
        return name
    dtype, count, words = alike
    return f"{name} of {count} {str(dtype).removeprefix('torch.')}{words}"


class Operations:
    """The operations of one member.

    Args:
        library: what moves its tensors.
        rank: its place.
        size: how many there are.
    """

    def __init__(self, library: Library, rank: int, size: int) -> None:
        self._library = library
        self._place = library.place
        self._rank = rank
        self._size = size
        # Looked up once: a small operation takes some 100 us in all.
        torch = libraries.torch()
        self._tensor = torch.Tensor
        self._strided = torch.strided
        self._reduced = {getattr(torch, name) for name in _REDUCED}

    def all_reduce(self, tensor: Any, op: ReduceOp, out: Any) -> Operation:
        """See `Communicator`, as for all of them."""
        self._check_reduced("all_reduce", tensor, op)
        target = self._target("all_reduce", tensor, out)
        alike = tensor.dtype, tensor.numel(), _WORDS[op]
        return Operation("all_reduce", lambda: self._library.all_reduce(target, op), _given(tensor, out), alike)

    def reduce(self, tensor: Any, root: int, op: ReduceOp, out: Any) -> Operation:
        """To the root."""
        self._check_reduced("reduce", tensor, op)
        is_root = self._member("reduce", "root", root) == self._rank
        target = self._target("reduce", tensor, out) if is_root else None
        source = tensor.detach()
        result = _given(tensor, out) if is_root else None
        alike = tensor.dtype, tensor.numel(), f"{_WORDS[op]} to rank {root}"
        return Operation("reduce", lambda: self._library.reduce(source, target, op, root), result, alike)

    def reduce_scatter(self, tensor: Any, op: ReduceOp, out: Any) -> Operation:
        """A part of what is reduced for each."""
        self._check_reduced("reduce_scatter", tensor, op)
        result = self._room("reduce_scatter", tensor, self._share("reduce_scatter", tensor), out)
        source, target = tensor.detach(), result.detach()
        alike = tensor.dtype, tensor.numel(), _WORDS[op]
        return Operation("reduce_scatter", lambda: self._library.reduce_scatter(source, target, op), result, alike)

    def all_gather(self, tensor: Any, out: Any) -> Operation:
        """Everybody's, in rank order."""
        self._check("all_gather", "tensor", tensor)
        # What has no dimension gets one.
        shape = (self._size * tensor.shape[0], *tensor.shape[1:]) if tensor.dim() else (self._size,)
        result = self._room("all_gather", tensor, shape, out)
        source, target = tensor.detach(), result.detach()
        alike = tensor.dtype, tensor.numel(), ""
        return Operation("all_gather", lambda: self._library.all_gather(source, target), result, alike)

    def broadcast(self, tensor: Any, root: int, out: Any) -> Operation:
        """The root's."""
        self._member("broadcast", "root", root)
        self._check("broadcast", "tensor", tensor)
        target = self._target("broadcast", tensor, out)
        alike = tensor.dtype, tensor.numel(), f" from rank {root}"
        return Operation("broadcast", lambda: self._library.broadcast(target, root), _given(tensor, out), alike)

    def all_to_all(self, tensor: Any, out: Any) -> Operation:
        """A part of everybody's."""
        self._check("all_to_all", "tensor", tensor)
        self._share("all_to_all", tensor)
        result = self._room("all_to_all", tensor, tuple(tensor.shape), out)
        source, target = tensor.detach(), result.detach()
        if out is not None and _share_memory(source, target):
            raise ValueError("all_to_all: out lies in the memory of tensor; give room of its own")
        alike = tensor.dtype, tensor.numel(), ""
        return Operation("all_to_all", lambda: self._library.all_to_all(source, target), result, alike)

    def send(self, tensor: Any, to: int) -> Operation:
        """To one other."""
        source = self._check("send", "tensor", tensor).detach()
        peer = self._other("send", "to", to)
        alike = tensor.dtype, tensor.numel(), ""
        return Operation("send", lambda: self._library.send(source, peer), None, alike, (self._rank, peer))

    def receive(self, tensor: Any, source: int) -> Operation:
        """From one other."""
        target = self._check("receive", "tensor", tensor).detach()
        peer = self._other("receive", "source", source)
        alike = tensor.dtype, tensor.numel(), ""
        return Operation("receive", lambda: self._library.receive(target, peer), tensor, alike, (peer, self._rank))

    def barrier(self) -> Operation:
        """Nothing but their coming."""
        return Operation("barrier", self._library.barrier)

    # What is checked before anything begins, since the others would wait ------------------------------------------------
    def _check_reduced(self, name: str, tensor: Any, op: str) -> None:
        self._check(name, "tensor", tensor)
        check_one_of(f"{name}'s", "op", op, _OPS)
        if tensor.dtype not in self._reduced:
            is_codes = "float8" in str(tensor.dtype)
            advice = "; roost.kernels.dequantise() makes numbers of eight-bit codes" if is_codes else ""
            raise TypeError(f"{name}: {tensor.dtype} cannot be reduced, only {', '.join(_REDUCED)}{advice}")
        if op == "average" and not tensor.is_floating_point():
            raise TypeError(f"{name}: the average of whole numbers ({tensor.dtype}) is none; take op='sum'")

    def _check(self, name: str, what: str, tensor: Any) -> Any:
        if not isinstance(tensor, self._tensor):
            raise TypeError(f"{name}: {what} is of the type {type(tensor).__name__}, not a tensor")
        if tensor.device != self._place:
            other = '; communicator(backend="rccl") moves those on a GPU' if tensor.is_cuda else ""
            raise ValueError(
                f"{name}: {what} is on {tensor.device}, and this communicator's are on {self._place}{other}"
            )
        if tensor.layout is not self._strided or tensor.is_nested:
            raise ValueError(f"{name}: {what} is sparse or nested; give tensors of plain memory, as .to_dense() makes")
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: {what} is not contiguous; give {what}.contiguous()")
        if tensor.is_conj() or tensor.is_neg():
            raise ValueError(
                f"{name}: {what} is a conjugated or negated view of its memory; give {what}.resolve_conj().resolve_neg()"
            )
        if not tensor.data_ptr() and tensor.numel():
            raise ValueError(f"{name}: the memory of {what} was freed, as FSDP does between its uses")
        return tensor

    def _target(self, name: str, tensor: Any, out: Any) -> Any:
        """Where an operation in place works: the tensor itself, or a copy of it in `out`."""
        if out is None:
            return tensor.detach()
        self._room(name, tensor, tuple(tensor.shape), out)
        return out.detach().copy_(tensor)

    def _room(self, name: str, tensor: Any, shape: tuple[int, ...], out: Any) -> Any:
        """Room for a result."""
        if out is None:
            return tensor.new_empty(shape)
        self._check(name, "out", out)
        if tuple(out.shape) != shape or out.dtype != tensor.dtype:
            raise ValueError(
                f"{name}: out is {out.dtype} of shape {tuple(out.shape)}, and the result {tensor.dtype} of shape {shape}"
            )
        return out

    def _share(self, name: str, tensor: Any) -> tuple[int, ...]:
        """The shape of one member's part."""
        if not tensor.dim() or tensor.shape[0] % self._size:
            raise ValueError(
                f"{name}: the first dimension of shape {tuple(tensor.shape)} is not a multiple of {self._size} ranks"
            )
        return (tensor.shape[0] // self._size, *tensor.shape[1:])

    def _member(self, name: str, what: str, rank: int) -> int:
        check_integer(name, what, rank, least=0)
        if rank >= self._size:
            raise ValueError(f"{name}: {what}={rank} is none of the {self._size} ranks")
        return rank

    def _other(self, name: str, what: str, rank: int) -> int:
        if self._member(name, what, rank) == self._rank:
            raise ValueError(f"{name}: {what}={rank} is this rank itself")
        return rank


def _share_memory(one: Any, other: Any) -> bool:
    """Whether two contiguous tensors do."""
    first, second = sorted([(one.data_ptr(), one.nbytes), (other.data_ptr(), other.nbytes)])
    return bool(first[1] and second[1]) and first[0] + first[1] > second[0]


def _given(tensor: Any, out: Any) -> Any:
    return tensor if out is None else out
