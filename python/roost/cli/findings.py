"""What `python -m roost doctor` finds, and the files that it looks at."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Finding", "Level", "System"]

Level: TypeAlias = Literal["ok", "note", "warning", "error"]


class Finding(NamedTuple):
    """One thing that was looked at."""

    check: str
    """What was looked at, in a word."""
    level: Level
    """Whether something is to be done: `warning` when it is slower so, `error` when it does not work so."""
    text: str
    fix: str = ""
    """What to do about it."""


class System:
    """The files that tell of this machine, under a root of their own in tests."""

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def path(self, path: str) -> str:
        """Where a file of the system is."""
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str | None:
        """What a file says, without the line's end; None when it is not there or not for us."""
        data = self.read_bytes(path)
        return None if data is None else data.decode(errors="replace").strip()

    def read_bytes(self, path: str) -> bytes | None:
        """The same as bytes."""
        try:
            with open(self.path(path), "rb") as file:
                return file.read()
        except OSError:
            return None

    def lines(self, path: str) -> Iterator[str]:
        """The lines of a file, none when it is not there."""
        try:
            with open(self.path(path), encoding="utf-8", errors="replace") as file:
                yield from file
        except OSError:
            return

    def names(self, path: str) -> list[str]:
        """What a folder has, in order; nothing when it is not there."""
        try:
            return sorted(os.listdir(self.path(path)), key=_natural)
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return os.path.exists(self.path(path))

    def may_write(self, path: str) -> bool:
        """Whether this user may read and write it."""
        return os.access(self.path(path), os.R_OK | os.W_OK)

    def resolved(self, path: str) -> str:
        """Where a link leads, as the system writes it."""
        return "/" + os.path.relpath(os.path.realpath(self.path(path)), os.path.realpath(self.root))

    def free_bytes(self, path: str) -> int | None:
        """The room on the file system that a folder is on; None when it is not there."""
        try:
            found = os.statvfs(self.path(path))
        except OSError:
            return None
        return found.f_bavail * found.f_frsize

    def number(self, path: str) -> int | None:
        """A file with one number."""
        text = self.read(path)
        try:
            return None if text is None else int(text, 0)
        except ValueError:
            return None


def _natural(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
