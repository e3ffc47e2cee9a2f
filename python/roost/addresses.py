"""Addresses of hosts: as people type them, read from a file, and resolved to what can be dialled."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from roost.values import Frozen

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

__all__ = [
    "LOOPBACK",
    "Address",
    "address_towards",
    "is_loopback",
    "joined",
    "parse",
    "read_addresses",
    "resolve",
    "runtime_folder",
]

LOOPBACK = "127.0.0.1"
"""What every process reaches its own host by."""

_FORMS = '"host:7000", "[2001:db8::1]:7000" or "unix:/run/host.sock"'
_PORT_MAX = 65535
# Nothing is ever sent there: a datagram socket only looks up the way.
_ANY_PORT = 9
# What `sun_path` holds, with the zero at its end.
_UNIX_PATH_BYTES_MAX = 107


class Address(Frozen):
    """Where a host's agent listens, as it was typed."""

    text: str
    """As it was typed."""
    host: str
    """The name or number; empty for a Unix socket."""
    port: int
    """The TCP port; 0 for a Unix socket, or for one that the system chooses."""
    path: str = ""
    """The path of a Unix socket; empty for TCP."""


def parse(text: object, *, chooses_port: bool = False) -> Address:
    """The address that a text says.

    Args:
        text: the text.
        chooses_port: whether port 0 is allowed, for one that the system chooses.

    Raises:
        TypeError: it is no text.
        ValueError: it has no form of an address; what is wrong with it is said.
    """
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no address: give {_FORMS}")

    def refuse(why: str) -> ValueError:
        return ValueError(f"{text!r} is no address: {why}; give {_FORMS}")

    if not text.strip():
        raise refuse("it is empty")
    if text != text.strip() or not text.isprintable():
        raise refuse("it has spaces around it, or letters that cannot be seen")
    try:
        if text.startswith("unix:"):
            return Address(text, "", 0, _path(text))
        return Address(text, *_host_and_port(text, 0 if chooses_port else 1))
    except ValueError as error:
        raise refuse(str(error)) from None


def _path(text: str) -> str:
    path = text.removeprefix("unix:")
    if not path.startswith("/"):
        raise ValueError("the path of a Unix socket begins with /")
    if len(os.fsencode(path)) > _UNIX_PATH_BYTES_MAX:
        raise ValueError(f"the path of a Unix socket has at most {_UNIX_PATH_BYTES_MAX} bytes")
    return path


def _host_and_port(text: str, port_min: int) -> tuple[str, int]:
    if "//" in text:
        raise ValueError("it is a URL")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        raise ValueError("it has no port")
    if not host:
        raise ValueError("it has no host")
    if not (port.isascii() and port.isdigit() and port_min <= int(port) <= _PORT_MAX):
        raise ValueError(f"{port!r} is no port from {port_min} to {_PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_ipv6(host.partition("%")[0]):
            raise ValueError(f"{host!r} is no IPv6 address")
    elif ":" in host or "[" in host or "]" in host:
        raise ValueError("an IPv6 address stands in brackets")
    elif " " in host or "/" in host:
        raise ValueError(f"{host!r} is no name of a host")
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, host)
    except (OSError, ValueError):
        return False
    return True


def read_addresses(addresses: Sequence[str] | str | os.PathLike[str]) -> list[Address]:
    """The addresses of a list, or of a file that has one a line; what stands behind a # is for people.

    Raises:
        ValueError: one is malformed, one is there twice, or there is none.
        TypeError: they are neither texts nor a path.
        OSError: the file cannot be read.
    """
    if isinstance(addresses, str | os.PathLike):
        where = os.fspath(addresses)
        try:
            with open(where, encoding="utf-8") as file:
                lines = [line.partition("#")[0].strip() for line in file]
        except FileNotFoundError:
            what = f"{where!r} is no file of addresses"
            hint = f"; one address is a list, too: [{where!r}]" if ":" in where else ""
            raise FileNotFoundError(f"{what}{hint}") from None
        found = [_parse_line(where, number, line) for number, line in enumerate(lines, 1) if line]
        if not found:
            raise ValueError(f"{where!r} has no address in it: one a line, as {_FORMS}")
    else:
        found = [parse(one) for one in _listed(addresses)]
        if not found:
            raise ValueError(f"attach([]) attaches nothing: give {_FORMS}")
    seen: set[str] = set()
    for one in found:
        if one.text in seen:
            raise ValueError(f"{one.text!r} is there twice: name each host once")
        seen.add(one.text)
    return found


def _parse_line(where: str, number: int, line: str) -> Address:
    try:
        return parse(line)
    except ValueError as error:
        raise ValueError(f"{where}, line {number}: {error}") from None


def _listed(addresses: Iterable[object]) -> list[object]:
    try:
        return list(addresses)
    except TypeError:
        raise TypeError(f"attach({addresses!r}): give a list of addresses, or the path of a file of them") from None


async def resolve(loop: asyncio.AbstractEventLoop, address: Address) -> list[str]:
    """What can be dialled for an address, in the order in which the system would try it.

    Raises:
        OSError: its name is not known.
    """
    if address.path:
        return [f"unix:{address.path}"]
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{address.host!r} is no name of a host") from None
    return list(dict.fromkeys(joined(*one[4][:2]) for one in found))


def joined(host: object, port: object) -> str:
    """A number and a port as one text."""
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def runtime_folder() -> str | None:
    """Where files live as long as a process: `XDG_RUNTIME_DIR` where that is there and ours, else where temporary files do."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    try:
        return folder if folder and os.stat(folder).st_uid == os.getuid() else None
    except OSError:
        return None


def is_loopback(dialled: str) -> bool:
    """Whether what `resolve` gave leads to this machine alone."""
    return dialled.startswith(("unix:", "127.", "[::1]:", "[::ffff:127."))


def address_towards(other: str) -> str:
    """The numeric address of this host on its way to another one's; no name is looked up and nothing is sent.

    Raises:
        OSError: there is no way to it.
    """
    with socket.socket(socket.AF_INET6 if ":" in other else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, _ANY_PORT))
        return str(probe.getsockname()[0])
