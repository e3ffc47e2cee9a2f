"""`Rccl`: a group of RCCL, or of NCCL on NVIDIA's GPUs, for tensors on this process's GPU.

The library's calls are made by a thread of the extension's, which has a stream of its own: it waits for what the caller's current stream
has at the time of the call, and tells when the device has done the work.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from roost import gpus, libraries
from roost.collectives.called import Called
from roost.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost._roost import DeviceGroup
    from roost.collectives.suspects import Stage
    from roost.runtime import Runtime

__all__ = ["Rccl"]

# How long letting go of an aborted group may take; a thread waits for it, never the loop.
_CLOSE_WITHIN_S = 5.0

# A call as the extension takes it: verb, addresses read and written, elements, dtype, how they are reduced, root or peer.
_Call = tuple[str, int, int, int, str, str, int]


class Rccl:
    """See `Library`.

    Args:
        runtime: this process's.
        part: where tensors lie, and the extension's group, of what was split off, which has joined.

    Raises:
        Unavailable: there is no GPU, or no library for it.
    """

    backend = "rccl"

    def __init__(self, runtime: Runtime, part: tuple[Any, DeviceGroup] | None = None) -> None:
        self._runtime = runtime
        self.place, self._group = _opened() if part is None else part
        self._joined = part is not None
        self._rank = self._size = 0
        self._lock = threading.Lock()
        # Sends and receives that were begun since the loop's last turn.
        self._messages: list[tuple[_Call, Called]] = []

    def card(self, *, is_first: bool) -> bytes:
        """The id that all join with is made by the first member."""
        return self._group.unique_id() if is_first and not self._joined else b""

    def join(self, cards: Sequence[bytes], rank: int, title: str, timeout_s: float) -> None:
        """With the id of the first member; a part has joined in the split."""
        self._rank, self._size = rank, len(cards)
        if not self._joined:
            self._group.join(cards[0], len(cards), rank, title, timeout_s)
            self._joined = True

    def split(self, colour: int | None, key: int) -> _Split:
        """By the library, in the order of the operations."""
        return _Split(self, colour, key)

    def abort(self, reason: str) -> None:
        """The library's own; its parts end, too."""
        self._group.abort(reason)

    def lagging(self) -> Sequence[int]:
        """The library does not say."""
        return ()

    def stage(self) -> Stage | None:
        """What the thread that makes its calls is at."""
        return self._group.stage()

    def close(self) -> None:
        """The extension's thread ends."""
        self._group.close(_CLOSE_WITHIN_S)

    # Operations ----------------------------------------------------------------------------------------------------------
    def all_reduce(self, tensor: Any, op: str) -> Called:
        """Of numbers."""
        return self._alone("all_reduce", tensor, tensor, tensor.numel(), _kind(tensor), op)

    def reduce(self, tensor: Any, target: Any, op: str, root: int) -> Called:
        """Of numbers."""
        to = tensor if target is None else target
        return self._alone("reduce", to, to, tensor.numel(), _kind(tensor), op, root)

    def reduce_scatter(self, tensor: Any, result: Any, op: str) -> Called:
        """Of numbers."""
        return self._alone("reduce_scatter", tensor, result, result.numel(), _kind(tensor), op)

    def all_gather(self, tensor: Any, result: Any) -> Called:
        """Of bytes."""
        return self._alone("all_gather", tensor, result, tensor.nbytes)

    def broadcast(self, tensor: Any, root: int) -> Called:
        """Of bytes."""
        return self._alone("broadcast", tensor, tensor, tensor.nbytes, peer=root)

    def all_to_all(self, tensor: Any, result: Any) -> Called:
        """Of bytes."""
        return self._alone("all_to_all", tensor, result, tensor.nbytes // self._size)

    def send(self, tensor: Any, peer: int) -> Called:
        """Of bytes."""
        return self._together("send", tensor, peer)

    def receive(self, tensor: Any, peer: int) -> Called:
        """Of bytes."""
        return self._together("receive", tensor, peer)

    def barrier(self) -> Called:
        """The library has none: a sum of one number."""
        return self.all_reduce(libraries.torch().zeros(1, device=self.place), "sum")

    # How they are begun --------------------------------------------------------------------------------------------------
    def _alone(
        self, verb: str, source: Any, target: Any, count: int, kind: str = "uint8", op: str = "", peer: int = 0
    ) -> Called:
        begun = Called(source, target)
        with self._lock:
            self._flush()
            self._group.begin(
                [(verb, source.data_ptr(), target.data_ptr(), count, kind, op, peer)], self._stream(), begun
            )
        return begun

    def _together(self, verb: str, tensor: Any, peer: int) -> Called:
        """Messages that wait for each other have to go as one: those that are begun before the loop's next turn do.

        Off the loop there are no turns: each goes by itself.
        """
        begun = Called(tensor)
        address = tensor.data_ptr()
        call = verb, address, address, tensor.nbytes, "uint8", "", peer
        with self._lock:
            self._messages.append((call, begun))
            if threading.get_ident() != self._runtime.thread:
                self._flush()
            elif len(self._messages) == 1:
                self._runtime.loop.call_soon(self._turn)
        return begun

    def _turn(self) -> None:
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        if not messages:
            return
        all_begun = [begun for _, begun in messages]

        def done(error: str | None) -> None:
            for begun in all_begun:
                begun(error)

        try:
            self._group.begin([call for call, _ in messages], self._stream(), done)
        except RuntimeError as error:
            # Whoever began them has their replies already.
            done(str(error))

    def _stream(self) -> int:
        """What comes after: torch's current stream there."""
        if self.place.type != "cuda":
            return 0
        return int(libraries.torch().cuda.current_stream(self.place).cuda_stream)


class _Split:
    """See `Split`: a row is colour, key."""

    def __init__(self, whole: Rccl, colour: int | None, key: int) -> None:
        self._whole = whole
        self._colour, self._key = colour, key
        torch = libraries.torch()
        self._own = torch.tensor([[-1 if colour is None else colour, key]], device=whole.place)
        self.said = self._own.new_empty((whole._size, 2))
        self._group: DeviceGroup | None = None

    def begin(self) -> Called:
        """Who they are, for the members' names; and then the library's split, which knows their places."""
        begun = Called(self._own, self.said)
        self._whole.all_gather(self._own, self.said)

        def done(error: str | None, group: DeviceGroup | None) -> None:
            self._group = group
            begun(error)

        self._whole._group.split(self._colour, self._key, done)
        return begun

    def part(self) -> Rccl:
        """Made by the library."""
        assert self._group is not None, "the library gives those a part that have a colour"
        return Rccl(self._whole._runtime, (self._whole.place, self._group))


def _opened() -> tuple[Any, DeviceGroup]:
    """Torch's current GPU, and a group that is to be made on it."""
    from roost._roost import DeviceGroup

    torch = libraries.torch()
    if torch.cuda.is_available():
        number = torch.cuda.current_device()
        return torch.device("cuda", number), DeviceGroup(gpus.wanted(), number)
    # It says what is missing.
    DeviceGroup(gpus.wanted(), 0)
    raise Unavailable(
        f"this process has a GPU, and its torch {torch.__version__} sees none: install a torch for ROCm or CUDA"
    )


def _kind(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
