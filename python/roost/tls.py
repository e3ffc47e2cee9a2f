"""`Tls`: certificates of one's own, in place of those that a job makes for itself."""

from __future__ import annotations

import os

from roost.values import Frozen

__all__ = ["Tls"]


class Tls(Frozen, kw_only=True):
    """Where the certificates of one's own public key infrastructure lie, as PEM files.

    Both ends prove themselves: the agent of a host by a certificate of the same authorities.

    Raises:
        TypeError: what is given is no path.
    """

    ca: str | os.PathLike[str]
    """The authorities that the other end's certificate may be from."""
    certificate: str | os.PathLike[str]
    """This end's certificate, and those between it and the authority."""
    key: str | os.PathLike[str]
    """The private key of that certificate; a file that its owner alone can read."""

    def __post_init__(self) -> None:
        for name in Tls._field_names:
            value: object = self.__dict__[name]
            if not isinstance(value, str | os.PathLike) or not os.fspath(value):
                raise TypeError(f"Tls {name}={value!r}: give the path of a PEM file")

    def _read(self) -> tuple[bytes, bytes, bytes]:
        """What is in the files: roots, chain, key.

        Raises:
            OSError: one cannot be read.
            PermissionError: others can read the private key.
            ValueError: one is no PEM file.
        """
        return _pem("ca", self.ca), _pem("certificate", self.certificate), _pem("key", self.key, secret=True)


def _pem(name: str, path: str | os.PathLike[str], *, secret: bool = False) -> bytes:
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read()
    except OSError as error:
        raise type(error)(f"Tls {name}: {where} cannot be read: {error.strerror}") from None
    if secret and mode & 0o077:
        raise PermissionError(
            f"Tls {name}: others can read or change the private key in {where} (mode {mode:04o}): `chmod 600 {where}`"
        )
    if b"-----BEGIN " not in text:
        raise ValueError(f"Tls {name}: {where} is no PEM file: it has no line -----BEGIN …-----")
    return text
