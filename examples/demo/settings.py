"""What a run of the demo is made of."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPLICAS_WANTED = 8
REPLICAS_PER_CPU = 2
NODES_WANTED = 16
NODES_PER_CPU = 8
NODE_MIB = 700


def replicas_here() -> int:
    """Eight replicas, or as many as this machine's processors take."""
    return max(2, min(REPLICAS_WANTED, REPLICAS_PER_CPU * (os.cpu_count() or 1)))


def nodes_here() -> int:
    """Sixteen replicas with a node each, or as many as this machine takes, where all nodes are namespaces of it."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free_mib = int(meminfo["MemAvailable"].split()[0]) // 1024
    return max(2, min(NODES_WANTED, NODES_PER_CPU * (os.cpu_count() or 1), free_mib // NODE_MIB - 1))


@dataclass(frozen=True)
class Settings:
    """One training run. Its seed decides the first weights, which modules are held out, and the order of the text."""

    seed: int = 1
    replicas: int = 4
    steps: int = 500
    """Inner steps of each replica."""
    every: int = 20
    """Inner steps between two syncs; 1 averages gradients at every step instead."""
    failure_every_s: float = 3.0
    host_loss_every_s: float = 45.0
    """Of one of a cluster's."""
    detect_within_s: float = 3.0
    batch: int = 8
    context: int = 64
    """Characters that the model sees at once."""
    width: int = 64
    layers: int = 2
    heads: int = 4
    learning_rate: float = 4e-3
    last_steps: int = 100
    """The final training loss is the mean of so many steps."""
