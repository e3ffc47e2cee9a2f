"""RDMA devices: their ports, addresses, and how far they are from GPUs."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

from roost.cli.findings import Finding
from roost.cli.host_checks import dma_buf, iommu, memlock
from roost.cli.pci import acs, distances

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roost.cli.findings import System

__all__ = ["device_checks"]

_DEVICES = "/sys/class/infiniband"
_NODES = "/dev/infiniband"
# A packet of 4096 bytes, the most that RoCE knows, with its headers.
_MTU_WANTED = 4200
_LIBRARY = "libibverbs.so.1"


class _Port(NamedTuple):
    device: str
    number: str
    state: str
    is_ethernet: bool
    rate: str
    path: str


def device_checks(system: System) -> Iterator[Finding]:
    """Look at RDMA devices, and at what they need of the host."""
    devices = system.names(_DEVICES)
    if not devices:
        text = "there are no RDMA devices here: between hosts, memory is read and written over TCP"
        fix = "" if system.exists(_DEVICES) else "where the host has some: load ib_uverbs and the driver of the device"
        yield Finding("devices", "note", text, fix)
        return
    yield Finding("devices", "ok", ", ".join(devices))
    yield _library()
    yield _nodes(system)
    for device in devices:
        for number in system.names(f"{_DEVICES}/{device}/ports"):
            yield from _port(system, _read_port(system, device, number))
    yield memlock(system)
    yield iommu(system)
    yield dma_buf(system)
    yield from acs(system)
    yield from distances(system, devices)


def _library() -> Finding:
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        fix = "apt install libibverbs1 ibverbs-providers (Debian, Ubuntu), dnf install libibverbs (Fedora, RHEL)"
        return Finding("libibverbs", "error", f"{_LIBRARY} cannot be opened: {error}", fix)
    return Finding("libibverbs", "ok", f"{_LIBRARY} is there")


def _nodes(system: System) -> Finding:
    nodes = [name for name in system.names(_NODES) if name.startswith("uverbs")]
    if not nodes:
        text = f"{_NODES} has no uverbs device, though the kernel has RDMA devices"
        return Finding("/dev/infiniband", "error", text, "modprobe ib_uverbs; docker run --device=/dev/infiniband")
    refused = [name for name in nodes if not system.may_write(f"{_NODES}/{name}")]
    if refused:
        text = f"this user may not use {', '.join(refused)}"
        return Finding("/dev/infiniband", "error", text, f"chmod 0666 {_NODES}/uverbs*, or a udev rule that does it")
    return Finding("/dev/infiniband", "ok", ", ".join(nodes))


def _read_port(system: System, device: str, number: str) -> _Port:
    path = f"{_DEVICES}/{device}/ports/{number}"
    state = (system.read(f"{path}/state") or "unknown").rpartition(":")[2].strip()
    layer = system.read(f"{path}/link_layer")
    return _Port(device, number, state, layer == "Ethernet", system.read(f"{path}/rate") or "unknown rate", path)


def _port(system: System, port: _Port) -> Iterator[Finding]:
    name = f"{port.device} port {port.number}"
    if port.state != "ACTIVE":
        fix = "ip link set up the network device of the port, or plug the cable in; with InfiniBand: a subnet manager has to run"
        yield Finding("port", "warning", f"{name} is {port.state}, and left out", fix)
        return
    yield Finding("port", "ok", f"{name} is ACTIVE, {port.rate}")
    if not port.is_ethernet:
        return
    gids = [number for number in system.names(f"{port.path}/gids") if _is_roce_v2(system, port, number)]
    if not gids:
        fix = "give its network device an address; choose RoCE v2 in the device's firmware or by cma_roce_mode"
        yield Finding("gid", "error", f"{name} has no RoCE v2 address", fix)
        return
    shown = ", ".join(f"{number}: {system.read(f'{port.path}/gids/{number}')}" for number in gids)
    yield Finding("gid", "ok", f"{name} has RoCE v2 addresses: {shown}")
    network = system.read(f"{port.path}/gid_attrs/ndevs/{gids[0]}")
    mtu = system.number(f"/sys/class/net/{network}/mtu") if network else None
    if mtu is not None and mtu < _MTU_WANTED:
        fix = f"ip link set {network} mtu 9000, and so on every switch on the way"
        yield Finding(
            "mtu", "warning", f"{network}, of {name}, has an MTU of {mtu}: packets of 1024 bytes or less", fix
        )
    elif mtu is not None:
        yield Finding("mtu", "ok", f"{network}, of {name}, has an MTU of {mtu}")


def _is_roce_v2(system: System, port: _Port, number: str) -> bool:
    gid = system.read(f"{port.path}/gids/{number}") or ""
    kind = system.read(f"{port.path}/gid_attrs/types/{number}") or ""
    return kind == "RoCE v2" and bool(gid.strip("0:"))
