"""`sync=`: a folder's files on hosts that do not share them, at the same path; only what changed is sent, over Roost's own connections."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from roost.actor import Actor
from roost.endpoint import endpoint
from roost.errors import JobError, MeshError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roost.host_mesh import HostMesh

__all__ = ["push"]

# What is sent at once, and how often it is told how far it is.
_PIECE_BYTES = 4 << 20
_TELL_S = 2.0
_PYCACHE = "__pycache__"

_logger = logging.getLogger("roost.job")


class _File(NamedTuple):
    """What a file has to be; a link has its target in place of a hash."""

    path: str
    """Below the folder."""
    mode: int
    size: int
    digest: str


class Receiver(Actor):
    """Has a host's folder become what another host's is."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        os.makedirs(folder, exist_ok=True)

    @endpoint
    def lacks(self, files: list[_File]) -> list[str]:
        """Which of these files are not here, or are different."""
        return [file.path for file in files if not _is_so(os.path.join(self._folder, file.path), file)]

    @endpoint
    def put(self, file: _File, at: int, piece: bytes) -> None:
        """A piece of a file; with the last one it is there, whole."""
        path = os.path.join(self._folder, file.path)
        new = f"{path}.roost-new"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if stat.S_ISLNK(file.mode):
            with suppress(FileNotFoundError):
                os.unlink(new)
            os.symlink(file.digest, new)
        else:
            with open(new, "r+b" if at else "wb") as out:
                out.seek(at)
                out.write(piece)
            if at + len(piece) < file.size:
                return
            os.chmod(new, stat.S_IMODE(file.mode))
        os.replace(new, path)


def _is_so(path: str, file: _File) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if found.st_mode != file.mode:
        return False
    if stat.S_ISLNK(file.mode):
        return os.readlink(path) == file.digest
    return found.st_size == file.size and _digest(path) == file.digest


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files_in(folder: str) -> Iterator[_File]:
    """All files but hidden ones and Python's caches."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != _PYCACHE)
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        for name in sorted([*names, *links]):
            path = os.path.join(where, name)
            found = os.lstat(path)
            inside = os.path.relpath(path, folder)
            if stat.S_ISLNK(found.st_mode):
                yield _File(inside, found.st_mode, 0, os.readlink(path))
            elif stat.S_ISREG(found.st_mode) and not name.startswith("."):
                yield _File(inside, found.st_mode, found.st_size, _digest(path))


async def push(hosts: HostMesh, folder: str, there: str) -> None:
    """Have these hosts have a folder as it is here. What is there besides stays.

    Args:
        hosts: they, attached.
        folder: its whole path here.
        there: its whole path on each of them.

    Raises:
        JobError: it cannot be written there.
    """
    began = time.monotonic()
    files = await asyncio.to_thread(lambda: list(_files_in(folder)))
    # No template: it would live on where there was no such folder yet.
    async with hosts.spawn_procs(name="sync", start="exec") as procs:
        receivers = procs.spawn("receivers", Receiver, there)
        try:
            wanted: dict[str, list[Receiver]] = {}
            for point, paths in (await receivers.lacks.call(files)).items():
                for path in paths:
                    wanted.setdefault(path, []).append(receivers.slice(**point))
            await _send(folder, [file for file in files if file.path in wanted], wanted)
        except (MeshError, OSError) as error:
            raise JobError(f"{there} cannot be written there: {error}") from error
    _logger.info(
        "%s: %d of %d files sent to %d hosts in %.1f s", folder, len(wanted), len(files), len(hosts), time.monotonic() - began
    )  # fmt: skip


async def _send(folder: str, files: list[_File], wanted: dict[str, list[Receiver]]) -> None:
    """Send files to those that want them, and tell how far it is."""
    whole = sum(file.size for file in files)
    sent, told = 0, time.monotonic()
    for file in files:
        for at, piece in _pieces(os.path.join(folder, file.path), file):
            await asyncio.gather(*(one.put.call_one(file, at, piece) for one in wanted[file.path]))
            sent += len(piece)
            if time.monotonic() - told > _TELL_S:
                told = time.monotonic()
                _logger.info("%s: %.1f of %.1f MiB sent", folder, sent / 2**20, whole / 2**20)


def _pieces(path: str, file: _File) -> Iterator[tuple[int, bytes]]:
    """A file's bytes in pieces; an empty one for an empty file, or a link."""
    if stat.S_ISLNK(file.mode) or not file.size:
        yield 0, b""
        return
    # Of a log that is being written only as much as was told: its host takes it for whole then.
    at = 0
    with open(path, "rb") as source:
        while at < file.size:
            piece = source.read(min(_PIECE_BYTES, file.size - at))
            if not piece:
                raise OSError(f"{path} has become shorter while it was sent: take the state again")
            yield at, piece
            at += len(piece)
