"""Where devices sit on the bus: how far NICs are from GPUs, and what sends their traffic a longer way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roost.cli.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roost.cli.findings import System

__all__ = ["acs", "distances"]

_BUS = "/sys/bus/pci/devices"
# Display, 3D and other display controllers, and processing accelerators, by class; AMD and NVIDIA by vendor.
_GPU_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)
_GPU_VENDORS = (0x1002, 0x10DE)
_BRIDGE_CLASS = 0x0604
# Of the extended configuration: where it begins, and of access control services, by the PCI standard.
_EXTENDED = 0x100
_ACS_ID = 0x000D
_ACS_CONTROL = 6
# Source validation, request and completion redirect, upstream forwarding.
_ACS_REDIRECTS = 0b11101
_CONFIG_BYTES = 0x1000


def acs(system: System) -> Iterator[Finding]:
    """Bridges that send what passes between two devices up to the root and back."""
    bridges = [name for name in system.names(_BUS) if _class(system, name) == _BRIDGE_CLASS]
    configs = {name: system.read_bytes(f"{_BUS}/{name}/config") or b"" for name in bridges}
    redirecting = [name for name, config in configs.items() if _control(config) & _ACS_REDIRECTS]
    if redirecting:
        yield Finding(
            "acs",
            "warning",
            f"{len(redirecting)} PCI bridges send traffic between devices by way of the processor: {', '.join(redirecting[:4])}",
            f"setpci -s {redirecting[0]} ECAP_ACS+6.w=0000, for each of them at every start; or off in the firmware",
        )
    elif bridges and all(len(config) < _CONFIG_BYTES for config in configs.values()):
        yield Finding("acs", "note", "the bridges' access control can be read by root alone", "run the doctor as root")
    elif bridges:
        yield Finding("acs", "ok", "no PCI bridge sends traffic between devices another way")


def _control(config: bytes) -> int:
    """The access control register of a bridge; 0 when it has none, or it is not for us to read."""
    at = _EXTENDED
    # A broken chain may lead in a circle.
    for _ in range(_CONFIG_BYTES // 8):
        if at < _EXTENDED or at + 8 > len(config):
            return 0
        head = int.from_bytes(config[at : at + 4], "little")
        if head & 0xFFFF == _ACS_ID:
            return int.from_bytes(config[at + _ACS_CONTROL : at + _ACS_CONTROL + 2], "little")
        at = head >> 20
    return 0


def distances(system: System, devices: Sequence[str]) -> Iterator[Finding]:
    """By GPU, the NIC that is nearest."""
    nics = {name: _place(system, f"/sys/class/infiniband/{name}/device") for name in devices}
    for gpu in system.names(_BUS):
        if _class(system, gpu) not in _GPU_CLASSES or system.number(f"{_BUS}/{gpu}/vendor") not in _GPU_VENDORS:
            continue
        place = _place(system, f"{_BUS}/{gpu}")
        ways = sorted((_way(system, place, nic), name) for name, nic in nics.items())
        (rank, hops), name = ways[0]
        text = f"GPU {gpu}: the nearest NIC is {name}, {_WORDS[rank]} ({hops} bridges between them)"
        if rank == len(_WORDS) - 1:
            fix = "a NIC in a slot of the GPU's own processor, or procs bound so that each uses a near one"
            yield Finding("distance", "warning", text, fix)
        else:
            yield Finding("distance", "ok", text)


_WORDS = ("behind one switch", "at one root complex", "on one NUMA node", "on another NUMA node")


def _way(system: System, gpu: list[str], nic: list[str]) -> tuple[int, int]:
    """How far two devices are apart: what joins them, and how many bridges there are between."""
    shared = 0
    while shared < min(len(gpu), len(nic)) and gpu[shared] == nic[shared]:
        shared += 1
    hops = max(len(gpu) - shared - 1, 0) + max(len(nic) - shared - 1, 0)
    # The first name is the root complex's; a second one that both have is a bridge above both.
    if shared > 1:
        return 0, hops
    if shared == 1:
        return 1, hops
    nodes = [system.number(f"{_BUS}/{place[-1]}/numa_node") if place else None for place in (gpu, nic)]
    # Where it is not known, it is taken for far.
    near = nodes[0] == nodes[1] and nodes[0] not in (None, -1)
    return (2 if near else 3), hops


def _place(system: System, path: str) -> list[str]:
    """The names from the root complex down to a device; nothing for one that is on no bus."""
    whole = system.resolved(path).split("/")
    root = next((number for number, name in enumerate(whole) if name.startswith("pci")), None)
    return [] if root is None else whole[root:]


def _class(system: System, device: str) -> int | None:
    number = system.number(f"{_BUS}/{device}/class")
    return None if number is None else number >> 8
