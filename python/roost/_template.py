"""The template: a warm interpreter that has imported what procs need, and is their parent.

It has one thread, computes nothing, and lives as long as the agent keeps its socket open. It forks by `os.fork` alone,
so that every library's fork handlers run, and executes those that start cold; it hands out the pidfd of each child
before it can reap it, and tells its wait status. Orphans of its procs come to it; what a dead proc leaves behind it
kills.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from contextlib import suppress

from roost import _proc
from roost._roost import adopt_orphans, count_threads_at_forks, die_with_parent, threads_at_fork

__all__ = ["main"]

# A letter, an incarnation, a proc, and a process id or a status; a text may follow.
_ANSWER = struct.Struct("<c3xIQi")

_PACKET_BYTES_MAX = 1 << 18
_TEXT_BYTES_MAX = 8 << 10

_MARK = b"ROOST_PROC="

# What every proc needs; the preload of a mesh comes on top.
_MODULES = ("asyncio", "uvloop", "roost.serving")
# What procs need that call others, own meshes, or do what few do. The first of a job are not kept waiting for it.
_MODULES_LATER: tuple[str, ...] = (
    "roost.deadlocks", "roost.driving", "roost.elsewhere", "roost.hosts", "roost.looking",
    "roost.reply_port", "roost.spawning", "roost.threads",
)  # fmt: skip
_LATER_S = 0.1


class _ThreadsError(Exception):
    """A fork would lose threads that a library has started."""


def main() -> None:
    """Import, then fork on request; in a child, be that proc."""
    # The control thread, which started us, takes no signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Until everything is imported the driver's end would not be noticed; afterwards procs depend on this process.
    die_with_parent(True)
    count_threads_at_forks()
    adopt_orphans()
    sock = socket.socket(fileno=os.dup(0))
    sock.setblocking(True)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    packet, fds = _proc.receive(sock, _PACKET_BYTES_MAX)
    if not packet or not fds:
        os._exit(1)
    count, *texts = packet[1:].decode().split("\0")
    preload, sys_path = texts[: int(count)], texts[int(count) :]
    template = _Template(sock, fds[0])
    if template.is_orphaned():
        # The driver ended before this process was tied to it.
        os._exit(0)
    refusal = None
    try:
        _import(preload, sys_path)
    except ImportError as error:
        sys.stderr.flush()
        template.answer(b"E", 0, 0, 0, text=str(error))
        os._exit(1)
    except _ThreadsError as error:
        refusal = str(error)
    # What was imported stays for good: looking through it is wasted, and would copy pages in the children. For the same
    # reason there has been no collection since the interpreter began, nor will there be one here.
    gc.freeze()
    die_with_parent(False)
    template.answer(b"T" if refusal else b"R", 0, 0, 0, text=refusal or "")
    born = template.serve()
    _proc.begin(*born)


def _import(preload: list[str], sys_path: list[str]) -> None:
    """Import all modules, and find out whether a fork is safe then."""
    _proc.take_search_path(sys_path)
    threads = _threads()
    culprits = []
    for name in (*_MODULES, *preload):
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - whatever a module raises, the agent is to hear of it
            traceback.print_exc()
            text = f"preload: importing {name} raised {type(error).__name__}: {error}"
            raise ImportError(text) from None
        before, threads = threads, _threads()
        if threads > before:
            culprits.append(name)
    if threads == 1:
        return
    # Some libraries put their threads away before a fork: only a fork tells.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if threads_at_fork() != 1:
        text = f"preload: importing {', '.join(culprits)} started threads that a fork would lose"
        raise _ThreadsError(text)


def _import_later(names: list[str]) -> None:
    """Import one of these, now that nobody waits. A proc that needs it before imports it itself, or says why it cannot."""
    with suppress(Exception):
        importlib.import_module(names.pop(0))
    if not names:
        gc.freeze()


def _check(fds: list[int]) -> None:
    if not fds:
        raise OSError(errno.EMFILE, "no file descriptors left in the template")


def _fork() -> int:
    # What is still buffered would be written twice.
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork()


def _execute(fds: list[int]) -> int:
    """Start a process cold: its standard streams, and a file with the program and its environment."""
    stdin, stdout, stderr, program = fds
    with open(program, "rb", closefd=False) as file:
        count, *texts = os.pread(file.fileno(), os.fstat(program).st_size, 0).split(b"\0")
    arguments, environ = texts[: int(count)], _changed(dict(text.split(b"=", 1) for text in texts[int(count) :]))
    shown = os.fsdecode(b" ".join(arguments[:-2]))
    streams = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((stdin, stdout, stderr))]
    # Python ignores these; a program expects them as they are by default.
    default = [signal.SIGPIPE, signal.SIGXFSZ]
    try:
        path = _find(arguments[0], environ)
        return os.posix_spawn(path, arguments, environ, file_actions=streams, setpgroup=0, setsigdef=default)
    except OSError as error:
        raise OSError(error.errno, f"cannot start `{shown}`: {error.strerror}") from None


def _changed(environ: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """A whole environment, or this host's agent's, which the template has, with changes: see `AGENTS_OWN`."""
    if environ.pop(_proc.AGENTS_OWN.encode(), None) is None:
        return environ
    whole = dict(os.environb)
    for name, value in environ.items():
        sign, plain = name[:1], name[1:]
        if sign == b"-":
            whole.pop(plain, None)
        else:
            whole[plain if sign == b"+" else name] = value
    return whole


def _find(program: bytes, environ: dict[bytes, bytes]) -> bytes:
    """Where a program lies, in the new process's own search path."""
    if b"/" in program:
        return program
    for folder in environ.get(b"PATH", os.fsencode(os.defpath)).split(b":"):
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(errno.ENOENT, "not found in its PATH")


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


class _Template:
    """The loop that forks and reaps."""

    def __init__(self, sock: socket.socket, driver: int) -> None:
        self._sock = sock
        self._driver = driver
        # Our children that are procs, by process id: (proc, incarnation).
        self._procs: dict[int, tuple[int, int]] = {}
        # Children that are not: orphans of procs that live.
        self._adopted: set[int] = set()
        self._mark_address = _find_mark()
        self._wakeup, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def answer(
        self, letter: bytes, proc: int, incarnation: int, number: int, *, text: str = "", fds: tuple[int, ...] = ()
    ) -> None:
        """Tell the agent; one that has gone needs no answer."""
        packet = _ANSWER.pack(letter, incarnation, proc, number) + text.encode(errors="replace")[:_TEXT_BYTES_MAX]
        with suppress(ConnectionError):
            socket.send_fds(self._sock, [packet], fds)

    def is_orphaned(self) -> bool:
        """Whether the driver has ended."""
        poll = select.poll()
        poll.register(self._driver, select.POLLIN)
        return bool(poll.poll(0))

    def serve(self) -> tuple[int, int, list[int]]:
        """Fork and reap until the agent or the driver ends; returns only in a child, with what that is to be."""
        poll = select.poll()
        for fd in (self._sock.fileno(), self._wakeup, self._driver):
            poll.register(fd, select.POLLIN)
        later: list[str] = list(_MODULES_LATER)
        by = time.monotonic() + _LATER_S
        while True:
            ready = {fd for fd, _ in poll.poll(max(0.0, by - time.monotonic()) * 1e3 if later else None)}
            if not ready:
                _import_later(later)
            if self._driver in ready:
                self._end()
            if self._wakeup in ready:
                self._reap()
            if self._sock.fileno() in ready:
                born = self._request()
                if born is not None:
                    return born

    def _request(self) -> tuple[int, int, list[int]] | None:
        packet, fds = _proc.receive(self._sock, _PACKET_BYTES_MAX)
        if not packet:
            self._end()
        letter, incarnation, proc = _proc.REQUEST.unpack(packet)
        pid = 0
        try:
            _check(fds)
            # Children that we have by now and that are no procs are orphans of procs that live.
            self._adopted |= set(_children()) - self._procs.keys()
            pid = _fork() if letter == b"F" else _execute(fds)
        except OSError as error:
            self.answer(b"N", proc, incarnation, 0, text=str(error.strerror or error))
        else:
            if pid == 0:
                self._become(proc, incarnation, fds)
                return proc, incarnation, fds
            self._made(pid, proc, incarnation)
        for fd in fds:
            os.close(fd)
        return None

    def _made(self, pid: int, proc: int, incarnation: int) -> None:
        """Tell of a child. It is not reaped before this loop turns again, so that the number is still its."""
        self._procs[pid] = (proc, incarnation)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            # The agent sees that the descriptor is missing; the child ends when its lane closes.
            self.answer(b"F", proc, incarnation, pid)
        else:
            self.answer(b"F", proc, incarnation, pid, fds=(pidfd,))
            os.close(pidfd)

    def _become(self, proc: int, incarnation: int, fds: list[int]) -> None:
        """In the child: leave everything of the template behind."""
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _write_mark(self._mark_address, proc, incarnation)
        # This number belongs to a socket object; it is closed with the rest.
        self._sock.detach()
        keep = {0, 1, 2, *fds}
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd not in keep:
                with suppress(OSError):
                    os.close(fd)
        ends = _proc.named(fds)
        os.dup2(ends["stdout"], 1)
        os.dup2(ends["stderr"], 2)
        # `random` does so by itself.
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()

    def _reap(self) -> None:
        """Take the status of every child that has ended, and end what dead procs left behind."""
        with suppress(BlockingIOError):
            while os.read(self._wakeup, 512):
                pass
        any_proc = False
        while True:
            try:
                # Told first, reaped then: who finds the process gone has its status already.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended is None:
                break
            pid = ended.si_pid
            if pid in self._procs:
                any_proc = True
                status = ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status
                self.answer(b"X", *self._procs.pop(pid), status)
            self._adopted.discard(pid)
            os.waitpid(pid, 0)
        if any_proc:
            self._kill_orphans()

    def _kill_orphans(self) -> None:
        """Kill orphans that came with the death of a proc; what carries the mark of a living one stays."""
        living = {_mark_of(proc, incarnation) for proc, incarnation in self._procs.values()}
        for pid in set(_children()) - self._procs.keys() - self._adopted:
            if any(mark in _environ(pid) for mark in living):
                self._adopted.add(pid)
            else:
                _kill(pid)

    def _end(self) -> None:
        """The job has ended: so does every descendant. Each that dies hands its children to us."""
        while True:
            for pid in _children():
                _kill(pid)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                os._exit(0)


def _children() -> list[int]:
    """Our children, those that have ended too."""
    try:
        with open("/proc/thread-self/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        # A kernel without that list.
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == os.getpid()]


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _mark_of(proc: int, incarnation: int) -> bytes:
    return b"/%016x/%08x" % (proc, incarnation)


def _find_mark() -> int:
    """Where the proc's part of our mark lies in memory: in what the kernel shows as our environment."""
    environ = _environ(os.getpid())
    start = environ.find(_MARK)
    if start < 0:
        return 0
    with open("/proc/self/stat", "rb") as file:
        # Field 50 of proc(5), counted behind the name, which is field 2.
        base = int(file.read().rpartition(b")")[2].split()[47])
    # Behind the job's 32 digits.
    return base + start + len(_MARK) + 32 if base else 0


def _write_mark(address: int, proc: int, incarnation: int) -> None:
    """Carry the proc's mark, as what it forks will: the kernel shows the environment a process was executed with."""
    if not address:
        return
    try:
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            os.pwrite(memory.fileno(), _mark_of(proc, incarnation), address)
    except OSError as error:
        # Hardened kernels forbid it: what is forked and not executed is then found by its process group alone.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EIO, errno.EFAULT):
            raise
