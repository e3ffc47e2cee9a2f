"""What the agent of a host is told, from its command line: where it listens, how it is found, what drivers prove themselves with."""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from roost.addresses import Address, is_loopback, joined, parse
from roost.cli.calling import Calls
from roost.keys import checked_key, read_key
from roost.tls import Tls

if TYPE_CHECKING:
    import argparse

__all__ = [
    "ANY_ADDRESS",
    "STDIN",
    "Refusal",
    "Status",
    "calls_of",
    "config_of",
    "shown_address",
]

_logger = logging.getLogger("roost.host")

STDIN = 0
ANY_ADDRESS = ("0.0.0.0", "[::]")  # noqa: S104
"""All of this machine's addresses; compared with, not bound to."""

# How long it may take to call oneself at the advertised address.
_CALL_S = 3.0


class Status(enum.IntEnum):
    """The command's exit status, by what is wrong."""

    USAGE = 2
    KEY = 3
    LISTEN = 4
    OPEN = 5
    ADVERTISE = 6
    VERSION = 7


class Refusal(Exception):  # noqa: N818 - the end of this command, with its status
    """What is wrong."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


def config_of(options: argparse.Namespace) -> dict[str, Any]:
    """What the control thread is told, all of it checked.

    Raises:
        Refusal: something of it makes no sense.
    """
    try:
        address = parse(options.listen, chooses_port=True)
        if options.advertise is not None:
            parse(options.advertise if _has_port(options.advertise) else f"{options.advertise}:1")
    except ValueError as error:
        raise Refusal(Status.USAGE, str(error)) from None
    key, pki = _proofs(options)
    listen = _numeric(address)
    if key is None and pki is None and not is_loopback(listen):
        raise Refusal(
            Status.OPEN,
            f"listening on {options.listen} without a key would let everybody run programs here: make one with "
            "`python -m roost key FILE` and give it as --key-file, or listen on 127.0.0.1",
        )
    if options.insecure_plaintext:
        _logger.warning("--insecure-plaintext: whoever is on the way can read and change everything")
    advertised: list[str] = []
    if options.advertise is not None and not address.path:
        listen = _with_port(listen)
        advertised = _dialled(options.advertise, listen.rpartition(":")[2])
    proofs = {name: proof for name, proof in (("key", key), ("pki", pki)) if proof is not None}
    return {
        **proofs, "listen": listen, "advertised": advertised,
        "plaintext": options.insecure_plaintext, "one_job": options.one_job,
        "name": os.path.expandvars(options.name or os.uname().nodename),
    }  # fmt: skip


def calls_of(options: argparse.Namespace, config: dict[str, Any]) -> Calls | None:
    """What `--join` asks for."""
    if options.join is None:
        return None
    try:
        driver = parse(options.join)
    except ValueError as error:
        raise Refusal(Status.USAGE, f"--join: {error}") from None
    if driver.path or config["listen"].startswith("unix:"):
        raise Refusal(Status.USAGE, f"--join {options.join}: who joins calls and listens by TCP, not at a Unix socket")
    if "key" not in config:
        raise Refusal(
            Status.USAGE,
            f"--join {options.join} wants --key-file: the driver and this host show each other that they have it",
        )
    return Calls(driver, config["key"], config["name"])


def _proofs(options: argparse.Namespace) -> tuple[bytes | None, tuple[bytes, bytes, bytes] | None]:
    """The key, and the certificates of one's own, where they are given."""
    files = {name: getattr(options, f"tls_{name}") for name in ("ca", "certificate", "key")}
    if any(files.values()) and not all(files.values()):
        raise Refusal(Status.USAGE, "certificates of your own are three files: --tls-ca, --tls-certificate, --tls-key")
    if files["key"] and options.insecure_plaintext:
        raise Refusal(Status.USAGE, "--tls-… and --insecure-plaintext contradict each other")
    if options.key_file and options.key_stdin:
        raise Refusal(Status.USAGE, "--key-file and --key-stdin are two ways to give the key: give one of them")
    try:
        key = None if options.key_file is None else read_key(options.key_file)
        if options.key_stdin:
            key = _key_from_stdin()
        return key, Tls(**files)._read() if files["key"] else None
    except (OSError, ValueError) as error:
        raise Refusal(Status.KEY, str(error)) from None


def _key_from_stdin() -> bytes:
    """The first line, and not a letter of what comes behind it."""
    line = b""
    while not line.endswith(b"\n") and (letter := os.read(STDIN, 1)):
        line += letter
    return checked_key(line, "standard input")


def _has_port(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(colon) and port.isdigit() and (":" not in host or host.endswith("]"))


def _numeric(address: Address) -> str:
    """The address with a number in place of a name."""
    if address.path:
        return address.text
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise Refusal(Status.LISTEN, f"cannot listen on {address.text}: {error}") from None
    return joined(*found[0][4][:2])


def _with_port(listen: str) -> str:
    """The address with a port of the system's choice in place of 0: what is advertised has to be known before it listens."""
    host, _, port = listen.rpartition(":")
    if port != "0":
        return listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host.strip("[]"), 0))
        except OSError as error:
            raise Refusal(Status.LISTEN, f"cannot listen on {listen}: {error.strerror}") from None
        return joined(host.strip("[]"), probe.getsockname()[1])


def _dialled(advertise: str, port: str) -> list[str]:
    """What other hosts are to dial, as numbers."""
    whole = advertise if _has_port(advertise) else f"{advertise}:{port}"
    address = parse(whole)
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Refusal(Status.ADVERTISE, f"--advertise {advertise}: its name is not known here: {error}") from None
    return list(dict.fromkeys(joined(*one[4][:2]) for one in found))


async def shown_address(advertise: str | None, dialled: list[str], listening: str) -> str:
    """How others find this host, for people: that has to lead here, where it can be found out."""
    host, _, port = listening.rpartition(":")
    if listening.startswith("unix:"):
        return listening
    if advertise is None:
        return f"{os.uname().nodename}:{port}" if host in ANY_ADDRESS else listening
    whole = advertise if _has_port(advertise) else f"{advertise}:{port}"
    for one in dialled:
        address = parse(one)
        try:
            async with asyncio.timeout(_CALL_S):
                _, writer = await asyncio.open_connection(address.host, address.port)
        except TimeoutError:
            _logger.warning("%s does not answer from here; whether it does from other hosts is not known", one)
        except OSError as error:
            raise Refusal(
                Status.ADVERTISE, f"--advertise {advertise}: nobody listens at {one}: {error.strerror}"
            ) from None
        else:
            writer.close()
    return whole
