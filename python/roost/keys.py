"""The key of a host: 64 hexadecimal digits in a file that its owner alone can read."""

from __future__ import annotations

import os
import secrets
import stat

__all__ = ["checked_key", "make_key", "read_key"]

_KEY_BYTES = 32
# Far more than a key and white space; a file that is something else is not read whole.
_FILE_BYTES_MAX = 4096


def make_key(path: str | os.PathLike[str]) -> None:
    """Write a new key to a file of its own, with mode 0600.

    Raises:
        FileExistsError: there is something already: a key is never written over.
        OSError: it cannot be written.
    """
    where = os.fspath(path)
    try:
        fd = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise FileExistsError(f"{where} is there already, and a key is never written over: remove it first") from None
    with open(fd, "w", encoding="ascii") as file:
        # Whatever the umask says.
        os.fchmod(fd, 0o600)
        file.write(f"{secrets.token_hex(_KEY_BYTES)}\n")
        file.flush()
        os.fsync(fd)


def read_key(path: str | os.PathLike[str]) -> bytes:
    """The 64 digits of a key's file.

    Raises:
        OSError: there is no such file, or it cannot be read.
        PermissionError: others can read or change it.
        ValueError: what is in it is no key.
    """
    where = os.fspath(path)
    try:
        file = open(where, "rb")  # noqa: SIM115 - what opening raises is told apart from what reading does
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no key in {where}: `python -m roost key {where}` makes one") from None
    except OSError as error:
        raise type(error)(f"the key in {where} cannot be read: {error.strerror}") from None
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{where} is no file, so no key")
        if status.st_mode & 0o077:
            raise PermissionError(
                f"others can read or change the key in {where} (mode {stat.S_IMODE(status.st_mode):04o}): it is no secret "
                f"any more. Make a new one with `python -m roost key`, or, if nobody has seen it, `chmod 600 {where}`"
            )
        return checked_key(file.read(_FILE_BYTES_MAX), where)


def checked_key(text: bytes, where: str) -> bytes:
    """The 64 digits, without white space around them.

    Args:
        text: what is said to be a key.
        where: where that was read.

    Raises:
        ValueError: it is no key.
    """
    text = text.strip()
    digits = 2 * _KEY_BYTES
    if len(text) < digits:
        raise ValueError(f"the key in {where} is too short: {len(text)} letters, and a key has {digits}")
    if len(text) > digits:
        raise ValueError(f"the key in {where} is too long: a key has {digits} letters")
    if any(letter not in b"0123456789abcdefABCDEF" for letter in text):
        raise ValueError(f"the key in {where} is no key: it has letters that are no hexadecimal digits")
    return text
