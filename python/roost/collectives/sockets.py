"""The sockets that a library opens for a group, so that its collectives can be ended from outside.

gloo has no abort: its `abort()` returns at once and leaves a collective where it is for its whole time-out. What ends one is the end
of its connections. A listening socket is left alone: its end kills the process.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Connection", "connections_since", "listening_since", "shut", "sockets_now"]

_FDS = "/proc/self/fd"


@dataclass(frozen=True, slots=True)
class Connection:
    """A connected socket of this process."""

    fd: int
    inode: str
    """What the descriptor is, since its number may come to mean another one."""


def sockets_now() -> dict[int, str]:
    """All sockets of this process: what each descriptor is."""
    found: dict[int, str] = {}
    for name in os.listdir(_FDS):
        # The one that lists them is gone by now.
        with suppress(OSError):
            inode = os.readlink(f"{_FDS}/{name}")
            if inode.startswith("socket:"):
                found[int(name)] = inode
    return found


def connections_since(before: dict[int, str], own_port: int, ports: frozenset[int]) -> tuple[Connection, ...]:
    """The connections that were opened since `before` for a group.

    Args:
        before: what `sockets_now` gave.
        own_port: where this process listens for the group.
        ports: where its peers do, and its store.
    """
    found: list[Connection] = []
    for fd, inode in sockets_now().items():
        if before.get(fd) == inode:
            continue
        with suppress(OSError):
            with socket.socket(fileno=os.dup(fd)) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6) or one.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                ):
                    continue
                here, there = one.getsockname()[1], one.getpeername()[1]
            if here == own_port or there in ports:
                found.append(Connection(fd, inode))
    return tuple(found)


def listening_since(before: dict[int, str]) -> int:
    """The port of the socket that listens since `before`; 0 when there is none."""
    for fd, inode in sockets_now().items():
        if before.get(fd) == inode:
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                return int(one.getsockname()[1])
    return 0


def shut(connections: tuple[Connection, ...]) -> None:
    """End connections without closing their descriptors, which are the library's."""
    for connection in connections:
        with suppress(OSError):
            if os.readlink(f"{_FDS}/{connection.fd}") != connection.inode:
                continue
            with socket.socket(fileno=os.dup(connection.fd)) as one:
                one.shutdown(socket.SHUT_RDWR)
