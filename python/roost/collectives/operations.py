"""What the collectives are to the group: each is checked at once, before anybody waits for it, then begun in the library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from roost import libraries
from roost.values import check_integer, check_one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.collectives.library import Begun, Library

__all__ = ["Operation", "Operations", "ReduceOp"]

ReduceOp = Literal["sum", "product", "max", "min", "average"]

_OPS = get_args(ReduceOp)
_REDUCED = ("float32", "float64", "bfloat16", "float16", "int8", "uint8", "int32", "int64")


@dataclass(slots=True)
class Operation:
    """One that is to be begun."""

    name: str
    begin: Callable[[], Begun | None]
    """In the order of the group's operations; gives None when it has ended already."""
    result: Any = None
    """What the caller gets, once it is done."""
    number: int = 0
    """Its place in that order, from 1; known once it was begun."""


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
        self._reduced = {getattr(torch, name) for name in _REDUCED}

    def all_reduce(self, tensor: Any, op: ReduceOp, out: Any) -> Operation:
        """See `Communicator`, as for all of them."""
        self._check_reduced("all_reduce", tensor, op)
        target = self._target("all_reduce", tensor, out)
        return Operation("all_reduce", lambda: self._library.all_reduce(target, op), _given(tensor, out))

    def reduce(self, tensor: Any, root: int, op: ReduceOp, out: Any) -> Operation:
        """To the root."""
        self._check_reduced("reduce", tensor, op)
        is_root = self._member("reduce", "root", root) == self._rank
        target = self._target("reduce", tensor, out) if is_root else None
        source = tensor.detach()
        result = _given(tensor, out) if is_root else None
        return Operation("reduce", lambda: self._library.reduce(source, target, op, root), result)

    def reduce_scatter(self, tensor: Any, op: ReduceOp, out: Any) -> Operation:
        """A part of what is reduced for each."""
        self._check_reduced("reduce_scatter", tensor, op)
        result = self._room("reduce_scatter", tensor, self._share("reduce_scatter", tensor), out)
        source, target = tensor.detach(), result.detach()
        return Operation("reduce_scatter", lambda: self._library.reduce_scatter(source, target, op), result)

    def all_gather(self, tensor: Any, out: Any) -> Operation:
        """Everybody's, in rank order."""
        self._check("all_gather", "tensor", tensor)
        # What has no dimension gets one.
        shape = (self._size * tensor.shape[0], *tensor.shape[1:]) if tensor.dim() else (self._size,)
        result = self._room("all_gather", tensor, shape, out)
        source, target = tensor.detach(), result.detach()
        return Operation("all_gather", lambda: self._library.all_gather(source, target), result)

    def broadcast(self, tensor: Any, root: int, out: Any) -> Operation:
        """The root's."""
        self._member("broadcast", "root", root)
        self._check("broadcast", "tensor", tensor)
        target = self._target("broadcast", tensor, out)
        return Operation("broadcast", lambda: self._library.broadcast(target, root), _given(tensor, out))

    def all_to_all(self, tensor: Any, out: Any) -> Operation:
        """A part of everybody's."""
        self._check("all_to_all", "tensor", tensor)
        self._share("all_to_all", tensor)
        result = self._room("all_to_all", tensor, tuple(tensor.shape), out)
        source, target = tensor.detach(), result.detach()
        return Operation("all_to_all", lambda: self._library.all_to_all(source, target), result)

    def send(self, tensor: Any, to: int) -> Operation:
        """To one other."""
        source = self._check("send", "tensor", tensor).detach()
        peer = self._other("send", "to", to)
        return Operation("send", lambda: self._library.send(source, peer))

    def receive(self, tensor: Any, source: int) -> Operation:
        """From one other."""
        target = self._check("receive", "tensor", tensor).detach()
        peer = self._other("receive", "source", source)
        return Operation("receive", lambda: self._library.receive(target, peer), tensor)

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
            raise TypeError(f"{name}: {what} is a {type(tensor).__name__}, not a tensor")
        if tensor.device != self._place:
            other = '; communicator(backend="rccl") moves those on a GPU' if tensor.is_cuda else ""
            raise ValueError(
                f"{name}: {what} is on {tensor.device}, and this communicator's are on {self._place}{other}"
            )
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: {what} is not contiguous; give {what}.contiguous()")
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


def _given(tensor: Any, out: Any) -> Any:
    return tensor if out is None else out
