"""Procs of this machine with lanes as between hosts: TCP connections that may be cut. No pytest here.

A proc that preloads `apart_procs`, and a driver inside `apart()`, take the socket pairs that the agent makes only to agree on
a port; whoever has dialled dials again when the connection has broken.
"""

import asyncio
import contextlib
import socket
from unittest import mock

from roost._roost import FarLane, Node
from roost.membership import Members
from roost.runtime import Runtime

_SESSION = 77
_AGAIN_S = 0.005

# Other proc -> what this process has of the lane to it.
lanes = {}


class Dialler:
    """The side of a lane that makes its connections."""

    def __init__(self, runtime, proc, incarnation, fd, slot):
        self.runtime, self.proc, self.incarnation, self.slot = runtime, proc, incarnation, slot
        self.agreed = socket.socket(fileno=fd)
        self.port, self.connections, self.last = 0, 0, None
        runtime.loop.add_reader(fd, self.hear)

    def hear(self):
        self.runtime.loop.remove_reader(self.agreed)
        with self.agreed:
            self.port = int.from_bytes(self.agreed.recv(2), "little")
        self.dial()

    def dial(self):
        if self.runtime.closed:
            return
        made = socket.socket()
        try:
            made.connect(("127.0.0.1", self.port))
        except OSError:
            made.close()  # it has ended
            return
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.close()
        self.last = made.dup()
        self.connections += 1
        lane = FarLane(made.detach(), _SESSION, self.connections, True)
        self.runtime.node.adopt_far(self.proc, self.incarnation, lane, self.slot)

    def cut(self):
        """The network loses the connection, with all that is under way."""
        if self.last is not None:
            with contextlib.suppress(OSError):
                self.last.shutdown(socket.SHUT_RDWR)

    def close(self):
        if self.last is not None:
            self.last.close()


class Acceptor:
    """The side of a lane that is called."""

    def __init__(self, node, proc, incarnation, fd, slot):
        self.node, self.proc, self.incarnation, self.slot = node, proc, incarnation, slot
        self.loop = asyncio.get_running_loop()
        self.listener = socket.create_server(("127.0.0.1", 0))
        with socket.socket(fileno=fd) as agreed:
            agreed.sendall(self.listener.getsockname()[1].to_bytes(2, "little"))
        self.loop.add_reader(self.listener, self.accept)

    def accept(self):
        made, _ = self.listener.accept()
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lane = FarLane(made.detach(), _SESSION, 0, False)
        self.node.adopt_far(self.proc, self.incarnation, lane, self.slot)

    def close(self):
        self.loop.remove_reader(self.listener)
        self.listener.close()


def connected(members, proc, incarnation, fd, slot):
    runtime = members._runtime
    if proc in members.owned or (proc != runtime.owner and runtime.proc < proc):
        lanes[proc] = Dialler(runtime, proc, incarnation, fd, slot)
    else:
        lanes[proc] = Acceptor(runtime.node, proc, incarnation, fd, slot)


def adopt(node, proc, incarnation, fd, slot):
    """A proc's first lane, to its owner."""
    lanes[proc] = Acceptor(node, proc, incarnation, fd, slot)


def redial(runtime, proc):
    lane = lanes.get(proc)
    # Who is called could only ask the other to call, which does so by itself.
    if isinstance(lane, Dialler):
        runtime.loop.call_later(_AGAIN_S, lane.dial)


def patches():
    """From now on this process's lanes are connections."""
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(Members, "_on_connected", connected))
    stack.enter_context(mock.patch.object(Runtime, "redial", redial))
    stack.enter_context(mock.patch.object(Node, "adopt", adopt))
    return stack


@contextlib.contextmanager
def apart():
    """In the driver: lanes to procs that preload this module."""
    with patches():
        yield
    for lane in lanes.values():
        lane.close()
    lanes.clear()
