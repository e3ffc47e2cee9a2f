"""Where the procs of a job are: how replicas are laid over hosts, and by which numbers they reach each other."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from roost.addresses import LOOPBACK, address_towards, is_loopback, parse

if TYPE_CHECKING:
    from roost.host_mesh import HostMesh
    from roost.mesh import ProcMesh

__all__ = ["home_of", "per_host", "spawn_replicas"]


def home_of(hosts: HostMesh) -> str:
    """The address of this process's host by which trainers on those hosts reach it.

    Raises:
        RuntimeError: the hosts were attached by another process.
    """
    if not hosts.sizes:
        return LOOPBACK
    for reached in hosts._record().reached():
        if not is_loopback(reached):
            with suppress(OSError):
                return address_towards(parse(reached).host)
    # Whoever is on this very host reaches it by any address of it.
    return LOOPBACK


def per_host(hosts: int, spare_hosts: int, replicas: int, procs: int) -> int:
    """How many procs begin on each host that is not spared; those of a replica are together.

    Raises:
        ValueError: they cannot be laid out so.
    """
    if spare_hosts >= hosts:
        raise ValueError(f"FaultTolerantJob spare_hosts={spare_hosts} of {hosts} hosts: none is left to train on")
    used = hosts - spare_hosts
    each, over = divmod(replicas * procs, used)
    if over or (each % procs and procs % each):
        raise ValueError(
            f"FaultTolerantJob: {replicas} replicas of {procs} procs cannot be laid over {used} hosts: "
            "give as many whole replicas to each host, or as many whole hosts to each replica"
        )
    return each


async def spawn_replicas(hosts: HostMesh, spare_hosts: int, replicas: int, procs: int, **options: Any) -> ProcMesh:
    """Procs with the dimensions `replicas` and `procs`, as many on each host as on any other but for those that stand by.

    Args:
        hosts: all of them; the last ones stand by.
        spare_hosts: how many do.
        replicas: how many replicas.
        procs: how many procs each has.
        options: of `spawn_procs`.
    """
    if not hosts.sizes:
        return hosts.spawn_procs({"replicas": replicas, "procs": procs}, name="trainers", **options)
    each = per_host(len(hosts), spare_hosts, replicas, procs)
    used = hosts
    if spare_hosts:
        row = hosts.flatten("hosts")
        first = len(hosts) - spare_hosts
        used = row.slice(hosts=slice(0, first))
        await _warm(row.slice(hosts=slice(first, None)), preload=options["preload"])
    whole = used.spawn_procs({"of_host": each}, name="trainers", **options)
    return whole.flatten("ranks").split(ranks=("replicas", "procs"), procs=procs)


async def _warm(hosts: HostMesh, **options: Any) -> None:
    """Have templates on hosts that stand by: what is lost elsewhere comes to them without importing anything."""
    async with hosts.spawn_procs(name="standing by", **options):
        pass
