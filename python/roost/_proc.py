"""The first steps of a proc: from a fresh process and some descriptors to `roost.serving.run_proc`.

A proc comes from the template (`begin`, in a fork) or is executed (`main`, with the descriptors waiting in its standard
input).
"""

from __future__ import annotations

import array
import atexit
import gc
import os
import pickle
import socket
import stat
import struct
import sys
import threading
from contextlib import suppress
from typing import Any

from roost._roost import Control, exit_process

__all__ = ["ADDED", "AGENTS_OWN", "REQUEST", "begin", "main", "named", "receive", "take_search_path"]

# A request for a proc: a letter, its incarnation, its id.
REQUEST = struct.Struct("<c3xIQ")

# What comes with it, in this order: the second only when the owner is on this host, the last only when there are constructors
# to run again.
_NAMES = ("control", "data", "tombstone_a", "tombstone_b", "stdout", "stderr", "spec", "started", "driver", "recorded")
_LEAST = len(_NAMES) - 2

# The first entry of a search path that is added to the interpreter's own.
ADDED = "+"
# The name in an environment which says that the others change the agent's own: those with a + are set, those with a - removed.
AGENTS_OWN = "+"

_DESCRIPTORS_MAX = 16

_LENGTH = struct.Struct("<Q")


def receive(sock: socket.socket, bytes_max: int) -> tuple[bytes, list[int]]:
    """One packet and its descriptors; empty at the end of the stream, or when descriptors got lost on the way."""
    fds = array.array("i")
    # Not `recv_fds`, which drops its flags: what the user executes would inherit the descriptors.
    room = socket.CMSG_SPACE(_DESCRIPTORS_MAX * fds.itemsize)
    try:
        packet, messages, flags, _ = sock.recvmsg(bytes_max, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The other end has closed without reading all that we had sent: that is its end, too.
        return b"", []
    for level, kind, data in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        return packet, []
    return packet, list(fds)


def main() -> None:
    """Become a proc in a process that was executed for it."""
    with socket.socket(fileno=os.dup(0)) as sock:
        sock.setblocking(True)
        packet, fds = receive(sock, REQUEST.size)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    if len(fds) < _LEAST:
        sys.exit("roost: this process was started without its descriptors")
    _, incarnation, proc = REQUEST.unpack(packet)
    begin(proc, incarnation, fds)


def begin(proc: int, incarnation: int, fds: list[int]) -> None:
    """Be the proc, then end the interpreter in order."""
    ends = named(fds)
    # Both are the process's standard streams already.
    os.close(ends.pop("stdout"))
    os.close(ends.pop("stderr"))
    spec: dict[str, Any] = pickle.loads(_take(ends.pop("spec")))
    if spec["proc"] != proc:
        sys.exit(f"roost: the spawn message is that of proc {spec['proc']:016x}, not of {proc:016x}")
    spec["incarnation"] = incarnation
    if "recorded" in ends:
        spec["actors"] += _split(_take(ends.pop("recorded")))
    data, started = ends.pop("data", None), ends.pop("started")
    # From here on the host's agent sees this process end, and this process ends with its driver.
    control = Control.start_client(spec["job"], proc, incarnation, ends)
    _settle(spec, f"{spec['job'].hex()}/{proc:016x}/{incarnation:08x}")
    from roost.serving import run_proc

    _leave(run_proc(spec, control, data, started))


def named(fds: list[int]) -> dict[str, int]:
    """The descriptors by their names. The sockets come first: there is one less where the owner is on another host."""
    names = _NAMES if stat.S_ISSOCK(os.fstat(fds[_NAMES.index("tombstone_b")]).st_mode) else _NAMES[:1] + _NAMES[2:]
    return dict(zip(names, fds, strict=False))


def _leave(code: int) -> None:
    """End this process as the interpreter does, but without taking the interpreter apart.

    Its threads are waited for, Python's exit handlers run, and so do C's. What is left then is memory, which the system takes
    back: with torch loaded, taking it apart lasts seconds, and libraries complain of objects that are still there.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    exit_process(code)


def _settle(spec: dict[str, Any], mark: str) -> None:
    """Take over the driver's surroundings, before anything of the user's is imported."""
    environ = {**_environ(spec), "ROOST_PROC": mark}
    for name in [name for name in os.environ if name not in environ]:
        del os.environ[name]
    for name, value in environ.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    _go_to(spec)
    take_search_path(spec["sys_path"])
    sys.argv = spec["argv"]
    _look_again(sys.path)
    # Output goes through a pipe, and should be seen when it is written.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    gc.enable()


def _environ(spec: dict[str, Any]) -> dict[str, str]:
    """The environment that a proc has: the driver's, or its host's agent's with changes."""
    if spec["environ"] is not None:
        known: dict[str, str] = spec["environ"]
        return known
    whole: dict[str, str | None] = {**os.environ, **spec["changes"]}
    return {name: value for name, value in whole.items() if value is not None}


def _go_to(spec: dict[str, Any]) -> None:
    """Be where the driver is; on another host only if it has such a folder, else where its agent is."""
    try:
        os.chdir(spec["cwd"])
    except OSError as error:
        where = "/"
        if spec["environ"] is None:
            where = os.getcwd()
            if not spec["says_folder"]:
                return
        # On this host it was there when the proc was asked for.
        print(f"roost: {spec['name']} starts in {where} instead: {error}", file=sys.stderr)  # noqa: T201 - no logging yet
        os.chdir(where)


def take_search_path(entries: list[str]) -> None:
    """Look for modules where the driver does; on another host only after this interpreter's own folders."""
    if entries[:1] == [ADDED]:
        sys.path += [entry for entry in entries[1:] if entry not in sys.path]
    elif entries:
        sys.path[:] = entries


def _look_again(folders: list[str]) -> None:
    """Have the import system see what was written to these since the template looked.

    Not `importlib.invalidate_caches`: of each package that the template has imported, torch has hundreds, it writes to a page
    that this process shares with it.
    """
    for folder in folders:
        finder: Any = sys.path_importer_cache.get(folder)
        if finder is None:
            # It may be there by now.
            sys.path_importer_cache.pop(folder, None)
        else:
            invalidate = getattr(finder, "invalidate_caches", None)
            if invalidate is not None:
                invalidate()


def _take(fd: int) -> bytes:
    """The content of a memory file, which is closed."""
    with open(fd, "rb", buffering=0) as file:
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def _split(recorded: bytes) -> list[bytes]:
    """The messages of a file in which each stands behind its length."""
    messages = []
    offset = 0
    while offset < len(recorded):
        (length,) = _LENGTH.unpack_from(recorded, offset)
        offset += _LENGTH.size
        messages.append(recorded[offset : offset + length])
        offset += length
    return messages
