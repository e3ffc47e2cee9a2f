"""`Buffers`: a structure of arrays and tensors, such as a module's state dict, as one handle."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from roost import process
from roost.rdma.batch import Batch
from roost.rdma.buffer import Buffer, check_new_version, check_version
from roost.rdma.layout import Layout, View
from roost.rdma.leaves import Leaf, Made, copy, leaves, of_dtype, places, rebuilt, storages
from roost.rdma.lent import is_tensor
from roost.rdma.transfers import transfers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from roost.rdma.buffer import Backend
    from roost.reply import Reply

__all__ = ["Buffers"]

_NAMED_MAX = 5


class _Entry(NamedTuple):
    """Where one array or tensor of the owner's lies."""

    path: str
    kind: str
    """The library that it is of: numpy, torch."""
    number: int
    """Of the buffer that it lies in; -1 of an empty one."""
    layout: Layout


class Buffers:
    """All arrays and tensors of a structure, as one handle to send to others: `Buffers(model.state_dict())`.

    The structure is of dicts, lists and tuples, nested as one likes. Memory that several tensors share is registered once. What
    else it contains (numbers, names) travels with the handle, as it is now. Tensors may be empty, without dimensions, or not
    contiguous. As with `Buffer`, the memory lives until `drop()`.

    Args:
        values: the structure, or one array or tensor.

    Raises:
        ValueError: an array or tensor in it is read-only, or has no memory of its own; the text has its path.
        Unavailable: one lies where this build does not reach.
    """

    __slots__ = ("_buffers", "_entries", "_owner_name", "_structure")

    def __init__(self, values: object) -> None:
        self._structure, found = leaves(values)
        for leaf in found:
            leaf.lent.check_writable(leaf.path or "the value")
        pieces, which, where = storages(found)
        self._entries = tuple(
            _Entry(leaf.path, "torch" if is_tensor(leaf.value) else "numpy", number, layout)
            for leaf, number, layout in zip(found, which, where, strict=True)
        )
        self._owner_name = process.current().name
        self._buffers = tuple(Buffer._over(piece.address, piece.size, piece.keep) for piece in pieces)

    @property
    def size(self) -> int:
        """Its bytes, those that several tensors share counted once."""
        return sum(buffer.size for buffer in self._buffers)

    @property
    def owner(self) -> str:
        """The name of the proc that owns it."""
        return self._owner_name

    @property
    def backend(self) -> Backend | None:
        """What its bytes travel by between this process and its owner; None as long as that was not tried."""
        return self._buffers[0].backend if self._buffers else None

    def read(self, *, version: int | None = None, timeout: float = 60.0) -> Reply[Any]:
        """The structure, in new memory here: laid out, and shared, as at the owner.

        Args:
            version: the oldest version that will do, the same of everything; see `Buffer.read_into`.
            timeout: seconds it may take.
        """
        kinds = {entry.number: entry.kind for entry in self._entries}
        made = Made([buffer.size for buffer in self._buffers], kinds)
        batch = Batch()
        for buffer, memory in zip(self._buffers, made.memory, strict=True):
            batch.read(buffer, memory)
        values = [made.look(entry.number, entry.kind, entry.layout) for entry in self._entries]
        return batch._submit(lambda _: rebuilt(self._structure, values), None, timeout=timeout, version=version)

    @overload
    def read_into(
        self, values: object, *, cast: bool = False, version: None = None, timeout: float = 60.0
    ) -> Reply[None]: ...
    @overload
    def read_into(self, values: object, *, cast: bool = False, version: int, timeout: float = 60.0) -> Reply[int]: ...
    def read_into(
        self, values: object, *, cast: bool = False, version: int | None = None, timeout: float = 60.0
    ) -> Reply[Any]:
        """Read into the arrays and tensors of a structure that has the same paths and shapes.

        Args:
            values: the structure, such as another model's `state_dict()`. What it contains besides stays.
            cast: convert elements of another type; without it they are an error.
            version: the oldest version that will do, the same of everything; see `Buffer.read_into`.
            timeout: seconds it may take.

        Returns:
            A reply with the version that was read; with None when none was asked for.

        Raises:
            ValueError: paths, shapes or types differ.
        """
        check_version(version)
        batch, casts = Batch(), _Casts()
        for entry, leaf in self._pairs(values):
            leaf.lent.check_writable(leaf.path or "the value")
            target = leaf.value
            if _differ(entry, leaf, cast=cast):
                target = of_dtype(leaf.value, entry.layout)
                casts.append((leaf.value, target))
            batch._read_once(View(self._buffers[entry.number], entry.layout), target, leaf.path)
        slow = casts.make if casts else None
        return batch._submit(lambda found: found, slow, timeout=timeout, version=version)

    def write_from(self, values: object, *, cast: bool = False, timeout: float = 60.0) -> Reply[None]:
        """Write from the arrays and tensors of a structure that has the same paths and shapes.

        Args:
            values: the structure.
            cast: convert elements of another type; without it they are an error.
            timeout: seconds it may take.

        Raises:
            ValueError: paths, shapes or types differ.
        """
        batch = Batch()
        for entry, leaf in self._pairs(values):
            source = leaf.value
            if _differ(entry, leaf, cast=cast):
                source = of_dtype(leaf.value, entry.layout)
                copy(source, leaf.value)
            batch._write_once(View(self._buffers[entry.number], entry.layout), source, leaf.path)
        return batch._submit(lambda _: None, None, timeout=timeout, version=None)

    @contextmanager
    def update(self, *, version: int) -> Iterator[None]:
        """Write a new version of all of it, by its owner alone; see `Buffer.update`."""
        check_new_version(version)
        with ExitStack() as updates:
            for buffer in self._buffers:
                updates.enter_context(buffer.update(version=version))
            yield

    def drop(self) -> Reply[None]:
        """Take it back, by its owner alone; see `Buffer.drop`."""
        at_work = transfers(process.current())
        drops = [buffer._drop() for buffer in self._buffers]
        return at_work.together(drops) if drops else at_work.nothing(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drop()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._structure, self._entries, self._buffers, self._owner_name)

    def __repr__(self) -> str:
        return f"Buffers({len(self._entries)} arrays and tensors, {self.size} bytes, of {self._owner_name})"

    def _pairs(self, values: object) -> Iterator[tuple[_Entry, Leaf]]:
        """What lies at the owner with what belongs to it here, where it has any bytes."""
        structure, found = leaves(values)
        here = {path: found[place.number] for path, place in places(structure)}
        _check_paths([entry.path for entry in self._entries], list(here))
        for entry in self._entries:
            leaf = here[entry.path]
            if leaf.lent.layout.shape != entry.layout.shape:
                raise ValueError(
                    f"{entry.path or 'the value'} has the shape {leaf.lent.layout.shape}, and the owner's is {entry.layout.shape}"
                )
            if entry.number >= 0:
                yield entry, leaf


class _Casts(list[tuple[Any, Any]]):
    """What is to be converted: (to, from)."""

    def make(self) -> None:
        """Convert it."""
        for to, value in self:
            copy(to, value)


def _check_paths(there: Sequence[str], here: Sequence[str]) -> None:
    lacking, more = [path for path in there if path not in set(here)], [path for path in here if path not in set(there)]
    if lacking or more:
        texts = [
            f"{what} {', '.join(paths[:_NAMED_MAX])}{' …' if len(paths) > _NAMED_MAX else ''}"
            for what, paths in (("lacks", lacking), ("has besides", more))
            if paths
        ]
        raise ValueError(f"the structure is another than the owner's: it {' and '.join(texts)}")


def _differ(entry: _Entry, leaf: Leaf, *, cast: bool) -> bool:
    there, here = entry.layout.dtype, leaf.lent.layout.dtype
    if there == here:
        return False
    if not cast:
        raise ValueError(
            f"{entry.path or 'the value'} is of {here}, and the owner's is of {there}: cast=True converts it"
        )
    return True


def _restore(structure: object, entries: tuple[_Entry, ...], buffers: tuple[Buffer, ...], owner: str) -> Buffers:
    made = Buffers.__new__(Buffers)
    made._structure, made._entries, made._buffers, made._owner_name = structure, entries, buffers, owner
    return made
