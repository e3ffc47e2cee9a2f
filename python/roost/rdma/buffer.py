"""`Buffer`: memory that other processes read and write, as a handle that travels."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from roost import process
from roost._roost import Handle, Parts, SharedMemory
from roost.rdma.layout import Layout, View, contiguous
from roost.rdma.lent import lend
from roost.rdma.transfers import met, transfers
from roost.values import check_integer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from roost.rdma.layout import Index
    from roost.rdma.transfers import Transfer, Transfers
    from roost.reply import Reply

__all__ = ["Backend", "Buffer", "check_new_version", "check_version", "empty"]

Backend: TypeAlias = Literal["ibverbs", "same_host", "tcp"]

# More bytes than a signed word counts are nowhere.
_ADDRESSES = 1 << 63
# Versions are counted in 64 bits.
_VERSIONS = 1 << 64


def empty(nbytes: int) -> memoryview:
    """New shared memory: of a host, others read and write it as quickly as their own. It holds zeros.

    It is one-dimensional, writable, of bytes, page-aligned, and made of huge pages where the system has them. It lives as long
    as the view, what was made from it (`numpy.frombuffer`, `torch.frombuffer`), or a `Buffer` of any part of it.

    Args:
        nbytes: how much, in bytes.

    Raises:
        ValueError: none or a negative number of bytes.
        MemoryError: there is not so much.
    """
    check_integer("roost.rdma.empty", "nbytes", nbytes, least=1)
    if nbytes >= _ADDRESSES:
        raise MemoryError(f"roost.rdma.empty: 2**{nbytes.bit_length() - 1} bytes or more are beyond any address")
    return memoryview(SharedMemory(nbytes))


class Buffer:
    """Memory of this process that others read and write; a small handle, to send to them.

    It keeps the memory alive, until `drop()`, the end of `async with`, or the end of the process that owns it: dropping the
    handles alone does not. Two buffers over the same memory are allowed.

    Args:
        memory: a tensor, an array or a writable buffer such as `roost.rdma.empty` gives; contiguous, not empty.

    Raises:
        ValueError: it is empty, read-only, not contiguous, or has no memory of its own.
        TypeError: it is nothing that has memory.
        Unavailable: it lies where this build does not reach.
    """

    __slots__ = ("_handle", "_layout", "_owner_name")

    _handle: Handle
    _owner_name: str
    _layout: Layout

    def __init__(self, memory: object) -> None:
        lent = lend(memory, "a Buffer's memory")
        lent.check_size("a Buffer's memory")
        lent.check_writable("a Buffer's memory")
        lent.check_contiguous("a Buffer's memory")
        layout = lent.layout
        self._register(lent.address, contiguous(layout.shape, layout.item_bytes, layout.dtype), lent.keep)

    @classmethod
    def _over(cls, address: int, size: int, keep: object) -> Self:
        """Of bytes that were looked at already."""
        buffer = cls.__new__(cls)
        buffer._register(address, contiguous((size,), 1, ""), keep)
        return buffer

    def _register(self, address: int, layout: Layout, keep: object) -> None:
        runtime = process.current()
        self._layout = layout
        self._handle = transfers(runtime).engine.register(address, layout.size, keep)
        self._owner_name = runtime.name
        met(self._handle, runtime.name)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._handle.size

    @property
    def owner(self) -> str:
        """The name of the proc that owns it."""
        return self._owner_name

    @property
    def backend(self) -> Backend | None:
        """What its bytes travel by between this process and its owner; None as long as that was not tried."""
        return self._transfers().engine.backend(self._handle)

    @overload
    def read_into(
        self, dst: object, *, offset: int = 0, timeout: float = 60.0, version: None = None, checksum: bool = False
    ) -> Reply[None]: ...
    @overload
    def read_into(
        self, dst: object, *, offset: int = 0, timeout: float = 60.0, version: int, checksum: bool = False
    ) -> Reply[int]: ...
    def read_into(
        self,
        dst: object,
        *,
        offset: int = 0,
        timeout: float = 60.0,
        version: int | None = None,
        checksum: bool = False,
    ) -> Reply[Any]:
        """Copy the buffer, from `offset` to its end, to the beginning of `dst`; what `dst` has beyond that stays.

        Args:
            dst: a tensor, an array or a writable buffer, contiguous, and at least as large as what is read.
            offset: where in the buffer to begin, in bytes.
            timeout: seconds it may take.
            version: the oldest version that will do; what is read is then never half of an update. Without it nothing is
                promised of memory that is written meanwhile.
            checksum: have both ends compute one when the bytes are there, and compare them. Memory that is written meanwhile may be
                taken for corrupt, but for what its owner updates where a `version` is asked for.

        Returns:
            A reply with the version that was read; with None when none was asked for.

        Raises:
            ValueError: `dst` is too small, read-only or not contiguous; `offset` is not inside the buffer.
            BufferGone: by the reply, as are all that follow: the owner has dropped it, or its memory was freed.
            VersionError: it is older than `version`.
            PeerLostError: the owner has ended.
            CallTimeoutError: the time is over. What `dst` holds after any error is undefined.
            ProtocolError: the checksums differ.
        """
        check_version(version)
        lent = lend(dst, "dst")
        lent.check_contiguous("dst")
        lent.check_writable("dst")
        size = self._from(offset)
        if lent.layout.size < size:
            what = f"dst has {lent.layout.size} bytes, and the buffer has {size}"
            raise ValueError(what + (f" from offset {offset} on" if offset else "") + "; read a part of it in a Batch")
        parts = Parts()
        parts.add_flat(False, self._handle, offset, lent.address, size)
        return self._transfers().submit(
            parts, lent.keep, timeout, _nothing if version is None else _the_version, version=version, checksum=checksum
        )

    def write_from(self, src: object, *, offset: int = 0, timeout: float = 60.0, checksum: bool = False) -> Reply[None]:
        """Copy all of `src` into the buffer, at `offset`; what the buffer has before and behind that stays.

        Args:
            src: a tensor, an array or a buffer, contiguous, and at most as large as the buffer is from `offset` on.
            offset: where in the buffer to begin, in bytes.
            timeout: seconds it may take.
            checksum: have both ends compute one when the bytes are there, and compare them. Memory that is written meanwhile, here
                or there, may be taken for corrupt.

        Raises:
            ValueError: `src` is empty, too large or not contiguous; `offset` is not inside the buffer.
            BufferGone: by the reply, as are all that follow: the owner has dropped it, or its memory was freed.
            PeerLostError: the owner has ended.
            CallTimeoutError: the time is over. What the buffer holds there after any error is undefined.
            ProtocolError: the checksums differ.
        """
        lent = lend(src, "src")
        lent.check_size("src")
        lent.check_contiguous("src")
        room = self._from(offset)
        if lent.layout.size > room:
            what = f"src has {lent.layout.size} bytes, and the buffer has {room}"
            raise ValueError(what + (f" from offset {offset} on" if offset else ""))
        parts = Parts()
        parts.add_flat(True, self._handle, offset, lent.address, lent.layout.size)
        return self._transfers().submit(parts, lent.keep, timeout, _nothing, version=None, checksum=checksum)

    def __getitem__(self, index: Index) -> View:
        return View(self, self._layout.cut(index))

    @contextmanager
    def update(self, *, version: int) -> Iterator[None]:
        """Write a new version: `with buffer.update(version=n):` around what changes the memory, by its owner alone.

        Who reads with `version=` meanwhile waits for its end. When the block raises, the memory is taken for half-written: such
        readers go on waiting, until their time is over or another update has ended.

        Raises:
            PermissionError: another process owns it.
            BufferGone: it was dropped.
            RuntimeError: it is being updated already.
            ValueError: a version that is no number of 64 bits.
        """
        check_new_version(version)
        own, region = self._of_owner("update"), self._handle.region
        if region not in own.broken:
            own.engine.begin_update(region)
        own.broken.add(region)
        yield
        own.engine.end_update(region, version)
        own.broken.discard(region)

    def drop(self) -> Reply[None]:
        """Take it back, by its owner alone: others get `BufferGone` from now on.

        The reply comes, and the memory is given back, when nobody reads or writes it any more, within a second. Idempotent.

        Raises:
            PermissionError: another process owns it.
        """
        return self._drop()

    def _drop(self) -> Transfer[None]:
        return self._of_owner("drop").drop(self._handle)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drop()

    def __reduce__(self) -> tuple[Any, ...]:
        layout = self._layout
        return _restore, (self._handle.encode(), self._owner_name, layout.shape, layout.item_bytes, layout.dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Buffer) and other._handle.encode() == self._handle.encode()

    def __hash__(self) -> int:
        return hash(self._handle.encode())

    def __repr__(self) -> str:
        layout = self._layout
        return f"Buffer({layout.dtype or 'bytes'}{list(layout.shape)} of {self._owner_name})"

    def _from(self, offset: int) -> int:
        """How many bytes there are from an offset on."""
        check_integer("a transfer's", "offset", offset, least=0)
        if offset >= self.size:
            raise ValueError(f"offset {offset} is not inside the buffer, which has {self.size} bytes")
        return self.size - offset

    def _transfers(self) -> Transfers:
        return transfers(process.of_job(f"the buffer of {self._owner_name}", self._handle.owner))

    def _of_owner(self, what: str) -> Transfers:
        runtime = process.of_job(f"the buffer of {self._owner_name}", self._handle.owner)
        if (runtime.proc, runtime.incarnation) != (self._handle.owner, self._handle.incarnation):
            raise PermissionError(f"only {self._owner_name}, which owns the buffer, may {what} it")
        return transfers(runtime)


def _restore(handle: bytes, owner: str, shape: tuple[int, ...], item_bytes: int, dtype: str) -> Buffer:
    buffer = Buffer.__new__(Buffer)
    buffer._handle = Handle(handle)
    buffer._owner_name = owner
    buffer._layout = contiguous(shape, item_bytes, dtype)
    met(buffer._handle, owner)
    return buffer


def check_version(version: int | None) -> None:
    """Refuse what is no version.

    Raises:
        TypeError: it is no whole number.
        ValueError: it does not fit into 64 bits.
    """
    if version is None:
        return
    check_integer("a buffer's", "version", version, least=0)
    if version >= _VERSIONS:
        raise ValueError(f"a buffer's version={version} does not fit into 64 bits")


def check_new_version(version: int) -> None:
    """Refuse what an update cannot make: none at all, too.

    Raises:
        TypeError: it is no whole number.
        ValueError: it does not fit into 64 bits.
    """
    check_integer("a buffer's", "version", version, least=0)
    check_version(version)


def _nothing(_version: int | None) -> None:
    return None


def _the_version(version: int | None) -> int | None:
    return version
