"""`--announce`: a file that tells where this host is found, as long as it is."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["announced"]


@contextmanager
def announced(path: str | None, address: str, name: str) -> Iterator[None]:
    """Have a file tell of this host.

    Args:
        path: the file; $NAME in it is that variable. None for none.
        address: where others find the host.
        name: what it calls itself.

    Raises:
        ValueError: it cannot be written.
    """
    if path is None:
        yield
        return
    path = os.path.expandvars(path)
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump({"address": address, "name": name, "pid": os.getpid()}, file)
        # Whole or not at all, for whoever looks.
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise ValueError(f"--announce {path}: it cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
