"""What a group asks of the library that moves its tensors: gloo, or RCCL, which is NCCL on NVIDIA's GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roost.collectives.suspects import Stage
    from roost.runtime import Runtime

__all__ = ["Backend", "Begun", "Joined", "Library", "Split", "opened"]

Backend = Literal["gloo", "rccl"]


class Begun(Protocol):
    """A call that is under way."""

    def then(self, done: Callable[[BaseException | None], None]) -> None:
        """Have `done` called once, on another thread: with None, or with what went wrong.

        The tensors are the caller's again from then on.
        """
        ...


class Split(Protocol):
    """A library's half of a split: the group of those that give the same colour."""

    said: Any
    """A tensor with a row for each member, once the operation has ended: colour or -1, key, and the library's own."""

    def begin(self) -> Begun:
        """Tell each other."""
        ...

    def part(self) -> Library:
        """The part of those of this member's colour, in the order of their keys; `join` makes it."""
        ...


class Joined(Protocol):
    """One member's end of what a library calls a group.

    `card` and `join` block, on a thread that is not the loop's; an abort ends them, too.
    """

    backend: str
    """What users call the library."""

    def card(self, *, is_first: bool) -> Any:
        """What the others must know of this member before they join."""
        ...

    def join(self, cards: Sequence[Any], rank: int, title: str, timeout_s: float) -> None:
        """Connect with all members, whose cards are in rank order.

        Raises:
            RuntimeError: what the library says.
            OSError: a member is not to be reached.
        """
        ...

    def abort(self, reason: str) -> None:
        """End what it does: whoever waits in it gets an error. From any thread, at once, again and again."""
        ...

    def lagging(self) -> Sequence[int]:
        """Who is seen not to have brought his part of the operation that it is in; nobody where that cannot be seen."""
        ...

    def stage(self) -> Stage | None:
        """How far it is with the operation that it is in; None where that cannot be seen."""
        ...

    def close(self) -> None:
        """Let it go. Blocks until the library's threads have ended."""
        ...


class Library(Joined, Protocol):
    """One that moves tensors: they are contiguous, and so much of their shapes and dtypes as can be seen here has been checked.

    Each operation gives None when it has ended already.
    """

    place: Any
    """The `torch.device` where they lie."""

    def split(self, colour: int | None, key: int) -> Split:
        """Begin to be split."""
        ...

    def all_reduce(self, tensor: Any, op: str) -> Begun | None:
        """In place."""
        ...

    def reduce(self, tensor: Any, target: Any, op: str, root: int) -> Begun | None:
        """To the root's target, which is None at the others; `tensor` stays as it is unless it is the target."""
        ...

    def reduce_scatter(self, tensor: Any, result: Any, op: str) -> Begun | None:
        """This member's part of the reduced."""
        ...

    def all_gather(self, tensor: Any, result: Any) -> Begun | None:
        """Everybody's, in rank order."""
        ...

    def broadcast(self, tensor: Any, root: int) -> Begun | None:
        """In place."""
        ...

    def all_to_all(self, tensor: Any, result: Any) -> Begun | None:
        """A part of everybody's."""
        ...

    def send(self, tensor: Any, peer: int) -> Begun | None:
        """To one other member."""
        ...

    def receive(self, tensor: Any, peer: int) -> Begun | None:
        """From one other member."""
        ...

    def barrier(self) -> Begun | None:
        """Nothing but their coming."""
        ...


def opened(backend: Backend, runtime: Runtime, address: str) -> Library:
    """A library for a group that is to be made, on a thread that is not the loop's.

    Args:
        backend: which.
        runtime: this process's.
        address: the numeric address by which other hosts reach this process.

    Raises:
        Unavailable: it is not there, or has no GPU.
    """
    if backend == "rccl":
        from roost.collectives.rccl import Rccl

        return Rccl(runtime)
    from roost.collectives.over_gloo import OverGloo

    return OverGloo(address)
