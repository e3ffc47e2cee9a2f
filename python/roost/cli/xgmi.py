"""How AMD's GPUs of this host are joined: by xGMI, or by PCIe alone."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from roost.cli.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roost.cli.findings import System

__all__ = ["xgmi"]

# Where the kernel's driver for compute shows what it knows (`amdkfd`); its number for a link of xGMI.
_NODES = "/sys/class/kfd/kfd/topology/nodes"
_XGMI = 11


def xgmi(system: System) -> Iterator[Finding]:
    """Which pairs of GPUs have a link of their own; nothing where there are not two."""
    gpus = [node for node in system.names(_NODES) if system.number(f"{_NODES}/{node}/gpu_id")]
    pairs = list(combinations(gpus, 2))
    if not pairs:
        return
    linked = {(node, other) for node in gpus for other in _linked_to(system, node)}
    apart = [f"{one} and {other}" for one, other in pairs if (one, other) not in linked]
    if apart:
        text = f"of {len(gpus)} GPUs, nodes {', '.join(apart)} of {_NODES} are not joined by xGMI: between them all goes over PCIe"
        yield Finding("xgmi", "note", text)
    else:
        yield Finding("xgmi", "ok", f"{len(gpus)} GPUs, each joined to each by xGMI")


def _linked_to(system: System, node: str) -> Iterator[str]:
    """The nodes that one has a link of xGMI to."""
    links = f"{_NODES}/{node}/io_links"
    for link in system.names(links):
        lines = [line.split() for line in system.lines(f"{links}/{link}/properties")]
        if ["type", str(_XGMI)] in lines:
            yield from (said[1] for said in lines if said[0] == "node_to")
