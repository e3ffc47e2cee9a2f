"""Where a proc lives: its host, its processors, and what it takes over of the program that spawns it when that is elsewhere."""

from __future__ import annotations

import os
import site
import sys
import sysconfig

from roost.failure import Bind

__all__ = ["checked_bind", "cpus_of", "search_path_elsewhere"]


def checked_bind(bind: object) -> Bind | None:
    """What `bind=` says.

    Raises:
        TypeError: it is no `Bind`.
    """
    if bind is not None and not isinstance(bind, Bind):
        raise TypeError(
            f"bind={bind!r}: give a roost.Bind(cpus=[…]) or roost.Bind(numa_node=…), or a function that returns one"
        )
    return bind


def cpus_of(bind: Bind) -> list[int] | None:
    """The CPUs of this host to run on: those given, else those of the NUMA node; None for all.

    Raises:
        ValueError: this host has no such node, or this process may not run on these CPUs.
    """
    if bind.cpus:
        wanted = list(bind.cpus)
    elif bind.numa_node is not None:
        path = f"/sys/devices/system/node/node{bind.numa_node}/cpulist"
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            raise ValueError(f"Bind(numa_node={bind.numa_node}): this host has no such node ({path})") from None
        wanted = []
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            wanted += range(int(first), int(last or first) + 1)
    else:
        return None
    missing = sorted(set(wanted) - os.sched_getaffinity(0))
    if missing:
        raise ValueError(
            f"Bind: CPUs {missing} are not there for this process, which may run on {sorted(os.sched_getaffinity(0))}"
        )
    return wanted


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
