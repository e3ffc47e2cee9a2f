"""What one-sided memory is held against: memcpy, `process_vm_readv`, sockets, TCP in C, and libibverbs' own ping-pong.

Each floor gives the seconds of some reads of so many bytes, by as few layers as there can be.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

# As many connections as a link between two hosts has.
STRIPES = 4
_PING_PONG = ["ibv_rc_pingpong", "-g", "1", "-m", "4096"]
_SERVER_WAIT_S = 20.0


class Floors:
    """A process with memory of its own, which it sends over a socket when it is asked to; and other programs."""

    def __init__(self, largest: int, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._shared = mmap.mmap(-1, largest)
        self._from_shared = np.frombuffer(self._shared, np.uint8)
        self._from_shared[:] = 7
        self._target: np.ndarray[Any, Any] = np.ones(largest, np.uint8)
        own: np.ndarray[Any, Any] = np.empty(largest, np.uint8)
        self._address = own.ctypes.data
        self._near, far = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._near.close()
            own[:] = 7  # written after the fork: pages that were inherited are no huge ones
            far.sendall(b"!")
            _serve(far, own)
            os._exit(0)
        far.close()
        self._near.recv(1)

    def close(self) -> None:
        """Ends the process."""
        self._near.close()
        os.waitpid(self._pid, 0)

    def times(self, way: str, size: int) -> list[float]:
        """Seconds of each of some reads of so many bytes, by what a way is held against."""
        if way in ("plain", "encrypted"):
            return self._tcp(size)
        if way == "ibverbs":
            return [_ping_pong(size)]
        work: dict[str, Callable[[int], None]] = {
            "shared": self._memcpy, "same_host": self._vm_readv, "tcp": self._unix,
        }  # fmt: skip
        return self._timed(lambda: work[way](size))

    def _timed(self, work: Callable[[], None]) -> list[float]:
        for _ in range(2):
            work()
        samples, end = [], time.perf_counter() + self._seconds_max
        while len(samples) < 200 and (time.perf_counter() < end or len(samples) < 3):
            start = time.perf_counter()
            work()
            samples.append(time.perf_counter() - start)
        return samples

    def _memcpy(self, size: int) -> None:
        ctypes.memmove(self._target.ctypes.data, self._from_shared.ctypes.data, size)

    def _vm_readv(self, size: int) -> None:
        done = 0
        while done < size:
            vector = ctypes.c_size_t * 2
            local = vector(self._target.ctypes.data + done, size - done)
            remote = vector(self._address + done, size - done)
            got = self._libc.process_vm_readv(self._pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
            if got <= 0:
                raise OSError(ctypes.get_errno(), "process_vm_readv")
            done += got

    def _unix(self, size: int) -> None:
        self._near.sendall(size.to_bytes(8, "little"))
        view, done = memoryview(self._target)[:size], 0
        while done < size:
            done += self._near.recv_into(view[done:])

    def _tcp(self, size: int) -> list[float]:
        """By the program beside this file, with as many connections as a link has."""
        with tempfile.TemporaryDirectory() as folder:
            program = f"{folder}/floor_tcp"
            subprocess.run(
                ["cc", "-O2", "-pthread", Path(__file__).with_name("floor_tcp.c"), "-o", program], check=True
            )
            words = [program, str(STRIPES), str(size), str(self._seconds_max)]
            said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return [float(line) for line in said.splitlines()]


def _serve(connection: socket.socket, memory: np.ndarray[Any, Any]) -> None:
    view = memoryview(memory)
    while asked := connection.recv(8, socket.MSG_WAITALL):
        connection.sendall(view[: int.from_bytes(asked, "little")])


def _ping_pong(size: int) -> float:
    """Seconds of one message of `ibv_rc_pingpong`, which has one under way at a time."""
    rounds = max(8, min(200, (8 << 20) // size))
    command = [*_PING_PONG, "-s", str(size), "-n", str(rounds)]
    with subprocess.Popen([*command, "-d", "rxe0"], stdout=subprocess.DEVNULL) as server:
        end = time.monotonic() + _SERVER_WAIT_S
        while True:
            client = subprocess.run([*command, "-d", "rxe1", "10.77.0.1"], check=False, capture_output=True, text=True)
            if found := re.search(r" iters in ([\d.]+) seconds", client.stdout):
                server.wait()
                return float(found[1]) / (2 * rounds)
            if time.monotonic() > end:
                server.kill()
                raise RuntimeError(f"ibv_rc_pingpong: {client.stderr}")
            time.sleep(0.1)  # its server does not listen yet
