"""Staging: a state is copied once into a buffer that peers read (`reading.py`) while its owner trains on."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from roost import libraries
from roost.ft.manifest import Checksum, Manifest, manifest_of
from roost.rdma import Buffer, empty

__all__ = ["FINAL_ID", "Shelf", "Staged", "Staging", "bytes_of"]


@dataclass(frozen=True, slots=True)
class Staged:
    """A state that lies ready."""

    quorum_id: int
    step: int
    version: int
    """Of the buffer."""
    buffer: Buffer
    manifest: Manifest
    sums: tuple[int, ...]
    """Of each tensor."""
    checksum: str


FINAL_ID = (1 << 63) - 1
"""In place of a quorum's id: the state that training has ended with. No quorum has a greater one."""
# What is copied at once before it is summed up: small enough for a cache.
_CACHED_BYTES = 1 << 20


class Shelf:
    """Where a training thread puts what it has staged, and the companion on the loop takes it from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._staged: Staged | None = None
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def put(self, staged: Staged) -> None:
        """A state is staged; any thread."""
        with self._lock:
            self._staged = staged
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    async def get(self, quorum_id: int, step: int) -> Staged:
        """What is staged for a quorum, when it is.

        Raises:
            LookupError: another quorum's is there by now.
        """
        while True:
            with self._lock:
                staged = self._staged
                if staged is None or (staged.quorum_id, staged.step) < (quorum_id, step):
                    event = asyncio.Event()
                    self._waiting.append((asyncio.get_running_loop(), event))
                else:
                    event = None
            if event is None:
                assert staged is not None
                if (staged.quorum_id, staged.step) != (quorum_id, step):
                    raise LookupError(
                        f"the state of quorum {quorum_id} was asked for, and {staged.quorum_id} is staged"
                    )
                return staged
            await event.wait()


class Staging:
    """Copies states into memory that is registered once, and used again as long as it is large enough.

    Args:
        shelf: where what is staged is found.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._memory: Any = None
        self._buffer: Buffer | None = None
        self._version = 0

    def stage(self, quorum_id: int, step: int, state: dict[str, Any]) -> int:
        """Copy a state; how many bytes it has.

        Raises:
            TypeError: something in it travels in no way.
        """
        manifest, tensors = manifest_of(state)
        buffer, memory = self._memory_of(manifest.nbytes)
        torch = libraries.torch()
        self._version += 1
        checksum = Checksum()
        with buffer.update(version=self._version), torch.no_grad():
            for number, (leaf, tensor) in enumerate(zip(manifest.leaves, tensors, strict=True)):
                part = memory[leaf.offset : leaf.offset + leaf.nbytes]
                is_plain = tensor.is_contiguous() and tensor.device.type == "cpu"
                if not is_plain:
                    part.view(tensor.dtype).view(tensor.shape).copy_(tensor)
                source = bytes_of(tensor) if is_plain else part
                # Summed up while it is in the processor's cache.
                for here, there in zip(part.split(_CACHED_BYTES), source.split(_CACHED_BYTES), strict=True):
                    here.copy_(there)
                    checksum.add(number, here)
        sums = checksum.sums(len(tensors))
        self._shelf.put(Staged(quorum_id, step, self._version, buffer, manifest, sums, checksum.text))
        return manifest.nbytes

    def close(self) -> None:
        """Nobody reads any more."""
        if self._buffer is not None:
            self._buffer.drop()
            self._memory = self._buffer = None

    def _memory_of(self, nbytes: int) -> tuple[Buffer, Any]:
        torch = libraries.torch()
        if self._buffer is None or self._buffer.size < nbytes:
            self.close()
            lent = empty(max(1, nbytes))
            self._memory, self._buffer = torch.frombuffer(lent, dtype=torch.uint8), Buffer(lent)
        return self._buffer, self._memory


def bytes_of(tensor: Any) -> Any:
    """A contiguous tensor as its bytes."""
    return tensor.reshape(-1).view(libraries.torch().uint8)
