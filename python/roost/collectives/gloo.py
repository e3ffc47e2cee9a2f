"""`Gloo`: one member's end of a gloo group that any thread can abort. And the stores where members find each other."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from roost import libraries
from roost.collectives.sockets import Connection, connections_since, listening_since, shut, sockets_now

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Gloo", "connected_store", "port_of", "served_store"]

# The library does not say where it listens: it is seen from outside, for one group at a time.
_one_begins_to_listen = threading.Lock()
# More than some weeks is too much for the library.
_FOR_EVER = timedelta(days=1)


class Gloo:
    """A gloo group as it is made, used, and aborted.

    It listens from the beginning, so its port can be told to the others before they connect.

    Args:
        address: the numeric address that this process listens on and is reached by; nothing is looked up.
    """

    def __init__(self, address: str) -> None:
        with _one_begins_to_listen:
            self._before = sockets_now()
            self._device = libraries.distributed().ProcessGroupGloo.create_device(hostname=address)
            self.port = listening_since(self._before)
        self._lock = threading.Lock()
        # Where connections lead to that are this group's: to its store at first, then to its members, too.
        self._reached: frozenset[int] = frozenset()
        # All that it has, once it has them; taken away before the library closes them.
        self._connections: tuple[Connection, ...] | None = None
        self._aborted: str | None = None
        self.group: Any = None

    @property
    def aborted(self) -> str | None:
        """Why it was aborted, if it was."""
        return self._aborted

    def reaches(self, ports: Iterable[int]) -> None:
        """Connections to these ports are this group's, too: an abort ends them."""
        with self._lock:
            self._reached |= frozenset(ports)
            if self._aborted is not None:
                self._shut()

    def connect(self, store: Any, rank: int, world: int, timeout: timedelta) -> None:
        """Connect with all members. Blocks the thread until they have come; an abort ends it with an error.

        Args:
            store: where the members find each other.
            rank: this one's place.
            world: how many they are.
            timeout: how long that may take.

        Raises:
            RuntimeError: what the library says.
        """
        gloo = libraries.distributed().ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timeout
        options._devices = [self._device]
        group = gloo(store, rank, world, options)
        # Who waits for an operation says how long it may take; left to itself it is no longer than making the group.
        group._set_default_timeout(_FOR_EVER)
        with self._lock:
            self.group = group
            self._connections = connections_since(self._before, self.port, self._reached)
            if self._aborted is not None:
                self._shut()

    def abort(self, reason: str) -> None:
        """End what the group is doing: whoever waits in it gets an error within milliseconds. Again and again is fine."""
        with self._lock:
            if self._aborted is None:
                self._aborted = reason
                self._shut()

    def close(self) -> None:
        """Let the group go. Blocks until the library's threads have ended."""
        with self._lock:
            group, self.group, self._connections, self._device = self.group, None, (), None
        # Outside the lock: it waits for the library's threads.
        del group

    def _shut(self) -> None:
        known = self._connections
        shut(connections_since(self._before, self.port, self._reached) if known is None else known)


def served_store(address: str) -> tuple[Any, str]:
    """A new store on a free port of one address: its server, which lives as long as it is held, and its "host:port"."""
    # Left to itself torch listens on every address of the host.
    listening = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = listening.getsockname()[1]
    server = libraries.distributed().TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    return server, f"{address}:{port}"


def connected_store(store: str, timeout: timedelta) -> Any:
    """A client of the store at "host:port".

    Raises:
        OSError: nobody listens there.
        RuntimeError: what the library says.
    """
    host, _, port = store.rpartition(":")
    # torch goes on dialling a store that is gone for its whole time-out; this asks once.
    socket.create_connection((host, int(port)), timeout.total_seconds()).close()
    return libraries.distributed().TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timeout)


def port_of(store: str) -> int:
    """The port of "host:port"."""
    return int(store.rpartition(":")[2])
