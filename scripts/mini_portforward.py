"""The end of a port-forward that is a node's, for `mini_kubelet.py`, and for tests' API server.

It is a WebSocket, whose first channel is a TCP connection to a port of a pod, and its second what goes wrong there.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.server import BaseHTTPRequestHandler

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10
_SHORT_MAX, _TWO_BYTES, _EIGHT_BYTES = 125, 126, 127
_PIECE_BYTES = 1 << 16


def serve_portforward(handler: BaseHTTPRequestHandler, host: str, port: int) -> None:
    """Be that end, until either side closes.

    Args:
        handler: with a request to become a WebSocket, which is all of its connection from here on.
        host: the pod's address.
        port: its port.
    """
    handler.close_connection = True
    accept = base64.b64encode(hashlib.sha1(handler.headers["Sec-WebSocket-Key"].encode() + _MAGIC).digest()).decode()
    handler.wfile.write(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n".encode()
    )
    frames = _Frames(handler)
    for channel in (0, 1):
        frames.send(_BINARY, bytes([channel]) + struct.pack("<H", port))
    try:
        pod = socket.create_connection((host, port), timeout=10)
    except OSError as error:
        frames.send(_BINARY, b"\x01" + f"cannot reach port {port}: {error}".encode())
        frames.send(_CLOSE, b"")
        return
    pod.settimeout(None)
    back = threading.Thread(target=_carry_back, args=(pod, frames), daemon=True)
    back.start()
    with pod:
        for data in frames:
            if data[:1] == b"\0":
                pod.sendall(data[1:])
        with contextlib.suppress(OSError):
            pod.shutdown(socket.SHUT_RDWR)
        back.join()


def _carry_back(pod: socket.socket, frames: _Frames) -> None:
    with contextlib.suppress(OSError):
        while data := pod.recv(_PIECE_BYTES):
            frames.send(_BINARY, b"\0" + data)
        frames.send(_CLOSE, b"")


class _Frames:
    """The frames of a WebSocket: iterating gives what the client sends, until it closes."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._read, self._write = handler.rfile, handler.wfile
        self._sending = threading.Lock()

    def send(self, kind: int, data: bytes) -> None:
        """Send one."""
        size = len(data)
        if size <= _SHORT_MAX:
            head = bytes([0x80 | kind, size])
        elif size < 1 << 16:
            head = bytes([0x80 | kind, _TWO_BYTES]) + struct.pack(">H", size)
        else:
            head = bytes([0x80 | kind, _EIGHT_BYTES]) + struct.pack(">Q", size)
        with self._sending:
            self._write.write(head + data)
            self._write.flush()

    def __iter__(self) -> Iterator[bytes]:
        """What the client sends."""
        with contextlib.suppress(OSError, struct.error):
            while len(head := self._read.read(2)) == len("hd"):
                kind, size = head[0] & 15, head[1] & 127
                if size == _TWO_BYTES:
                    [size] = struct.unpack(">H", self._read.read(2))
                elif size == _EIGHT_BYTES:
                    [size] = struct.unpack(">Q", self._read.read(8))
                # Clients mask what they send.
                mask = self._read.read(4)
                keys = int.from_bytes((mask * (size // 4 + 1))[:size])
                data = (int.from_bytes(self._read.read(size)) ^ keys).to_bytes(size)
                if kind == _CLOSE:
                    return
                if kind == _PING:
                    self.send(_PONG, data)
                else:
                    yield data
