"""What /proc tells of processes: their memory, the CPU they used, their descendants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Memory(NamedTuple):
    """In MiB: all that is resident, and the pages that no other process shares."""

    resident: float
    own: float


class Cost(NamedTuple):
    """Nanoseconds on a CPU, and context switches, over all threads."""

    cpu_ns: int
    switches: int


def memory_of(pid: int) -> Memory:
    """Reads one process's memory."""
    resident = own = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key == "Rss":
            resident = int(rest.split()[0])
        elif key.startswith("Private_"):
            own += int(rest.split()[0])
    return Memory(resident / 1024, own / 1024)


def cost_of(pids: Iterable[int]) -> Cost:
    """Adds up every thread of these processes; one that has ended meanwhile is left out."""
    cpu_ns = switches = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                cpu_ns += int((task / "schedstat").read_text().split()[0])
                status = (task / "status").read_text()
            except OSError:
                continue
            switches += sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)
    return Cost(cpu_ns, switches)


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    found: list[int] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        for task in Path(f"/proc/{parent}/task").glob("*"):
            try:
                children = [int(child) for child in (task / "children").read_text().split()]
            except OSError:
                continue
            found += children
            todo += children
    return found
