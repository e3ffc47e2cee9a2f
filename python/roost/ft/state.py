"""`StateTransfer`: a newcomer takes the state of a peer by one-sided reads, straight into its own tensors.

The peer copies its state once, in its training thread, into a buffer that it keeps; then it trains on, and readers need nothing
of it. Until all is here and verified the newcomer has no state.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roost.ft import libraries
from roost.ft.manifest import Manifest, checksum_of, manifest_of, tensors_of
from roost.rdma import Batch, Buffer, empty

if TYPE_CHECKING:
    from roost.ft.companion import Companion
    from roost.ft.coordinator import Member
    from roost.ft.ledger import Ledger, News
    from roost.ft.quorum import Quorum

__all__ = ["Shelf", "Staged", "StateTransfer"]


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


class StateTransfer:
    """How states travel, and are told apart.

    Args:
        member: whose.
        shelf: where staged states are put.
        companions: where peers' are asked for.
        ledger: what is told of staging.
        news: what this replica tells of its way back.
        heal_within_s: how long taking a state may take.
    """

    def __init__(
        self, member: Member, shelf: Shelf, companions: Companion, ledger: Ledger, news: News, heal_within_s: float
    ) -> None:
        self._member = member
        self._shelf = shelf
        self._companions = companions
        self._ledger = ledger
        self._news = news
        self._heal_within_s = heal_within_s
        # Registered once, and used again as long as it is large enough.
        self._memory: Any = None
        self._buffer: Buffer | None = None
        self._version = 0

    def stage(self, quorum: Quorum, state: dict[str, Any]) -> None:
        """Copy a state for those that heal from this member in this quorum; they are done, or dead, before its decision."""
        began = time.monotonic()
        manifest, tensors = manifest_of(state)
        buffer, memory = self._memory_of(manifest.nbytes)
        torch = libraries.torch()
        self._version += 1
        parts: list[Any] = []
        with buffer.update(version=self._version), torch.no_grad():
            for leaf, tensor in zip(manifest.leaves, tensors, strict=True):
                part = memory[leaf.offset : leaf.offset + leaf.nbytes]
                parts.append(part)
                if leaf.nbytes:
                    part.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self._shelf.put(Staged(quorum.id, quorum.step, self._version, buffer, manifest, checksum_of(parts)))
        self._ledger.staged.broadcast(time.monotonic() - began, manifest.nbytes)

    def take(self, quorum: Quorum, source: int, own: dict[str, Any]) -> dict[str, Any]:
        """Take the state of another member: into the tensors of `own` where they are alike, else into new ones.

        Raises:
            ActorDied: the other died; BufferGone, VersionError: what it staged is gone.
            ValueError: a tensor has another shape there, or what came is not what it staged.
        """
        until = time.monotonic() + self._heal_within_s
        companion = self._companions.slice(replicas=source, procs=self._member.proc)
        staged = companion.staged.call_one(quorum.id, quorum.step).result(self._heal_within_s)
        manifest = staged.manifest
        tensors, parts = _targets(manifest, own, source)
        torch = libraries.torch()
        small = torch.empty(manifest.small_bytes, dtype=torch.uint8)
        batch = Batch()
        if manifest.small_bytes:
            batch.read(staged.buffer[: manifest.small_bytes], small)
        for leaf, part in zip(manifest.leaves, parts, strict=True):
            if not leaf.is_small:
                batch.read(staged.buffer[leaf.offset : leaf.offset + leaf.nbytes], part)
        # What came is compared with what was staged below, from end to end.
        batch.submit(version=staged.version, timeout=max(0.01, until - time.monotonic())).result()
        for leaf, part in zip(manifest.leaves, parts, strict=True):
            if leaf.is_small:
                part.copy_(small[leaf.offset : leaf.offset + leaf.nbytes])
        found = checksum_of(parts)
        if found != staged.checksum:
            raise ValueError(
                f"the state of replica {source} has the checksum {found} here, and {staged.checksum} there"
            )
        self._news.source, self._news.bytes, self._news.checksum = source, manifest.nbytes, found
        return manifest.rebuild(tensors)

    def digest(self, state: dict[str, Any]) -> str:
        """What tells states apart.

        Raises:
            TypeError: something in it travels in no way.
        """
        import hashlib

        manifest, tensors = manifest_of(state)
        digest = hashlib.blake2b(manifest.tree, digest_size=16)
        for leaf, tensor in zip(manifest.leaves, tensors, strict=True):
            digest.update(repr(leaf).encode())
            digest.update(_bytes_of(tensor.cpu().contiguous()).numpy())
        return digest.hexdigest()

    def _memory_of(self, nbytes: int) -> tuple[Buffer, Any]:
        torch = libraries.torch()
        if self._buffer is None or self._buffer.size < nbytes:
            if self._buffer is not None:
                self._buffer.drop()
            lent = empty(max(1, nbytes))
            self._memory, self._buffer = torch.frombuffer(lent, dtype=torch.uint8), Buffer(lent)
        return self._buffer, self._memory


def _targets(manifest: Manifest, own: dict[str, Any], source: int) -> tuple[list[Any], list[Any]]:
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
    return tensors, [_bytes_of(one) for one in tensors]


def _bytes_of(tensor: Any) -> Any:
    return tensor.reshape(-1).view(libraries.torch().uint8)
