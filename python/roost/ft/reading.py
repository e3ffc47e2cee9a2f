"""`read_staged`: takes a state that one peer or several have staged, straight into a newcomer's own tensors.

What several donors have alike is read from all of them at once, each as quickly as it gives it; what differs (the inner state of
DiLoCo's replicas, say) comes from the first. When one dies the others go on; with the first the next one becomes the first, and only
what differs there is read again.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from roost import libraries
from roost.errors import ActorDied
from roost.ft.manifest import sum_of, tensors_of
from roost.ft.staging import bytes_of
from roost.rdma import Batch, BufferGone, VersionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost.ft.manifest import Leaf
    from roost.ft.staging import Staged
    from roost.reply import Reply

__all__ = ["Donor", "read_staged"]

# What is read at once before it is summed up: large enough to be quick, small enough for a cache.
_LOAD_BYTES = 16 << 20
# So many are on their way from each donor: one, and the next while that is summed up.
_LOADS_AT_ONCE = 2
_WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class Donor:
    """One that a state can be taken from."""

    replica: int
    staged: Staged


@dataclass(slots=True)
class _Part:
    """One tensor on its way."""

    sum: int
    tensor: Any
    pieces: tuple[Any, ...]
    """Its bytes, in pieces that are read one by one."""
    missing: set[int]
    found: int = 0
    """The sum of what is here."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is here, as it was staged."""
        return not self.missing and self.found % (1 << _WORD_BITS) == self.sum

    def add(self, number: int) -> None:
        """A piece has come."""
        self.missing.discard(number)
        self.found += sum_of(self.pieces[number])


class _Piece(NamedTuple):
    part: _Part
    number: int


@dataclass(slots=True)
class _Load:
    """Pieces that are read at once, from any of these donors."""

    donors: frozenset[int]
    # Of each of those donors where they lie in its buffer.
    offsets: dict[int, list[int]]
    pieces: list[_Piece] = field(default_factory=list[_Piece])
    size: int = 0


class _FirstDiedError(Exception):
    """The donor is gone whose state it would have been."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def read_staged(
    donors: Sequence[Donor], own: dict[str, Any], timeout_s: float
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Take what peers have staged: into the tensors of `own` where they are alike, else into new ones.

    Args:
        donors: what their shelves gave. The state is the first one's, of those that live to the end.
        own: a state whose tensors may be overwritten; nothing of it counts when this fails.
        timeout_s: how long it may take.

    Returns:
        The state, and who gave parts of it: first whose it is.

    Raises:
        ActorDied: all of them died; BufferGone, VersionError: what they staged is gone.
        ValueError: a tensor has another shape there, or what came is not what was staged.
    """
    reading = _Reading(donors, own, time.monotonic() + timeout_s)
    while True:
        try:
            return reading.read()
        except _FirstDiedError as died:
            if not reading.left:
                raise died.error from None


class _Reading:
    def __init__(self, donors: Sequence[Donor], own: dict[str, Any], until: float) -> None:
        self._donors = donors
        self._own = tensors_of(own)
        self._until = until
        self.left = list(range(len(donors)))
        """Those that are not known to be gone."""
        self._gave: set[int] = set()
        self._parts: dict[str, _Part] = {}
        self._leaves = [
            {leaf.path: (leaf, total) for leaf, total in zip(one.staged.manifest.leaves, one.staged.sums, strict=True)}
            for one in donors
        ]
        self._waiting: deque[_Load] = deque()
        self._going: dict[int, deque[tuple[_Load, Reply[int]]]] = {number: deque() for number in self.left}

    def read(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Take the state of the first that is left."""
        first = self.left[0]
        donor = self._donors[first]
        parts = [self._part(leaf, total, donor.replica) for leaf, total in self._leaves[first].values()]
        try:
            self._read_small(first)
            self._waiting = self._loads(first)
            self._read_all(first)
        finally:
            self._let_end()
        for leaf, part in zip(donor.staged.manifest.leaves, parts, strict=True):
            if not part.is_whole:
                raise ValueError(
                    f"{leaf.path} of replica {donor.replica} has the checksum {part.found % (1 << _WORD_BITS):016x} here, "
                    f"and {part.sum:016x} there"
                )
        others = sorted(self._gave - {first})
        state = donor.staged.manifest.rebuild([part.tensor for part in parts])
        return state, (donor.replica, *(self._donors[one].replica for one in others))

    def _part(self, leaf: Leaf, total: int, source: int) -> _Part:
        """Where a leaf goes; what is here of the very same is kept."""
        known = self._parts.get(leaf.path)
        is_alike = known is not None and _is_alike(known.tensor, leaf)
        tensor = known.tensor if known is not None and is_alike else _target(leaf, self._own.get(leaf.path), source)
        if known is None or not is_alike or known.sum != total:
            pieces = tuple(bytes_of(tensor).split(_LOAD_BYTES)) if leaf.nbytes else ()
            known = self._parts[leaf.path] = _Part(total, tensor, pieces, set(range(len(pieces))))
        return known

    def _read_small(self, first: int) -> None:
        """What is small is read at once, and put where it belongs."""
        staged = self._donors[first].staged
        small = [leaf for leaf, _ in self._leaves[first].values() if leaf.is_small and self._parts[leaf.path].missing]
        if not small:
            return
        packed = libraries.torch().empty(staged.manifest.small_bytes, dtype=libraries.torch().uint8)
        batch = Batch().read(staged.buffer[: staged.manifest.small_bytes], packed)
        try:
            batch.submit(version=staged.version, timeout=self._left_s()).result()
        except (ActorDied, BufferGone, VersionError) as error:
            self._lose(first, error)
        self._gave.add(first)
        for leaf in small:
            part = self._parts[leaf.path]
            part.pieces[0].copy_(packed[leaf.offset : leaf.offset + leaf.nbytes])
            part.add(0)

    def _loads(self, first: int) -> deque[_Load]:
        """Large tensors in pieces, those together that are read at once, and from whom they can be."""
        loads: deque[_Load] = deque()
        for path, (leaf, total) in self._leaves[first].items():
            part = self._parts[path]
            offsets = {one: self._leaves[one][path][0].offset for one in self.left if self._has(one, leaf, total)}
            for number in sorted(part.missing):
                last = loads[-1] if loads else None
                if last is None or last.size >= _LOAD_BYTES or last.donors != offsets.keys():
                    last = _Load(frozenset(offsets), {one: [] for one in offsets})
                    loads.append(last)
                for one, offset in offsets.items():
                    last.offsets[one].append(offset + number * _LOAD_BYTES)
                last.pieces.append(_Piece(part, number))
                last.size += part.pieces[number].numel()
        return loads

    def _has(self, donor: int, leaf: Leaf, total: int) -> bool:
        """Whether a donor has the very same."""
        its = self._leaves[donor].get(leaf.path)
        return its is not None and (its[0].shape, its[0].dtype, its[1]) == (leaf.shape, leaf.dtype, total)

    def _read_all(self, first: int) -> None:
        while True:
            for donor in self.left:
                while len(self._going[donor]) < _LOADS_AT_ONCE and self._submit(donor):
                    pass
            going = [donor for donor in self.left if self._going[donor]]
            if not going:
                return
            # Whose answer is there; else the first's.
            donor = next((one for one in going if self._going[one][0][1].done()), going[0])
            load, reply = self._going[donor].popleft()
            try:
                reply.result()
            except (ActorDied, BufferGone, VersionError) as error:
                self._waiting.appendleft(load)
                self._lose(donor, error, is_first=donor == first)
            else:
                self._gave.add(donor)
                for piece in load.pieces:
                    piece.part.add(piece.number)

    def _submit(self, donor: int) -> bool:
        can = [one for one in self._waiting if donor in one.donors]
        if not can:
            return False
        # What fewer have comes first.
        load = min(can, key=lambda one: len(one.donors))
        self._waiting.remove(load)
        staged = self._donors[donor].staged
        batch = Batch()
        for (part, number), offset in zip(load.pieces, load.offsets[donor], strict=True):
            here = part.pieces[number]
            batch.read(staged.buffer[offset : offset + here.numel()], here)
        self._going[donor].append((load, batch.submit(version=staged.version, timeout=self._left_s())))
        return True

    def _lose(self, donor: int, error: Exception, *, is_first: bool = True) -> None:
        """A donor is gone; what was on its way from it is read from others."""
        self.left.remove(donor)
        for load, reply in self._going[donor]:
            _wait_out(reply)
            self._waiting.append(load)
        self._going[donor].clear()
        if is_first:
            raise _FirstDiedError(error) from error

    def _let_end(self) -> None:
        """Nothing is written any more when this returns: what is still on its way has come, or failed."""
        for going in self._going.values():
            for load, reply in going:
                if _wait_out(reply):
                    for piece in load.pieces:
                        piece.part.add(piece.number)
            going.clear()

    def _left_s(self) -> float:
        return max(0.01, self._until - time.monotonic())


def _wait_out(reply: Reply[int]) -> bool:
    """Wait for the end of a read; whether it has read."""
    try:
        reply.result()
    except Exception:  # noqa: BLE001 - the error that is told is the one before
        return False
    return True


def _is_alike(tensor: Any, leaf: Leaf) -> bool:
    return tuple(tensor.shape) == leaf.shape and tensor.dtype == getattr(libraries.torch(), leaf.dtype)


def _target(leaf: Leaf, here: Any, source: int) -> Any:
    """Where a leaf goes: into a tensor that is there, where it can."""
    if here is not None and tuple(here.shape) != leaf.shape:
        raise ValueError(
            f"{leaf.path} has the shape {tuple(here.shape)} here, and {leaf.shape} at replica {source}: "
            "replicas have to build the same"
        )
    if here is not None and _is_alike(here, leaf) and here.device.type == "cpu" and here.is_contiguous():
        return here.detach()
    return libraries.torch().empty(leaf.shape, dtype=getattr(libraries.torch(), leaf.dtype))
