"""`ProcessHosts`: several agents on this machine, for tests and for trying out what needs many hosts."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from roost.addresses import runtime_folder
from roost.attaching import attach
from roost.keys import make_key
from roost.process import current
from roost.values import check_integer

if TYPE_CHECKING:
    from roost.host_mesh import HostMesh

__all__ = ["ProcessHosts", "reap"]

# How long an agent has to end by itself once its only driver has let go of it.
_END_S = 15.0
# How often that is looked at which ends without telling.
_LOOK_S = 0.01

# More than a machine has room for; a number typed wrongly would fill its memory with names.
_HOSTS_MAX = 4096


class ProcessHosts:
    """Agents on this machine, each a process and a host of its own: for tests, and for trying out.

    `async with ProcessHosts(4) as hosts`, or `with` in a plain script, gives a `HostMesh` with the dimension `hosts`, as `attach()`
    does. All that goes between these hosts goes over TCP, encrypted, as it would between machines. They end with the block, or
    with this process, however that ends.

    Args:
        count: how many.
        lease_s: as of `attach()`.
        timeout: seconds in which all must be there.

    Raises:
        ValueError: a count that makes no sense.
    """

    names: list[str]
    """What the hosts call themselves: host0, host1 and so on."""
    addresses: list[str]
    """Where they listen, once they have started."""
    processes: list[subprocess.Popen[str]]
    """Their agents, once they have started."""

    def __init__(self, count: int, *, lease_s: float | None = None, timeout: float = 30.0) -> None:
        check_integer("ProcessHosts", "count", count, least=1, instead="one host is the least that there can be")
        if count > _HOSTS_MAX:
            raise ValueError(
                f"ProcessHosts count={count}: each is a process on this machine, and {_HOSTS_MAX} are the most"
            )
        self.names = [f"host{number}" for number in range(count)]
        self.addresses, self.processes = [], []
        self._lease_s, self._timeout = lease_s, timeout
        self._hosts: HostMesh | None = None

    async def __aenter__(self) -> HostMesh:
        folder = tempfile.mkdtemp(prefix="roost-", dir=runtime_folder())
        try:
            key = os.path.join(folder, "key")
            make_key(key)
            for name in self.names:
                self.processes.append(_started(name, key))
            self.addresses = list(await asyncio.gather(*(asyncio.to_thread(_address, one) for one in self.processes)))
            hosts = self._hosts = attach(self.addresses, key_file=key, lease_s=self._lease_s, timeout=self._timeout)
            return await hosts.__aenter__()
        except BaseException:
            await asyncio.shield(asyncio.to_thread(self._end, 0))
            raise
        finally:
            # Both ends have read it: nobody needs it any more.
            shutil.rmtree(folder)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        hosts = self._hosts
        assert hosts is not None
        hosts._record().shutting.update(range(len(self.names)))
        try:
            await hosts.__aexit__(kind, error, traceback)
        finally:
            await asyncio.shield(asyncio.to_thread(self._end, _END_S))

    def __enter__(self) -> HostMesh:
        runtime = current()
        runtime.refuse_on_loop("with", "async with")
        return runtime.run_elsewhere(self.__aenter__())

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        current().run_elsewhere(self.__aexit__(kind, error, traceback))

    def _end(self, wait_s: float) -> None:
        """See to it that no agent is left."""
        for process in self.processes:
            try:
                process.wait(wait_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        reap({process.pid for process in self.processes})


def _started(name: str, key: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "roost", "host", "--listen", "127.0.0.1:0", "--key-file", key, "--name", name,
        "--one-job", "--quiet", "--parent-pid", str(os.getpid()),
    ]  # fmt: skip
    # In a session of its own: a terminal's Ctrl-C is not meant for it, and what it leaves behind can be told by it.
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, start_new_session=True
    )


def reap(sessions: set[int]) -> None:
    """Take in what agents that were killed have left behind: it ends by itself, as children of this process."""
    until = time.monotonic() + _END_S
    while (left := _children_of(sessions)) and time.monotonic() < until:
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_LOOK_S)


def _children_of(sessions: set[int]) -> list[int]:
    """This process's children that are in these sessions."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            with open(f"/proc/{name}/stat") as file:
                _, parent, _, session, *_ = file.read().rpartition(")")[2].split()
            if int(parent) == os.getpid() and int(session) in sessions:
                found.append(int(name))
    return found


def _address(process: subprocess.Popen[str]) -> str:
    """What an agent says that it listens on."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("listening on "):
        raise RuntimeError(f"an agent did not start: it exited with code {process.wait()}")
    return line.split()[2]
