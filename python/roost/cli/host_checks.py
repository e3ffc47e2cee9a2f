"""What one-sided memory needs of a host, with or without RDMA devices."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from roost.cli.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roost.cli.findings import System

__all__ = ["host_checks"]

_GIB = 1 << 30
# What libraries beside Roost, such as torch's data loaders, put there.
_SHM_BYTES_WANTED = _GIB
_PTRACE_FIX = "sysctl -w kernel.yama.ptrace_scope=1, or memory of roost.rdma.empty(), which needs no permission"


def host_checks(system: System) -> Iterator[Finding]:
    """Look at everything that counts without a device, too."""
    yield ptrace(system)
    yield huge_pages(system)
    yield from shared_memory(system)


def ptrace(system: System) -> Finding:
    """Whether a process may copy the memory of another of the same user."""
    scope = system.number("/proc/sys/kernel/yama/ptrace_scope")
    if scope is None or scope == 0:
        return Finding("ptrace scope", "ok", "procs of one user may copy each other's memory")
    if scope == 1:
        return Finding(
            "ptrace scope", "ok", "1: procs may copy each other's memory, since the owner allows it (PR_SET_PTRACER)"
        )
    text = "2: only with CAP_SYS_PTRACE" if scope == 2 else f"{scope}: nobody"  # noqa: PLR2004 - as the kernel counts
    return Finding(
        "ptrace scope",
        "warning",
        f"{text} may copy another's memory: on this host it goes through the owner's engine, which is slower",
        _PTRACE_FIX,
    )


def huge_pages(system: System) -> Finding:
    """Whether large memory is of huge pages by itself."""
    of_programs = _chosen(system.read("/sys/kernel/mm/transparent_hugepage/enabled"))
    of_shared = _chosen(system.read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    if of_programs is None:
        return Finding("huge pages", "note", "this kernel has no transparent huge pages")
    if of_programs == "never":
        return Finding(
            "huge pages",
            "note",
            "transparent huge pages are off: copies of large memory take longer",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    if of_shared in ("never", "deny"):
        return Finding(
            "huge pages",
            "note",
            f"transparent huge pages: {of_programs}, but not for shared memory ({of_shared})",
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        )
    return Finding(
        "huge pages", "ok", f"transparent huge pages: {of_programs}, for shared memory: {of_shared or 'unknown'}"
    )


def shared_memory(system: System) -> Iterator[Finding]:
    """How much memory can be shared. Roost's own is of no file system, so that only memory bounds it."""
    limit = _cgroup_limit(system)
    if limit is not None:
        yield Finding("shared memory", "note", f"what procs share counts against the {_size(limit)} of this container")
    free = system.free_bytes("/dev/shm")  # noqa: S108 - looked at only
    if free is not None and free < _SHM_BYTES_WANTED:
        yield Finding(
            "shared memory",
            "note",
            f"/dev/shm has {_size(free)} left; Roost does not use it, but torch's data loaders and gloo do",  # noqa: S108
            "docker run --shm-size=8g, or mount -o remount,size=8G /dev/shm",
        )
    elif limit is None:
        yield Finding("shared memory", "ok", "bounded by the host's memory alone")


def memlock(system: System) -> Finding:
    """How much memory may be registered with a device."""
    soft = _limit(system, "Max locked memory")
    if soft is None or soft == "unlimited":
        return Finding("memlock", "ok", "as much memory as wanted may be registered")
    fix = "ulimit -l unlimited; for good: '* - memlock unlimited' in /etc/security/limits.conf, docker run --ulimit memlock=-1"
    return Finding("memlock", "error", f"only {_size(int(soft))} of memory may be registered with a device", fix)


def iommu(system: System) -> Finding:
    """Whether devices reach memory without a translation each time."""
    command_line = f" {system.read('/proc/cmdline') or ''} "
    groups = system.names("/sys/kernel/iommu_groups")
    if not groups:
        return Finding("iommu", "ok", "devices reach memory as it is: there is no IOMMU, or it is off")
    kinds = {system.read(f"/sys/kernel/iommu_groups/{group}/type") or "unknown" for group in groups}
    if " iommu=pt " in command_line or " iommu.passthrough=1 " in command_line or kinds == {"identity"}:
        return Finding("iommu", "ok", "devices reach memory as it is (passthrough)")
    return Finding(
        "iommu",
        "warning",
        f"the IOMMU translates what devices read and write ({', '.join(sorted(kinds))}): slower, and between devices often refused",
        "add iommu=pt to the kernel's command line (with intel_iommu=on or amd_iommu=on), and start the host anew",
    )


def dma_buf(system: System) -> Finding:
    """Whether the kernel can register a GPU's memory with a NIC."""
    release = system.read("/proc/sys/kernel/osrelease") or os.uname().release
    peer = [name for name in ("nvidia_peermem", "ib_peer_mem") if system.exists(f"/sys/module/{name}")]
    peer += system.names("/sys/kernel/mm/memory_peers")
    known = any(" ib_umem_dmabuf_get" in line for line in system.lines("/proc/kallsyms"))
    numbers = re.match(r"(\d+)\.(\d+)", release)
    # Where the names of the kernel are hidden, its number has to do: 5.12 is the first that can.
    if known or (numbers and (int(numbers[1]), int(numbers[2])) >= (5, 12)):
        return Finding("dma-buf", "ok", f"kernel {release} registers a GPU's memory as a dma-buf")
    if peer:
        return Finding(
            "dma-buf", "ok", f"kernel {release} has no dma-buf for RDMA, but peer memory by {', '.join(peer)}"
        )
    return Finding(
        "dma-buf",
        "warning",
        f"kernel {release} cannot register a GPU's memory with a NIC: it goes by way of the host's",
        "a kernel from 5.12 on, or the driver's peer-memory module (amdgpu-dkms, nvidia-peermem)",
    )


def _chosen(text: str | None) -> str | None:
    """The word in brackets of `always [madvise] never`."""
    found = re.search(r"\[(\w+)\]", text or "")
    return found[1] if found else None


def _limit(system: System, name: str) -> str | None:
    for line in system.lines("/proc/self/limits"):
        if line.startswith(name):
            return line[len(name) :].split()[0]
    return None


def _cgroup_limit(system: System) -> int | None:
    text = system.read("/sys/fs/cgroup/memory.max")
    return int(text) if text and text.isdigit() else None


def _size(count: int) -> str:
    for unit, name in ((_GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"
