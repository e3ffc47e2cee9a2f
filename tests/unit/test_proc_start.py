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
