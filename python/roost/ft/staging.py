"""Staging: a state is copied once into a buffer that peers read, straight into their own tensors, while its owner trains on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from roost import libraries
from roost.ft.manifest import Checksum, Manifest, manifest_of, tensors_of
from roost.rdma import Batch, Buffer, empty

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roost.reply import Reply

__all__ = ["FINAL_ID", "Shelf", "Staged", "Staging", "bytes_of", "read_staged"]


@dataclass(frozen=True, slots=True)
class Staged:
    """A state that lies ready."""

    quorum_id: int
    step: int
    version: int
    """Of the buffer."""
    buffer: Buffer
    manifest: Manifest
    checksum: str


FINAL_ID = (1 << 63) - 1
"""In place of a quorum's id: the state that training has ended with. No quorum has a greater one."""
# What is read or copied at once before it is summed up: large enough to be quick, small enough for a cache.
_LOAD_BYTES = 16 << 20
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
        self._shelf.put(Staged(quorum_id, step, self._version, buffer, manifest, checksum.text))
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


def read_staged(staged: Staged, own: dict[str, Any], source: int | str, timeout_s: float) -> dict[str, Any]:
    """Take what a peer has staged: into the tensors of `own` where they are alike, else into new ones.

    Args:
        staged: what the peer's shelf gave.
        own: a state whose tensors may be overwritten; nothing of it counts when this fails.
        source: what the peer is called in errors.
        timeout_s: how long it may take.

    Raises:
        ActorDied: the other died; BufferGone, VersionError: what it staged is gone.
        ValueError: a tensor has another shape there, or what came is not what it staged.
    """
    manifest = staged.manifest
    tensors, parts = _targets(manifest, own, source)
    until = time.monotonic() + timeout_s
    checksum = Checksum()
    _read_small(staged, parts, checksum, timeout_s)
    going: deque[tuple[list[_Piece], Reply[int]]] = deque()

    def sum_up() -> None:
        pieces, reply = going.popleft()
        reply.result()
        for piece in pieces:
            checksum.add(piece.leaf, piece.here)

    for pieces in _loads(manifest, parts):
        batch = Batch()
        for piece in pieces:
            batch.read(staged.buffer[piece.offset : piece.offset + piece.here.numel()], piece.here)
        going.append((pieces, batch.submit(version=staged.version, timeout=max(0.01, until - time.monotonic()))))
        # One is on its way while the one before is summed up.
        if len(going) > 1:
            sum_up()
    while going:
        sum_up()
    if checksum.text != staged.checksum:
        raise ValueError(
            f"the state of replica {source} has the checksum {checksum.text} here, and {staged.checksum} there"
        )
    return manifest.rebuild(tensors)


class _Piece(NamedTuple):
    """A part of a large tensor."""

    leaf: int
    offset: int
    here: Any


def _loads(manifest: Manifest, parts: list[Any]) -> Iterator[list[_Piece]]:
    """Large tensors in pieces, those together that are read at once."""
    load: list[_Piece] = []
    size = 0
    for number, (leaf, part) in enumerate(zip(manifest.leaves, parts, strict=True)):
        if leaf.is_small:
            continue
        for count, here in enumerate(part.split(_LOAD_BYTES)):
            load.append(_Piece(number, leaf.offset + count * _LOAD_BYTES, here))
            size += here.numel()
            if size >= _LOAD_BYTES:
                yield load
                load, size = [], 0
    if load:
        yield load


def _read_small(staged: Staged, parts: list[Any], checksum: Checksum, timeout_s: float) -> None:
    """What is small is read at once, and put where it belongs."""
    manifest = staged.manifest
    if not manifest.small_bytes:
        return
    packed = libraries.torch().empty(manifest.small_bytes, dtype=libraries.torch().uint8)
    batch = Batch().read(staged.buffer[: manifest.small_bytes], packed)
    batch.submit(version=staged.version, timeout=max(0.01, timeout_s)).result()
    for number, (leaf, part) in enumerate(zip(manifest.leaves, parts, strict=True)):
        if leaf.is_small:
            part.copy_(packed[leaf.offset : leaf.offset + leaf.nbytes])
            checksum.add(number, part)


def _targets(manifest: Manifest, own: dict[str, Any], source: int | str) -> tuple[list[Any], list[Any]]:
    """Where each leaf goes: the tensor, and its bytes."""
    torch = libraries.torch()
    known = tensors_of(own)
    tensors: list[Any] = []
    for leaf in manifest.leaves:
        here = known.get(leaf.path)
        dtype = getattr(torch, leaf.dtype)
        if here is not None and tuple(here.shape) != leaf.shape:
            raise ValueError(
                f"{leaf.path} has the shape {tuple(here.shape)} here, and {leaf.shape} at replica {source}: "
                "replicas have to build the same"
            )
        usable = here is not None and here.dtype == dtype and here.device.type == "cpu" and here.is_contiguous()
        tensors.append(here.detach() if usable and here is not None else torch.empty(leaf.shape, dtype=dtype))
    return tensors, [bytes_of(one) for one in tensors]


def bytes_of(tensor: Any) -> Any:
    """A contiguous tensor as its bytes."""
    return tensor.reshape(-1).view(libraries.torch().uint8)
