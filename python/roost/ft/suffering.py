"""What `Failures` does inside a trainer's proc."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, NoReturn

from roost.errors import RoostError

if TYPE_CHECKING:
    from roost.ft.seat import Seat

__all__ = ["cut_off", "network_here", "suffer"]

_FOR_EVER_S = 1_000_000


class InjectedError(RoostError):
    """What a step raises that was told to."""


def suffer(seat: Seat, kind: str, seconds: float) -> None:
    """Have a failure: at once, or where the training thread next says what it does."""
    if kind == "segfault":
        ctypes.string_at(0)
    elif kind == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "hang with the GIL":
        ctypes.PyDLL(None).sleep(_FOR_EVER_S)
    elif kind == "collective error":
        if seat.group is not None:
            seat.group.abort("an injected error")
    elif kind == "host agent":
        os.kill(_agent(), signal.SIGKILL)
    elif kind == "exception":
        seat.fault = _raise
    else:
        seat.fault = _Pause(_FOR_EVER_S if kind == "hang" else seconds)


def _agent() -> int:
    """The process of this host's agent, from which all others here descend."""
    pid = os.getpid()
    while pid > 1:
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"\0roost\0host\0" in file.read():
                return pid
    raise RuntimeError("a host agent is to be killed, and the job's own process is that of this host")


def network_here() -> str:
    """What tells the network namespace of this process from others."""
    return os.readlink("/proc/self/ns/net")


def cut_off(seconds: float, network: str) -> None:
    """Drop all that comes to this host and leaves it, for a while.

    Args:
        seconds: for how long.
        network: that of the job's own process, which is not to be cut.

    Raises:
        RuntimeError: this host has no network of its own.
    """
    if network_here() == network:
        raise RuntimeError(
            "a network cut is for hosts in network namespaces of their own: here the job would be cut off, too"
        )
    chains = "".join(
        f"chain {hook} {{ type filter hook {hook} priority 0; {hook[0]}if lo accept; drop; }}\n"
        for hook in ("input", "output")
    )
    subprocess.run(["nft", "-f", "-"], input=f"table inet roost_cut {{\n{chains}}}\n", text=True, check=True)  # noqa: S607 - whichever nft the host has
    heal = f"(sleep {seconds:g}; nft delete table inet roost_cut) >/dev/null 2>&1 &"
    subprocess.run(["/bin/sh", "-c", heal], check=True, start_new_session=True)


def _raise() -> NoReturn:
    raise InjectedError("an injected error")


class _Pause:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self) -> None:
        time.sleep(self._seconds)
