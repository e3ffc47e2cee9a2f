"""What the collectives are to gloo: each is checked at once, then begun, and finished on the library's own thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from roost import libraries
from roost.values import check_integer, check_one_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Operation", "Operations", "ReduceOp"]

ReduceOp = Literal["sum", "product", "max", "min", "average"]

_OF_TORCH = {"sum": "SUM", "product": "PRODUCT", "max": "MAX", "min": "MIN", "average": "AVG"}
_REDUCED = ("float32", "float64", "bfloat16", "float16", "int8", "uint8", "int32", "int64")
# One tag for all: messages between two members arrive in the order in which they were sent.
_TAG = 0


@dataclass(slots=True)
class Operation:
    """One that is to be begun."""

    name: str
    begin: Callable[[Any], Any]
    """Given the library's group, its work."""
    finish: Callable[[], Any]
    """Once that is done: what the caller gets."""
    has_future: bool = True
    """Whether the library tells when it is done; else somebody has to wait for it."""
    number: int = 0
    """Its place in the order of the group's operations, from 1; known once it was begun."""


class Operations:
    """The operations of one member.

    Args:
        rank: its place.
        size: how many there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def all_reduce(self, tensor: Any, op: ReduceOp, out: Any) -> Operation:
        """See `Communicator`, as for all of them."""
        options = self._reducing(libraries.distributed().AllreduceOptions(), "all_reduce", tensor, op)
        target = self._target("all_reduce", tensor, out)
        return Operation("all_reduce", lambda group: group.allreduce([target], options), lambda: _given(tensor, out))

    def reduce(self, tensor: Any, root: int, op: ReduceOp, out: Any) -> Operation:
        """To the root."""
        options = self._reducing(libraries.distributed().ReduceOptions(), "reduce", tensor, op)
        options.rootRank = self._member("reduce", "root", root)
        if self._rank == root:
            target = self._target("reduce", tensor, out)
            return Operation("reduce", lambda group: group.reduce([target], options), lambda: _given(tensor, out))
        # gloo makes its sums where it finds the numbers.
        scratch = tensor.detach().clone()
        return Operation("reduce", lambda group: group.reduce([scratch], options), lambda: None)

    def reduce_scatter(self, tensor: Any, op: ReduceOp, out: Any) -> Operation:
        """A part of the sum for each; gloo makes all of it everywhere."""
        options = self._reducing(libraries.distributed().AllreduceOptions(), "reduce_scatter", tensor, op)
        shape = self._share("reduce_scatter", tensor)
        scratch = tensor.detach().clone()
        result = self._room("reduce_scatter", tensor, shape, out)
        first = self._rank * shape[0]

        def finish() -> Any:
            result.detach().copy_(scratch[first : first + shape[0]])
            return result

        return Operation("reduce_scatter", lambda group: group.allreduce([scratch], options), finish)

    def all_gather(self, tensor: Any, out: Any) -> Operation:
        """Everybody's, in rank order."""
        self._check("all_gather", "tensor", tensor)
        # What has no dimension gets one.
        shape = (self._size * tensor.shape[0], *tensor.shape[1:]) if tensor.dim() else (self._size,)
        result = self._room("all_gather", tensor, shape, out)
        source, target = _bytes(tensor), _bytes(result)
        return Operation("all_gather", lambda group: group._allgather_base(target, source), lambda: result)

    def broadcast(self, tensor: Any, root: int, out: Any) -> Operation:
        """The root's."""
        options = libraries.distributed().BroadcastOptions()
        options.rootRank = self._member("broadcast", "root", root)
        self._check("broadcast", "tensor", tensor)
        target = _bytes(self._target("broadcast", tensor, out))
        return Operation("broadcast", lambda group: group.broadcast([target], options), lambda: _given(tensor, out))

    def all_to_all(self, tensor: Any, out: Any) -> Operation:
        """A part of everybody's."""
        self._check("all_to_all", "tensor", tensor)
        self._share("all_to_all", tensor)
        result = self._room("all_to_all", tensor, tuple(tensor.shape), out)
        source, target = _bytes(tensor), _bytes(result)
        return Operation("all_to_all", lambda group: group.alltoall_base(target, source, [], []), lambda: result)

    def send(self, tensor: Any, to: int) -> Operation:
        """To one other."""
        source = _bytes(self._check("send", "tensor", tensor))
        peer = self._other("send", "to", to)
        return Operation("send", lambda group: group.send([source], peer, _TAG), lambda: None, has_future=False)

    def receive(self, tensor: Any, source: int) -> Operation:
        """From one other."""
        target = _bytes(self._check("receive", "tensor", tensor))
        peer = self._other("receive", "source", source)
        return Operation("receive", lambda group: group.recv([target], peer, _TAG), lambda: tensor, has_future=False)

    def barrier(self) -> Operation:
        """Nothing but their coming."""
        return Operation("barrier", lambda group: group.barrier(), lambda: None)

    # What is checked before anything begins, since the others would wait ------------------------------------------------
    def _reducing(self, options: Any, name: str, tensor: Any, op: str) -> Any:
        self._check(name, "tensor", tensor)
        check_one_of(f"{name}'s", "op", op, get_args(ReduceOp))
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in _REDUCED:
            advice = (
                "; roost.kernels.dequantise() makes numbers of eight-bit codes" if kind.startswith("float8") else ""
            )
            raise TypeError(f"{name}: {tensor.dtype} cannot be reduced, only {', '.join(_REDUCED)}{advice}")
        if op == "average" and not tensor.is_floating_point():
            raise TypeError(f"{name}: the average of whole numbers ({tensor.dtype}) is none; take op='sum'")
        options.reduceOp = getattr(libraries.distributed().ReduceOp, _OF_TORCH[op])
        return options

    def _check(self, name: str, what: str, tensor: Any) -> Any:
        if not isinstance(tensor, libraries.torch().Tensor):
            raise TypeError(f"{name}: {what} is a {type(tensor).__name__}, not a tensor")
        if tensor.device.type != "cpu":
            raise ValueError(f"{name}: {what} is on {tensor.device}; this communicator moves tensors on the CPU")
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


def _bytes(tensor: Any) -> Any:
    """What is only moved is so many bytes: gloo does not know every dtype."""
    return tensor.detach().reshape(-1).view(libraries.torch().uint8)
