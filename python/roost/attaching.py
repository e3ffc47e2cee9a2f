"""`attach`: from addresses to a mesh of hosts."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from roost import process
from roost.addresses import read_addresses
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

__all__ = ["attach", "attach_named"]

_logger = logging.getLogger("roost")


def attach(
    addresses: Sequence[str] | str | os.PathLike[str],
    *,
    key_file: str | os.PathLike[str] | None = None,
    tls: Tls | None = None,
    insecure_plaintext: bool = False,
    timeout: float = 30.0,
    wait_for: int | None = None,
    lease_s: float | None = None,
) -> HostMesh:
    """Hosts where agents (`python -m roost host`) listen, as a mesh with the dimension `hosts`; returns at once.

    `async with`, or `await hosts.ready()`, waits until they are there.

    Args:
        addresses: a list of "host:port", "[v6]:port" or "unix:PATH", or the path of a file that has one a line.
        key_file: the file with the key that the agents were started with.
        tls: certificates of one's own, where the agents have such too.
        insecure_plaintext: do without TLS, as the agents must: whoever is on the way can read and change everything.
        timeout: seconds in which a host must answer, and with `wait_for` in which all must be there.
        wait_for: go on trying until so many of the hosts are there; the mesh has so many then, in the order of the addresses,
            and a file of addresses is read again at each attempt. When left out all must be there, and the first that cannot
            be reached is an error at once.
        lease_s: seconds that a host lives without a sign of this program before it ends what this has there;
            `Config.lease_s` when left out.

    Raises:
        ValueError: an address that is none or that is there twice, a key that is none, or numbers that make no sense.
        OSError: a file that cannot be read, or a key that others can read.
        RuntimeError: this process is no driver.
    """
    return attach_named(
        "hosts", addresses, key_file=key_file, tls=tls, insecure_plaintext=insecure_plaintext, timeout=timeout,
        wait_for=wait_for, lease_s=lease_s,
    )  # fmt: skip


def attach_named(
    name: str,
    addresses: Sequence[str] | str | os.PathLike[str],
    *,
    key_file: str | os.PathLike[str] | None = None,
    tls: Tls | None = None,
    insecure_plaintext: bool = False,
    timeout: float = 30.0,
    wait_for: int | None = None,
    lease_s: float | None = None,
) -> HostMesh:
    """The same, as a mesh of this name."""
    found = read_addresses(addresses)
    check_flag("attach", "insecure_plaintext", insecure_plaintext, "whether the connections go without TLS")
    check_finite("attach", "timeout", timeout, above=0, instead="give the seconds in which a host must answer")
    if lease_s is not None:
        check_finite("attach", "lease_s", lease_s, above=0, instead="leave it out for Config.lease_s")
    pki = _pki(tls)
    if pki is not None and insecure_plaintext:
        raise ValueError("tls= and insecure_plaintext=True contradict each other: give one of them")
    path = os.fspath(addresses) if isinstance(addresses, str | os.PathLike) else None
    if wait_for is not None:
        check_integer("attach", "wait_for", wait_for, least=1, instead="leave it out to want all hosts at once")
        if path is None and wait_for > len(found):
            raise ValueError(f"attach: wait_for={wait_for} hosts, and there are {len(found)} addresses")
    key = None if key_file is None else read_key(key_file)
    given = {
        "key": key,
        "pki": pki,
        "plaintext": insecure_plaintext,
        "lease_s": None if lease_s is None else float(lease_s),
    }
    config = {name: value for name, value in given.items() if value is not None}
    runtime = process.current()
    if not runtime.is_driver:
        raise RuntimeError("attach() works in the driver: attach the hosts there, and hand the mesh out")
    if insecure_plaintext:
        _warn_of_plaintext()
    mesh = new_id()
    whole = Shape({"hosts": wait_for or len(found)})
    record = OwnedHosts(runtime, mesh, name, whole)
    handle = HostMesh._make(mesh, name, runtime.proc, whole, whole, None)
    record.attaching = Attaching(runtime, record, found, path, float(timeout), wait_for, config)
    runtime.own(record, handle)
    runtime.on_loop(record.attaching.begin)
    return handle


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
