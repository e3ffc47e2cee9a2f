"""Which GPUs this process may use: `ROOST_GPU_PLATFORM`, and where wheels keep the vendors' libraries."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from pathlib import Path

__all__ = ["wanted"]

PLATFORM = "ROOST_GPU_PLATFORM"

# Packages that bring libraries of their own, and where they keep them.
_PACKAGES = {
    "torch": ("lib",), "_rocm_sdk_core": ("lib",), "nvidia": ("cu13/lib", "cuda_runtime/lib", "nccl/lib", "rccl/lib"),
}  # fmt: skip


def wanted() -> tuple[str, list[str]]:
    """What the extension is told: the platform that the user wants, empty to look, and the folders of installed wheels.

    No library is opened, and no package imported, by this.
    """
    return os.environ.get(PLATFORM, ""), _folders()


@functools.cache
def _folders() -> list[str]:
    found: list[str] = []
    for package, folders in _PACKAGES.items():
        spec = find_spec(package)
        for place in () if spec is None else spec.submodule_search_locations or ():
            found += [str(path) for folder in folders if (path := Path(place) / folder).is_dir()]
    return found
