"""`Batch`: many reads and writes that are made together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, overload

from roost import process
from roost._roost import Parts
from roost.rdma.buffer import Buffer, check_version
from roost.rdma.layout import Layout, View
from roost.rdma.lent import Lent, is_tensor, lend
from roost.rdma.transfers import check_timeout, transfers
from roost.values import check_flag

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TypeVar

    from roost.reply import Reply

    R = TypeVar("R")

__all__ = ["Batch"]


class _Part(NamedTuple):
    """One read or write, as it was added."""

    is_write: bool
    buffer: Buffer
    remote: Layout
    local: Lent
    value: Any
    pointer: Callable[[], int] | None
    """Of a tensor: where its memory is now. Libraries move and free only those under whoever holds them."""

    def add_to(self, parts: Parts) -> None:
        """Say where its bytes lie."""
        local, remote = self.local.layout, self.remote
        if remote.is_contiguous and local.is_contiguous:
            size = local.size if self.is_write else remote.size
            parts.add_flat(self.is_write, self.buffer._handle, remote.offset, self.local.address, size)
        else:
            there, here = (remote.offset, remote.strides), (self.local.address, local.strides)
            parts.add(self.is_write, self.buffer._handle, there, here, local.shape, local.item_bytes)


class Batch:
    """Reads and writes that are made together, fail as one, and can be made again and again.

    `Batch().read(buffer, dst).write(other[0:512, :], src)`, then `await batch.submit()`. What lies here may be strided. A
    whole buffer follows the rules of `Buffer.read_into` and `write_from`; a view has the shape and the elements of what it is read
    into or written from. One without parts does nothing.
    """

    def __init__(self) -> None:
        self._added: list[_Part] = []
        self._parts = Parts()
        self._known: set[tuple[object, ...]] = set()

    def __len__(self) -> int:
        return len(self._added)

    def read(self, src: Buffer | View, dst: object) -> Self:
        """Add a read of a buffer, or a part of one, into memory here.

        Raises:
            ValueError: sizes or shapes do not fit; `dst` is read-only.
        """
        name = self._name("dst")
        lent = lend(dst, name)
        lent.check_writable(name)
        return self._add(is_write=False, where=src, lent=lent, value=dst, name=name)

    def write(self, dst: Buffer | View, src: object) -> Self:
        """Add a write of memory here into a buffer, or a part of one.

        Raises:
            ValueError: sizes or shapes do not fit.
        """
        name = self._name("src")
        return self._add(is_write=True, where=dst, lent=lend(src, name), value=src, name=name)

    def _read_once(self, src: View, dst: object, name: str) -> None:
        """Of a structure: what two names stand for is read once."""
        lent = lend(dst, name)
        if not self._has(src, lent):
            self._add(is_write=False, where=src, lent=lent, value=dst, name=name)

    def _write_once(self, dst: View, src: object, name: str) -> None:
        lent = lend(src, name)
        if not self._has(dst, lent):
            self._add(is_write=True, where=dst, lent=lent, value=src, name=name)

    def _has(self, view: View, lent: Lent) -> bool:
        key = view._buffer._handle.region, view._layout, lent.address, lent.layout
        known = key in self._known
        self._known.add(key)
        return known

    @overload
    def submit(self, *, timeout: float = 60.0, version: None = None, checksum: bool = False) -> Reply[None]: ...
    @overload
    def submit(self, *, timeout: float = 60.0, version: int, checksum: bool = False) -> Reply[int]: ...
    def submit(self, *, timeout: float = 60.0, version: int | None = None, checksum: bool = False) -> Reply[Any]:
        """Make all of it, in no order.

        Args:
            timeout: seconds it may take.
            version: have one and the same version, at least this one, of all buffers that are read. As long as they differ
                this waits for their owner to bring them together.
            checksum: have both ends compute one of each part when all bytes are there, and compare them. Memory that is written
                meanwhile may be taken for corrupt, but for what its owner updates where a `version` is asked for.

        Returns:
            A reply with the version that was read; with None when none was asked for.

        Raises:
            ValueError: parts write over each other, or memory that was added has been freed since.
            BufferGone: by the reply, as are all that follow; `Buffer.read_into` has them all. Of what was to be written
                everything, something or nothing has been.
        """
        return self._submit(lambda found: found, None, timeout=timeout, version=version, checksum=checksum)

    def _submit(
        self,
        then: Callable[[int | None], R],
        slow: Callable[[], None] | None,
        *,
        timeout: float,
        version: int | None,
        checksum: bool = False,
    ) -> Reply[R]:
        check_version(version)
        check_timeout(timeout)
        check_flag("a batch's", "checksum", checksum, "whether both ends compute one")
        runtime = process.current() if not self._added else self._added[0].buffer._transfers()._runtime
        at_work = transfers(runtime)
        if not self._added:
            return at_work.nothing(then(version))
        self._look_again()
        keep = [part.local.keep for part in self._added]
        wanted = then if version is not None else lambda _: then(None)
        return at_work.submit(self._parts, keep, timeout, wanted, slow, version=version, checksum=checksum)

    def _look_again(self) -> None:
        """Memory may have moved since it was added, or be gone."""
        moved = {
            number: part._replace(local=lend(part.value, _name(number, "memory")))
            for number, part in enumerate(self._added)
            if part.pointer is not None and part.pointer() != part.local.address
        }
        if moved:
            for number, part in moved.items():
                self._added[number] = part
            self._parts = Parts()
            for part in self._added:
                part.add_to(self._parts)

    def _name(self, what: str) -> str:
        return _name(len(self._added), what)

    def _add(self, *, is_write: bool, where: object, lent: Lent, value: Any, name: str) -> Self:
        lent.check_size(name)
        if isinstance(where, Buffer):
            buffer, remote = where, _whole(where, lent, name, is_write=is_write)
        elif isinstance(where, View):
            buffer, remote = where._buffer, where._layout
            _check_same(remote, lent.layout, name)
        else:
            raise TypeError(f"{name}: a batch reads and writes Buffers and views of them, not {type(where).__name__}")
        pointer = value.data_ptr if is_tensor(value) else None
        part = _Part(is_write, buffer, remote, lent, value, pointer)
        part.add_to(self._parts)
        self._added.append(part)
        return self


def _name(number: int, what: str) -> str:
    return f"{what} of part {number}"


def _whole(buffer: Buffer, lent: Lent, name: str, *, is_write: bool) -> Layout:
    """How a whole buffer is laid out for what lies here: as bytes, or element by element where that is strided."""
    whole, local = buffer._layout, lent.layout
    if not local.is_contiguous:
        _check_same(whole, local, name)
    elif is_write and local.size > whole.size:
        raise ValueError(f"{name} has {local.size} bytes, and the buffer has {whole.size}")
    elif not is_write and local.size < whole.size:
        raise ValueError(f"{name} has {local.size} bytes, and the buffer has {whole.size}; read a view of it")
    return whole


def _check_same(remote: Layout, local: Layout, name: str) -> None:
    if remote.shape != local.shape:
        raise ValueError(f"{name} has the shape {local.shape}, and the buffer's is {remote.shape}")
    if remote.item_bytes != local.item_bytes or (remote.dtype and local.dtype and remote.dtype != local.dtype):
        raise ValueError(
            f"{name} has elements of {local.dtype or 'bytes'} ({local.item_bytes} bytes), and the buffer's are of "
            f"{remote.dtype or 'bytes'} ({remote.item_bytes}): bytes are copied as they are"
        )
