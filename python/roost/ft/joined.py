"""`Joined`: small tensors that are summed over the members in one piece. Of many each would cost a round of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roost import libraries

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.ft.group import Pending

__all__ = ["SMALL_BYTES", "Joined"]

SMALL_BYTES = 1 << 20
"""What is larger goes by itself: to copy it costs more than its own round."""
_MOST_BYTES = 25 << 20


class Joined:
    """Tensors of one kind. Their sum begins when one of them is waited for, or when they are enough.

    All members join the same ones, as long as they ask for the same sums and wait for them in one order.

    Args:
        begin: begins to sum a tensor over the members, in place; None where that went wrong.
        wait: waits for such a sum; whether it went well.
    """

    def __init__(self, begin: Callable[[Any], Pending | None], wait: Callable[[Pending], bool]) -> None:
        self._begin, self._wait = begin, wait
        self._tensors: list[Any] = []
        self._nbytes = 0
        self._flat: Any = None
        self._pending: Pending | None = None

    def takes(self, tensor: Any) -> bool:
        """Whether another one can join."""
        if self._flat is not None:
            return False
        return not self._tensors or _kind(tensor) == _kind(self._tensors[0])

    def add(self, tensor: Any) -> None:
        """Have one more summed."""
        self._tensors.append(tensor)
        self._nbytes += tensor.numel() * tensor.element_size()
        if self._nbytes >= _MOST_BYTES:
            self._send()

    def arrive(self) -> None:
        """Wait until all have their sums, or nothing of use; again and again is fine."""
        self._send()
        pending, self._pending = self._pending, None
        if pending is None or not self._wait(pending):
            return
        parts = self._flat.split([one.numel() for one in self._tensors])
        with libraries.torch().no_grad():
            for tensor, part in zip(self._tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def _send(self) -> None:
        if self._flat is None:
            with libraries.torch().no_grad():
                self._flat = libraries.torch().cat([one.reshape(-1) for one in self._tensors])
            self._pending = self._begin(self._flat)


def _kind(tensor: Any) -> tuple[Any, Any]:
    return tensor.dtype, tensor.device
