"""torchft's managers as they are made here: with what avoids the traps of its defaults."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from roost import libraries
from roost.ft.lighthouse import NEVER_S
from roost.ft.quorum import id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.errors import CollectiveError
    from roost.ft.averages import Watched
    from roost.ft.group import GlooGroup
    from roost.ft.lighthouse import Entry
    from roost.ft.timeouts import Timeouts

__all__ = ["Settings", "manager_for"]

_logger = logging.getLogger("roost.ft")

# They beat what a manager is made with.
_OVERRIDES = (
    "TORCHFT_TIMEOUT_SEC", "TORCHFT_QUORUM_TIMEOUT_SEC", "TORCHFT_CONNECT_TIMEOUT_SEC", "TORCHFT_QUORUM_RETRIES",
)  # fmt: skip
_BEATS = 10
"""How many heartbeats may be missing before a replica counts as dead."""
_MANAGER_KEY = "manager_addr"
"""Where a manager says in its store by which address the others of its replica reach it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What stays the same in all managers of a life."""

    address: str
    """The numeric address by which others reach this process: nothing is looked up."""
    proc: int
    procs: int
    """How many a replica has."""
    min_replicas: int
    """With fewer no step counts."""
    timeouts: Timeouts
    transport: Callable[[], Any]
    """Makes a checkpoint transport, one for each manager."""


def manager_for(entry: Entry, settings: Settings, watched: Watched, group: GlooGroup) -> tuple[Any, int]:
    """One of torchft's managers, and the port of its server.

    Args:
        entry: the lighthouse that it knows, and its store.
        settings: the life's.
        watched: who is told of phases.
        group: what it configures for each quorum.

    Raises:
        OSError: nobody listens where the store was.
    """
    for name in _OVERRIDES:
        if os.environ.pop(name, None) is not None:
            _logger.warning("%s is left out: it would change what detect_within_s says", name)
    host, _, port = entry.store.rpartition(":")
    timeouts = settings.timeouts
    # torch goes on dialling a store that is gone for five minutes; this asks once.
    socket.create_connection((host, int(port)), timeouts.group_s).close()
    manager = libraries.torchft().Manager(
        pg=_Configured(group, entry.epoch, watched.reached), load_state_dict=None, state_dict=None, use_async_quorum=False,
        min_replica_size=settings.min_replicas, rank=settings.proc, world_size=settings.procs,
        # In it others take their state.
        timeout=timedelta(seconds=timeouts.collective_s(is_healing=True)),
        quorum_timeout=timedelta(seconds=NEVER_S), connect_timeout=timedelta(seconds=timeouts.group_s),
        heartbeat_interval=timedelta(seconds=timeouts.heartbeat_s / _BEATS), lighthouse_addr=entry.lighthouse,
        store_addr=host, store_port=int(port), hostname=settings.address, replica_id=f"replica_{watched.replica}",
        checkpoint_transport=settings.transport(),
    )  # fmt: skip
    address = manager._store.get(_MANAGER_KEY).decode()
    return manager, int(address.rpartition(":")[2])


class _Configured:
    """Our group, as torchft's manager configures it. Its lighthouse counts quorums from 1 in each of its lives; here they go on."""

    def __init__(self, group: GlooGroup, epoch: int, reached: Callable[[str], None]) -> None:
        self._group = group
        self._epoch = epoch
        self._reached = reached

    def configure(
        self, store_addr: str, replica_id: str, rank: int, world_size: int, quorum_id: int | None = None, *_: object
    ) -> None:
        """Make the group of a quorum."""
        self._reached("quorum_joined")
        assert quorum_id is not None
        self._group.configure(store_addr, id_of(self._epoch, quorum_id), rank, world_size)
        self._reached("group_formed")

    def errored(self) -> CollectiveError | None:
        """What goes wrong in a collective is reported where it is waited for."""
        return None
