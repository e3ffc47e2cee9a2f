"""`python -m roost doctor --pair A B`: what B's memory takes to be read from A."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import roost
from roost import Actor, endpoint
from roost.rdma import Buffer, empty

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["measure"]

_SIZES = (4096, 1 << 20, 64 << 20)
# Reads of each size, the first of which finds the way and is not counted.
_TIMES = 6
_TIMEOUT_S = 30.0


class _End(Actor):
    """One of the two hosts."""

    @endpoint
    async def lend(self) -> Buffer:
        return Buffer(empty(max(_SIZES)))

    @endpoint
    async def read(self, buffer: Buffer) -> dict[str, Any]:
        rows: list[dict[str, float]] = []
        for size in _SIZES:
            target = empty(size)
            batch = roost.rdma.Batch().read(buffer[:size], target)
            taken: list[float] = []
            for _ in range(_TIMES):
                start = time.perf_counter()
                await batch.submit(timeout=_TIMEOUT_S)
                taken.append(time.perf_counter() - start)
            best = min(taken[1:])
            rows.append({"bytes": size, "microseconds": best * 1e6, "gigabytes_per_s": size / best / 1e9})
        return {"backend": buffer.backend, "reads": rows}


async def measure(addresses: Sequence[str], key_file: str | None) -> dict[str, Any]:
    """Read memory of the second host's from the first.

    Args:
        addresses: of their agents.
        key_file: their key.

    Raises:
        HostLostError: one of them does not answer.
    """
    async with roost.attach(list(addresses), key_file=key_file) as hosts, hosts.spawn_procs() as procs:
        ends = procs.spawn("pair", _End)
        buffer = await ends.slice(hosts=1).lend.call_one()
        found = await ends.slice(hosts=0).read.call_one(buffer)
        names = list(hosts.names)
    return {"from": names[0], "to": names[1], **found}
