"""torch and torchft, as far as they are installed: `import roost` needs neither, and type checkers do not look for them."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from roost.errors import Unavailable

__all__ = ["TORCHFT", "check_torch", "check_torchft", "coordination", "distributed", "local_sgd", "torch", "torchft"]

TORCHFT = "0.2"
"""The versions of torchft whose classes are known to take our manager for theirs."""
_silent = logging.NullHandler()


def torch() -> Any:
    """The module.

    Raises:
        Unavailable: it is not installed.
    """
    try:
        return import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Unavailable("this needs torch, which is not installed here: pip install torch") from None


def distributed() -> Any:
    """`torch.distributed`."""
    return import_module("torch.distributed")


def torchft() -> Any:
    """The module."""
    return _of_torchft("torchft")


def local_sgd() -> Any:
    """`torchft.local_sgd`, which brings LocalSGD and DiLoCo."""
    return _of_torchft("torchft.local_sgd")


def coordination() -> Any:
    """`torchft.coordination`, which brings its lighthouse."""
    return _of_torchft("torchft.coordination")


def _of_torchft(name: str) -> Any:
    # Its Rust half logs to stderr at the first import.
    os.environ.setdefault("RUST_LOG", "warn")
    # What it logs of each failure is for those who ask for it: a library's warnings go to stderr where nobody has set anything up.
    logging.getLogger("torchft").addHandler(_silent)
    return import_module(name)


def check_torch() -> None:
    """Refuse to begin without torch.

    Raises:
        Unavailable: it is not installed.
    """
    _version_of("torch", "torch")


def check_torchft() -> None:
    """Refuse to begin without a torchft that is known.

    Raises:
        Unavailable: it is not installed, or of another version.
    """
    found = _version_of("torchft", "torchft==0.2.0")
    if found.split(".")[:2] != TORCHFT.split("."):
        raise Unavailable(
            f'LocalSGD, DiLoCo and quorum="torchft" want torchft {TORCHFT}, and {found} is installed: pip install torchft==0.2.0'
        )


def _version_of(name: str, wanted: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        raise Unavailable(f"roost.ft needs {name}, which is not installed here: pip install {wanted}") from None
