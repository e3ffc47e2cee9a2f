"""The first steps of a proc, and what its template does the same way."""

import os
import socket
import subprocess
import sys

from roost._proc import receive


def pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_a_packet_comes_with_its_descriptors():
    ours, theirs = pair()
    with ours, theirs:
        socket.send_fds(theirs, [b"packet"], [0])
        packet, fds = receive(ours, 100)
        assert packet == b"packet"
        assert len(fds) == 1
        assert not os.get_inheritable(fds[0])
        os.close(fds[0])


def test_the_end_of_the_other_side_is_no_packet():
    ours, theirs = pair()
    with ours:
        theirs.close()
        assert receive(ours, 100) == (b"", [])


def test_so_it_is_when_the_other_side_had_not_read_everything():
    ours, theirs = pair()
    with ours:
        ours.send(b"never read")
        theirs.close()
        assert receive(ours, 100) == (b"", [])


def test_a_template_whose_driver_is_gone_already_imports_nothing():
    driver = subprocess.Popen(["true"])
    driver_fd = os.pidfd_open(driver.pid)
    driver.wait()
    ours, theirs = pair()
    with ours, theirs:
        # A module that would not let it end, and no path but the interpreter's own.
        socket.send_fds(theirs, [b"\x011\0code.that_is_not_there"], [driver_fd])
        os.close(driver_fd)
        template = subprocess.run(
            [sys.executable, "-c", "from roost._template import main; main()"],
            stdin=ours,
            capture_output=True,
            check=False,
            timeout=60,
        )
    assert (template.returncode, template.stderr) == (0, b"")


JOINED_BEFORE_A_FORK = """
import ctypes, os
from roost._roost import count_threads_at_forks, threads_at_fork

count_threads_at_forks()
libc = ctypes.CDLL(None)
routine = ctypes.cast(libc.usleep, ctypes.c_void_p)
seen = set()
for _ in range(2_000):
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, routine, ctypes.c_void_p(0)) == 0
    assert libc.pthread_join(thread, None) == 0
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    seen.add(threads_at_fork())
print(seen)
"""


def test_a_thread_that_was_joined_before_a_fork_is_not_lost_by_it():
    """OpenBLAS puts its threads away like that; the system lists one for a moment longer."""
    result = subprocess.run([sys.executable, "-c", JOINED_BEFORE_A_FORK], capture_output=True, text=True, check=False)
    assert result.stdout == "{1}\n", result.stderr
