"""`on_one_host`: where all ranks of a group are on one host, what reduces their tensors by shared memory.

Over gloo each number crosses two sockets and four threads; here it is written once, and read by the others.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from roost import libraries
from roost._roost import HostGroup

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["kind_of", "on_one_host"]

_KEY = "host"


@cache
def kind_of(dtype: Any) -> str:
    """What a group on one host calls a dtype: its name, such as "float32", made once."""
    return str(dtype).removeprefix("torch.")


def on_one_host(gloo: Any, store: Any, rank: int, size: int, timeout: timedelta) -> HostGroup | None:
    """Share memory, if all ranks can: all get it or none. Blocks until all have come.

    Args:
        gloo: torch's group of the ranks, by which they agree.
        store: where the first one says how the others reach its memory.
        rank: this one's place.
        size: how many they are.
        timeout: how long it may take.

    Raises:
        RuntimeError: what torch says: a rank has died, or has not come.
    """
    made = HostGroup.make(size) if rank == 0 else None
    if rank == 0:
        store.set(_KEY, "" if made is None else made[1])
        own = None if made is None else made[0]
    else:
        own = HostGroup.open(store.get(_KEY).decode(), size, rank)
    distributed = libraries.distributed()
    options = distributed.AllreduceOptions()
    options.reduceOp = distributed.ReduceOp.MIN
    all_have_it = libraries.torch().tensor([int(own is not None)])
    gloo.allreduce([all_have_it], options).wait(timeout)
    if own is None or not all_have_it.item():
        return None
    own.close_door()
    return own
