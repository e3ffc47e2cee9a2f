"""The quorum service of a job: its procs, and the actors in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from roost import process
from roost.failure import Restart
from roost.ft.coordinator import Coordinator
from roost.ft.lighthouse import Lighthouse
from roost.ft.stores import Stores
from roost.running import this_host

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from roost.failure import Failure
    from roost.ft.companion import Companion
    from roost.ft.ledger import Ledger
    from roost.ft.timeouts import Timeouts
    from roost.mesh import ProcMesh, SpawnOptions

__all__ = ["Counts", "housed", "served", "watched"]

_ALWAYS = Restart(limit=1000, within_s=60, backoff_s=(0.0, 0.1), while_down="wait")


@dataclass(frozen=True, slots=True)
class Counts:
    """How many there are."""

    replicas: int
    procs: int
    """Of each replica."""
    min_replicas: int
    """With fewer that live the others wait."""
    donors: int = 1
    """From how many a newcomer takes its state at once."""


async def housed(
    stack: AsyncExitStack, quorum: Literal["roost", "torchft"], preload: Sequence[str]
) -> dict[str, ProcMesh]:
    """The procs of the quorum service and of the stores, which `stack` stops; torchft's managers lose both or none."""
    host, enter = this_host(), stack.enter_async_context
    if quorum == "torchft":
        both = await enter(host.spawn_procs(name="ft-quorum", restart=_ALWAYS, preload=preload))
        return {"quorum service": both, "stores": both}
    stores = await enter(host.spawn_procs(name="ft-stores", restart=_ALWAYS, preload=preload))
    return {"quorum service": await enter(host.spawn_procs(name="ft-quorum", restart=_ALWAYS)), "stores": stores}


async def served(
    homes: dict[str, ProcMesh],
    quorum: Literal["roost", "torchft"],
    companions: Companion,
    ledger: Ledger,
    address: str,
    timeouts: Timeouts,
    counts: Counts,
) -> Coordinator | Lighthouse:
    """What forms quorums, in the procs that `housed` gave; what it listens on has this address."""
    home = watched(homes["quorum service"], timeouts)
    if quorum == "torchft":
        return await home.spawn("ft-lighthouse", Lighthouse, companions, ledger, address, timeouts, counts)
    stores = await watched(homes["stores"], timeouts).spawn("ft-stores", Stores, address)
    return await home.spawn("ft-coordinator", Coordinator, companions, stores, ledger, counts)


def watched(procs: ProcMesh, timeouts: Timeouts) -> SpawnOptions:
    """Procs whose actors are probed: one that does not answer is gone, and its process is to go too."""

    async def end(failure: Failure) -> bool:
        process.current().control.kill(list(procs.slice(**failure.point)._members()), failure.reason)
        return True

    return procs.options(probe=timeouts.probe, supervise=end)
