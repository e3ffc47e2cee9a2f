"""Where a proc lives: its host, its processors, and what it takes over of the program that spawns it when that is elsewhere."""

from __future__ import annotations

import logging
import os
import site
import sys
import sysconfig

from roost.failure import Bind

__all__ = ["checked_bind", "cpus_of", "search_path_elsewhere"]

_logger = logging.getLogger("roost.placing")
_SYS = "/sys"


def checked_bind(bind: object) -> Bind | None:
    """What `bind=` says.

    Raises:
        TypeError: it is no `Bind`.
    """
    if bind is not None and not isinstance(bind, Bind):
        raise TypeError(
            f"bind={bind!r}: give a roost.Bind(cpus=[…]), (numa_node=…) or (near_gpu=True), or a function that returns one"
        )
    return bind


def cpus_of(bind: Bind) -> list[int] | None:
    """The CPUs of this host to run on: those given, else those of the NUMA node; None for all.

    Raises:
        ValueError: this host has no such node, this process may not run on these CPUs, or it has no GPU to be near to.
    """
    allowed = os.sched_getaffinity(0)
    if bind.near_gpu:
        return _near_gpus(allowed)
    if bind.cpus:
        wanted = list(bind.cpus)
    elif bind.numa_node is not None:
        wanted = _cpus_of_node(bind.numa_node, f"Bind(numa_node={bind.numa_node})")
    else:
        return None
    missing = sorted(set(wanted) - allowed)
    if missing:
        raise ValueError(f"Bind: CPUs {missing} are not there for this process, which may run on {sorted(allowed)}")
    return wanted


def _near_gpus(allowed: set[int]) -> list[int] | None:
    """The CPUs on the nodes of the GPUs that this process sees; None where the machine does not say which these are."""
    from roost import gpus
    from roost._roost import gpu_devices
    from roost.errors import Unavailable

    asked = "Bind(near_gpu=True)"
    try:
        _, devices = gpu_devices(gpus.wanted())
    except Unavailable as error:
        raise ValueError(f"{asked}: {error}") from error
    # Vendors write it in capitals, too.
    places = [device["pci"].lower() for device in devices]
    if not places:
        raise ValueError(f"{asked}: this process sees no GPU; give it some with gpus_per_proc")
    nodes = {node for node in map(_node_of, places) if node is not None}
    if not nodes:
        # Below 0 is what virtual machines and those with one node say.
        _logger.info("%s: this machine does not say at which memory nodes its GPUs are: %s", asked, ", ".join(places))
        return None
    near = {cpu for node in nodes for cpu in _cpus_of_node(node, asked)}
    if not near & allowed:
        raise ValueError(
            f"{asked}: the GPUs are at {', '.join(places)}, near CPUs {sorted(near)}, and this process may run on {sorted(allowed)}"
        )
    return sorted(near & allowed)


def _node_of(place: str) -> int | None:
    """The memory node of the device at a PCI address."""
    try:
        with open(f"{_SYS}/bus/pci/devices/{place}/numa_node") as file:
            node = int(file.read())
    except OSError:
        return None
    return node if node >= 0 else None


def _cpus_of_node(node: int, asked: str) -> list[int]:
    path = f"{_SYS}/devices/system/node/node{node}/cpulist"
    try:
        with open(path) as file:
            text = file.read().strip()
    except OSError:
        raise ValueError(f"{asked}: this host has no such node ({path})") from None
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def search_path_elsewhere(entries: list[str]) -> list[str]:
    """What of this process's `sys.path` a proc on another host looks through, behind its interpreter's own.

    What belongs to this installation of Python, or to its virtual environment, is of no use there.
    """
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    own = {sysconfig.get_path(name) for name in names} | {*site.getsitepackages(), site.getusersitepackages()}
    folders = tuple(os.path.join(folder, "") for folder in own if folder)
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    return [
        entry or os.getcwd()
        for entry in entries
        if not os.path.join(entry, "").startswith(folders) and os.path.basename(entry) != archive
    ]
