"""Where agents find a driver that does not know them: they call, prove that they have the key, and say where they listen.

The driver then dials them, as it would those of a list. Over one TCP connection, in lines of text:

1. the driver: what this is, and a nonce;
2. the agent: what it calls itself and where it listens, with a nonce of its own, as JSON; then its proof;
3. the driver: an empty line, or why it does not want this agent; then its proof.

A proof is HMAC-SHA-256 with the key over who speaks and all lines so far. So each has proved the key to the other, nothing
recorded is of any use again, and nothing is parsed before its proof was compared. Nothing in it is secret. The connection stays
until the driver looks for hosts no more.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from roost.addresses import Address, joined, parse

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

__all__ = ["Caller", "NotProvedError", "Rendezvous", "announce"]

_logger = logging.getLogger("roost")

_GREETING = b"roost rendezvous 1 "
# What a line may be long: a name, and an address.
_LINE_BYTES_MAX = 4096
# From the first byte to the last, as with every stranger.
_HANDSHAKE_S = 5.0
# Callers that have not proved themselves, all together.
_STRANGERS_MAX = 256
_NONCE_BYTES = 32


class NotProvedError(Exception):
    """The other end does not have our key, or speaks something else."""


class Caller(NamedTuple):
    """A host whose agent has called."""

    name: str
    """What it calls itself."""
    address: Address
    """Where it listens."""


class Rendezvous:
    """The driver's end, as long as it looks for hosts.

    Args:
        key: the text of the key.
        called: told of each agent that has proved itself; gives why it is not wanted, or nothing.
    """

    def __init__(self, key: bytes, called: Callable[[Caller], str | None]) -> None:
        self._key = key
        self._called = called
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._strangers = 0
        self._warned: set[str] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Take the calls of a listener, which is closed with this."""
        self._server = await asyncio.start_server(self._meet, sock=listener, limit=_LINE_BYTES_MAX)

    def close(self) -> None:
        """Take no more calls, and let go of those who wait."""
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = str(writer.get_extra_info("peername")[0])
        if self._strangers >= _STRANGERS_MAX:
            writer.close()
            return
        self._strangers += 1
        self._open.add(writer)
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await self._hear(peer, reader, writer)
        except (TimeoutError, NotProvedError, ValueError, OSError) as error:
            if peer not in self._warned and len(self._warned) < _STRANGERS_MAX:
                self._warned.add(peer)
                _logger.warning("a call from %s was refused: %s", peer, str(error) or "it said too little for too long")
            self._open.discard(writer)
            writer.close()
        finally:
            self._strangers -= 1
        # It ends the connection, or `close` does.
        with suppress(OSError):
            await reader.read(1)
        self._open.discard(writer)
        writer.close()

    async def _hear(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = _GREETING + secrets.token_hex(_NONCE_BYTES).encode()
        writer.write(greeting + b"\n")
        said, proof = await _line(reader), await _line(reader)
        if not hmac.compare_digest(proof, _proof(self._key, b"agent", greeting, said)):
            raise NotProvedError("it does not have the key that this program has")
        answer = (self._called(_caller(peer, said)) or "").encode()
        writer.write(answer + b"\n" + _proof(self._key, b"driver", greeting, said, answer) + b"\n")


async def announce(address: Address, key: bytes, name: str, listening: str) -> str:
    """The agent's end: tell a driver of this host, and wait until it looks for hosts no more.

    Args:
        address: where the driver takes calls.
        key: the text of the key.
        name: what this host is called.
        listening: where it listens; without a host in it where that is for the driver to see.

    Returns:
        Why the driver does not want this host; empty when it did.

    Raises:
        OSError: it is not reached, or says nothing.
        NotProvedError: it does not have the key, or is no rendezvous.
    """
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection(address.host, address.port, limit=_LINE_BYTES_MAX), _HANDSHAKE_S
    )
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            greeting = await _line(reader)
            if not greeting.startswith(_GREETING):
                raise NotProvedError("no driver of this version takes calls there")
            nonce = secrets.token_hex(_NONCE_BYTES)
            said = json.dumps({"name": name, "listening": listening, "nonce": nonce}).encode()
            writer.write(said + b"\n" + _proof(key, b"agent", greeting, said) + b"\n")
            answer, proof = await _line(reader), await _line(reader)
        if not hmac.compare_digest(proof, _proof(key, b"driver", greeting, said, answer)):
            raise NotProvedError("it does not have the key that this host has")
        if not answer:
            await reader.read(1)
        return answer.decode()
    finally:
        writer.close()


def _proof(key: bytes, role: bytes, *said: bytes) -> bytes:
    """What only who has the key can say; no line has a line's end in it, so nothing of it can be read in two ways."""
    return hmac.new(key, b"\n".join((b"roost rendezvous", role, *said)), hashlib.sha256).hexdigest().encode()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readline()
    except ValueError:
        line = b""
    if not line.endswith(b"\n"):
        raise NotProvedError("it does not have the same key, or speaks something else")
    return line[:-1]


def _caller(peer: str, said: bytes) -> Caller:
    fields = json.loads(said)
    try:
        name, listening = str(fields["name"]), str(fields["listening"])
    except (KeyError, TypeError):
        raise ValueError("its words are of another version") from None
    # An agent that listens on all of its addresses does not know by which it is found: who is called sees it.
    return Caller(name, parse(joined(peer, listening[1:]) if listening.startswith(":") else listening))
