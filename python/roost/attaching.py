"""`attach`: from addresses to a mesh of hosts."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from roost import process
from roost.addresses import parse, read_addresses
from roost.candidates import Source
from roost.host_mesh import HostMesh
from roost.ids import new_id
from roost.joining import Attaching
from roost.keys import read_key
from roost.owned_hosts import OwnedHosts
from roost.shape import Shape
from roost.tls import Tls
from roost.values import check_finite, check_flag, check_integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost.addresses import Address

__all__ = ["attach", "attach_named"]

_logger = logging.getLogger("roost")


def attach(
    addresses: Sequence[str] | str | os.PathLike[str] = (),
    *,
    listen: str | None = None,
    key_file: str | os.PathLike[str] | None = None,
    tls: Tls | None = None,
    insecure_plaintext: bool = False,
    timeout: float = 30.0,
    wait_for: int | Sequence[str] | None = None,
    lease_s: float | None = None,
) -> HostMesh:
    """Hosts where agents (`python -m roost host`) listen, as a mesh with the dimension `hosts`; returns at once.

    `async with`, or `await hosts.ready()`, waits until they are there.

    Args:
        addresses: a list of "host:port", "[v6]:port" or "unix:PATH", or the path of a file that has one a line.
        listen: "host:port" or "[v6]:port" where this program is called by agents that it does not know (`python -m roost host
            --join`), in place of addresses; it then dials them. Wants `key_file` and `wait_for`.
        key_file: the file with the key that the agents were started with.
        tls: certificates of one's own, where the agents have such too.
        insecure_plaintext: do without TLS, as the agents must: whoever is on the way can read and change everything.
        timeout: seconds in which a host must answer, and with `wait_for` in which all must be there.
        wait_for: go on trying until so many of the hosts are there; the mesh has so many then, in the order of the addresses,
            and a file of addresses is read again at each attempt. When left out all must be there, and the first that cannot
            be reached is an error at once. With `listen` the mesh is in the order in which they came; or it is the names of
            the hosts that are wanted, in the order of the mesh.
        lease_s: seconds that a host lives without a sign of this program before it ends what this has there;
            `Config.lease_s` when left out.

    Raises:
        ValueError: an address that is none or that is there twice, a key that is none, or numbers that make no sense.
        OSError: a file that cannot be read, a key that others can read, or an address where nobody can listen.
        RuntimeError: this process is no driver.
    """
    return attach_named(
        "hosts", addresses, listen=listen, key_file=key_file, tls=tls, insecure_plaintext=insecure_plaintext, timeout=timeout,
        wait_for=wait_for, lease_s=lease_s,
    )  # fmt: skip


def attach_named(
    name: str,
    addresses: Sequence[str] | str | os.PathLike[str] = (),
    *,
    listen: str | None = None,
    key_file: str | os.PathLike[str] | None = None,
    tls: Tls | None = None,
    insecure_plaintext: bool = False,
    timeout: float = 30.0,
    wait_for: int | Sequence[str] | None = None,
    lease_s: float | None = None,
) -> HostMesh:
    """The same, as a mesh of this name."""
    check_flag("attach", "insecure_plaintext", insecure_plaintext, "whether the connections go without TLS")
    check_finite("attach", "timeout", timeout, above=0, instead="give the seconds in which a host must answer")
    if lease_s is not None:
        check_finite("attach", "lease_s", lease_s, above=0, instead="leave it out for Config.lease_s")
    pki = _pki(tls)
    if pki is not None and insecure_plaintext:
        raise ValueError("tls= and insecure_plaintext=True contradict each other: give one of them")
    key = None if key_file is None else read_key(key_file)
    given = {
        "key": key,
        "pki": pki,
        "plaintext": insecure_plaintext,
        "lease_s": None if lease_s is None else float(lease_s),
    }
    config = {name: value for name, value in given.items() if value is not None}
    running = process.running()
    if running is not None and not running.is_driver:
        raise RuntimeError("attach() works in the driver: attach the hosts there, and hand the mesh out")
    source = _listed(addresses, wait_for) if listen is None else _calling(addresses, listen, wait_for, key)
    # Only now: a plain script has a thread of ours from here on.
    runtime = process.current()
    if insecure_plaintext:
        _warn_of_plaintext()
    mesh = new_id()
    whole = Shape({"hosts": source.wait_for or len(source.addresses)})
    record = OwnedHosts(runtime, mesh, name, whole)
    handle = HostMesh._make(mesh, name, runtime.proc, whole, whole, None)
    record.attaching = Attaching(runtime, record, source, float(timeout), config)
    runtime.own(record, handle)
    runtime.on_loop(record.attaching.begin)
    return handle


def _listed(addresses: Sequence[str] | str | os.PathLike[str], wait_for: int | Sequence[str] | None) -> Source:
    """Hosts whose addresses are known, or will stand in a file."""
    found = read_addresses(addresses)
    path = os.fspath(addresses) if isinstance(addresses, str | os.PathLike) else None
    if wait_for is None:
        return Source(found)
    count = _count(wait_for, "leave it out to want all hosts at once")
    if path is None and count > len(found):
        raise ValueError(f"attach: wait_for={count} hosts, and there are {len(found)} addresses")
    return Source(found, path, wait_for=count)


def _calling(addresses: object, listen: str, wait_for: int | Sequence[str] | None, key: bytes | None) -> Source:
    """Hosts that call."""
    address = parse(listen)
    if address.path:
        raise ValueError(f"attach: listen={listen!r}: agents call by TCP, so give host:port")
    if addresses != ():
        raise ValueError("attach: listen= stands in place of addresses: give one of them")
    if key is None:
        raise ValueError(f"attach: listen={listen!r} wants key_file=: it shows which agents may call")
    names: tuple[str, ...] = ()
    if isinstance(wait_for, list | tuple):
        names, wait_for = tuple(wait_for), len(wait_for)
        if len(set(names)) < len(names) or not all(names):
            raise ValueError(f"attach: wait_for={list(names)}: give the name of each host that is wanted, once")
    count = _count(wait_for, "say how many hosts will call, or their names")
    return Source(listener=_listener(address), wait_for=count, names=names)


def _count(wait_for: object, instead: str) -> int:
    check_integer("attach", "wait_for", wait_for, least=1, instead=instead)
    assert isinstance(wait_for, int)
    return wait_for


def _listener(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    both = address.host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((address.host, address.port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise type(error)(error.errno, f"attach cannot listen at {address.text}: {error.strerror}") from None


def _pki(tls: object) -> tuple[bytes, bytes, bytes] | None:
    if tls is None:
        return None
    if not isinstance(tls, Tls):
        raise TypeError(f"tls={tls!r}: give a roost.Tls(ca=…, certificate=…, key=…)")
    return tls._read()


_warned_of: set[str] = set()


def _warn_of_plaintext() -> None:
    if "plaintext" not in _warned_of:
        _warned_of.add("plaintext")
        _logger.warning("insecure_plaintext=True: whoever is on the way to the hosts can read and change everything")
