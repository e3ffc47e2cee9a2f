"""GPUs: the vendors' libraries, as a process of Roost's would find them, and what they say of devices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from roost import gpus
from roost._roost import gpu_devices, gpu_libraries
from roost.cli.findings import Finding
from roost.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["gpu_checks"]

_COPIES = "two copies"


def gpu_checks() -> Iterator[Finding]:
    """Look for HIP, CUDA, RCCL and NCCL, and for devices. No device is touched."""
    wanted = gpus.wanted()
    try:
        libraries = gpu_libraries(wanted)
    except ValueError as error:
        yield Finding(gpus.PLATFORM, "error", str(error), f"unset {gpus.PLATFORM}, or give it one of these")
        return
    if not libraries:
        yield Finding("gpus", "note", f"{gpus.PLATFORM}={os.environ[gpus.PLATFORM]}: no GPU is looked for")
        return
    for name, path, said in libraries:
        if path is None:
            yield Finding(name, "note", f"not found: {said}")
        elif _COPIES in said:
            fix = "keep one: uninstall the other, or set LD_LIBRARY_PATH so that both names mean one file"
            yield Finding(name, "warning", f"{path}: {said}", fix)
        else:
            yield Finding(name, "ok", f"{path}: {said}")
    try:
        platform, devices = gpu_devices(wanted)
    except Unavailable as error:
        yield Finding("gpus", "note", f"there is no GPU here: {error}")
        return
    for device in devices:
        text = f"{platform} device {device['number']}: {device['name']}, {device['architecture']}, at {device['pci']}"
        yield Finding("gpus", "ok", text)
