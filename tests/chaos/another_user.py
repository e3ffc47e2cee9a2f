"""Another user of this machine, as a program: begun by root, it becomes that user before it does anything. No pytest, no Roost here.

`another_user.py try USER` reads what there is of a job from its input, and tells what of it this user could reach; root only looks.
`another_user.py relay USER ADDRESS` listens on loopback as a user, says where, and passes on to an address what comes.
"""

import ctypes
import encodings.idna  # noqa: F401 - of names of hosts; later it cannot be read any more
import json
import os
import selectors
import socket
import sys
import threading
from contextlib import suppress

NOBODY = 65534
LIBC = ctypes.CDLL(None, use_errno=True)
# Of x86-64.
PTRACE, PRLIMIT, PROCESS_VM_READV, PROCESS_VM_WRITEV, KCMP, PIDFD_OPEN, PIDFD_GETFD = 101, 302, 310, 311, 312, 434, 438
PTRACE_SEIZE, RLIMIT_NOFILE, PIDFD_THREAD = 0x4206, 7, os.O_EXCL
# What `ptrace`'s rules guard, of a process's folder in /proc.
GUARDED_FILES = ("auxv", "environ", "io", "maps", "mem", "personality", "smaps", "stack", "syscall")
GUARDED_FOLDERS = ("fd", "fdinfo", "map_files")
GUARDED_LINKS = ("cwd", "exe", "root", "ns/net")


def become(user):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    with open("/proc/self/status") as status:
        can = next(line for line in status if line.startswith("CapEff:"))
    assert user == 0 or int(can.split()[1], 16) == 0


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def system_call(number, *arguments):
    result = LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Attempts:
    """What was tried, and what of it was no error."""

    def __init__(self):
        self.tried, self.reached = 0, []

    def __call__(self, what, work, *arguments):
        self.tried += 1
        try:
            work(*arguments)
        except OSError:
            return
        self.reached.append(what)


def opened(path, flags):
    os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK))


def read(path):
    with open(path, "rb") as file:
        file.read(1)


def connected(family, kind, address):
    with socket.socket(family, kind) as one:
        one.settimeout(5)
        one.connect(address)


def stolen(pid, fd):
    pidfd = system_call(PIDFD_OPEN, pid, PIDFD_THREAD)
    try:
        system_call(PIDFD_GETFD, pidfd, fd, 0)
    finally:
        os.close(pidfd)


def at_memory(number, pid, address):
    here = ctypes.create_string_buffer(8)
    near, far = Iovec(ctypes.addressof(here), 8), Iovec(address, 8)
    system_call(number, pid, ctypes.addressof(near), 1, ctypes.addressof(far), 1, 0)


def try_process(attempts, pid, fds, address):
    where = f"/proc/{pid}"
    for name in GUARDED_FILES:
        # Reading is what is guarded, of some; others do not even open.
        attempts(f"{where}/{name}", read, f"{where}/{name}")
    for name in GUARDED_FOLDERS:
        attempts(f"{where}/{name}", os.listdir, f"{where}/{name}")
    for name in GUARDED_LINKS:
        attempts(f"{where}/{name}", os.readlink, f"{where}/{name}")
    for thread, fd in fds:
        for flags in (os.O_RDONLY, os.O_RDWR):
            attempts(f"{where}/task/{thread}/fd/{fd}", opened, f"{where}/task/{thread}/fd/{fd}", flags)
        attempts(f"pidfd_getfd of {fd} of {thread}", stolen, thread, fd)
    attempts(f"a signal to {pid}", os.kill, pid, 0)
    attempts(f"process_vm_readv of {pid}", at_memory, PROCESS_VM_READV, pid, address)
    if os.geteuid() != 0:
        change_process(attempts, pid, address)


def change_process(attempts, pid, address):
    """What would change it, where that is allowed."""
    attempts(f"the processors of {pid}", os.sched_setaffinity, pid, os.sched_getaffinity(0))
    attempts(f"process_vm_writev of {pid}", at_memory, PROCESS_VM_WRITEV, pid, address)
    attempts(f"ptrace of {pid}", system_call, PTRACE, PTRACE_SEIZE, pid, 0, 0)
    attempts(f"kcmp of {pid}", system_call, KCMP, pid, os.getpid(), 1, 0, 0)
    limits = (ctypes.c_ulong * 2)(64, 64)
    attempts(f"limits of {pid}", system_call, PRLIMIT, pid, RLIMIT_NOFILE, ctypes.addressof(limits), 0)


def try_all(seen):
    attempts = Attempts()
    for pid, (fds, address) in seen["processes"].items():
        try_process(attempts, int(pid), fds, address)
    for kind, name in seen["unix"]:
        # An abstract one begins with an @ where people read it.
        attempts(f"the socket {name}", connected, socket.AF_UNIX, kind, f"\0{name[1:]}" if name[0] == "@" else name)
    for host, port in seen["tcp"]:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        attempts(f"the port {host}:{port}", connected, family, socket.SOCK_STREAM, (host, port))
    for path in seen["files"]:
        attempts(f"{path}, to write", opened, path, os.O_WRONLY)
    for path in seen["private"]:
        attempts(f"{path}, to read", opened, path, os.O_RDONLY)
    return {"tried": attempts.tried, "reached": attempts.reached}


def dialled(address):
    if address.startswith("unix:"):
        one = socket.socket(socket.AF_UNIX)
        one.connect(address.removeprefix("unix:"))
        return one
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)))


def relay(address):
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(f"127.0.0.1:{server.getsockname()[1]}", flush=True)
        while True:
            near, _ = server.accept()
            threading.Thread(target=pass_on, args=(near, address), daemon=True).start()


def pass_on(near, address):
    try:
        far = dialled(address)
    except OSError:
        near.close()
        return
    with near, far, selectors.DefaultSelector() as selector:
        selector.register(near, selectors.EVENT_READ, far)
        selector.register(far, selectors.EVENT_READ, near)
        while selector.get_map():
            for key, _ in selector.select():
                pass_on_from(key.fileobj, key.data, selector)


def pass_on_from(one, other, selector):
    try:
        said = one.recv(1 << 16)
    except OSError:
        said = b""
    # Who has closed its end may have said why before: that is still to come.
    with suppress(OSError):
        if said:
            other.sendall(said)
        else:
            other.shutdown(socket.SHUT_WR)
    if not said:
        selector.unregister(one)


if __name__ == "__main__":
    if sys.argv[1] == "try":
        job = json.load(sys.stdin)
        become(int(sys.argv[2]))
        json.dump(try_all(job), sys.stdout)
    else:
        become(int(sys.argv[2]))
        relay(sys.argv[3])
