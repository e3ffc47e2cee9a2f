"""H3. Another user of the same machine reaches nothing of a job: no socket, no memory, no file, no process."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from agents import Agent, agents
from another_user import NOBODY
from leftovers import started_here
from loops import on_a_loop
from memories import MIB, pattern, two

import roost
from roost.errors import AuthenticationError

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root"),
]

PROGRAM = Path(__file__).with_name("another_user.py")
COMMAND = [sys.executable, "-I", "-S", str(PROGRAM)]
ROOT = 0
# Of /proc/net: the flag of a Unix socket, and the state of a TCP socket, that listens.
UNIX_LISTENS, TCP_LISTENS = 0x10000, "0A"


def tables_of(pid):
    """Its descriptors, (thread, number) and what each is, in the file tables of all its threads."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for entry in (task / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found[int(task.name), int(entry.name)] = os.readlink(entry)
    return found


def unix_sockets(inodes):
    """Those of these sockets that have a name, or listen: their kinds and names."""
    found = []
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, kind, _, inode, *name = line.split(maxsplit=7)
        if inode in inodes and (name or int(flags, 16) & UNIX_LISTENS):
            found.append((int(kind, 16), name[0] if name else ""))
    return found


def tcp_listeners(inodes):
    """Those of these sockets that listen: their addresses and ports."""
    found = []
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if inode in inodes and state == TCP_LISTENS:
                words, port = local.split(":")
                packed = b"".join(
                    int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8)
                )
                found.append((socket.inet_ntop(family, packed), int(port, 16)))
    return found


def what_there_is(private=()):
    """All of a job that might be reached: of this process, which is the driver, and of all that it has started."""
    processes, held = {}, set()
    ours = [pid for pid in started_here() if os.stat(f"/proc/{pid}").st_uid == os.geteuid()]
    for pid in [os.getpid(), *ours]:
        tables = tables_of(pid)
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        processes[pid] = list(tables), int(lines[0].partition("-")[0], 16)
        held |= {
            *tables.values(),
            *(line.split(maxsplit=5)[5] for line in lines if line.count(" ") > 4 and "/" in line),
        }
    inodes = {one[len("socket:[") : -1] for one in held if one.startswith("socket:[")}
    files = [one for one in held if one.startswith("/") and not one.startswith("/dev/") and os.path.isfile(one)]
    return {
        "processes": processes, "unix": unix_sockets(inodes), "tcp": tcp_listeners(inodes), "files": files,
        "private": [str(one) for one in private],
    }  # fmt: skip


def tried(seen, user):
    """What came of it when this user tried to reach all of that."""
    done = subprocess.run(
        [*COMMAND, "try", str(user)], input=json.dumps(seen), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def relayed(user, address):
    """An address where a process of this user listens, which passes on what comes to another address."""
    command = [*COMMAND, "relay", str(user), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            yield program.stdout.readline().strip()
        finally:
            program.kill()


@on_a_loop
async def test_h3_a_job_of_one_host_has_nothing_that_another_user_reaches(figures):
    """Nothing of it listens, or has a name; and its processes, memory and files are closed to others."""
    shm = set(os.listdir("/dev/shm"))
    async with two("shared") as (owner, reader):
        buffer = await owner.lend.call_one(MIB)
        await reader.run.call_one(a_read, buffer)
        # Large enough for shared memory, and of procs that talk to each other.
        assert await reader.run.call_one(asked_to_sum, owner, np.ones(8 * MIB, np.uint8)) == 8 * MIB
        seen = what_there_is()
        assert (seen["unix"], seen["tcp"]) == ([], [])
        assert set(os.listdir("/dev/shm")) <= shm
        # So it would be seen: root finds open what is closed to others.
        by_root = tried(seen, ROOT)
        names = {re.sub(r"\d+", "N", one) for one in by_root["reached"]}
        assert {"/proc/N/environ", "/proc/N/fd", "/proc/N/task/N/fd/N", "a signal to N"} <= names
        by_another = await asyncio.to_thread(tried, seen, NOBODY)
        assert by_another["reached"] == []
        await reader.run.call_one(a_read, buffer)
    figures(
        f"{by_another['tried']} attempts at {len(seen['processes'])} processes; 0 got anywhere, as root {len(by_root['reached'])}"
    )


async def a_read(buffer):
    target = np.zeros(buffer.size, np.uint8)
    await buffer.read_into(target)
    assert (target == pattern(buffer.size)).all()


async def asked_to_sum(other, array):
    return await other.run.call_one(summed, array)


async def summed(array):
    return int(array.sum())


@asynccontextmanager
async def attached(address, key=None):
    async with roost.attach([address], key_file=key) as hosts, hosts.spawn_procs() as procs:
        await procs.ready()
        yield


async def refused(address, why):
    with pytest.raises(AuthenticationError, match=why):
        async with attached(address):
            pass


@pytest.fixture
def open_folder():
    """A folder whose files everybody can get at, as far as their own modes allow it."""
    folder = Path(tempfile.mkdtemp(prefix="roost-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@on_a_loop
async def test_h3_an_agent_at_a_unix_socket_is_reached_by_its_own_user_alone(open_folder, figures):
    """In a folder that is open to all, with nothing but the socket's own mode; and without that, and a key, by the caller's user."""
    path = open_folder / "socket"
    log = []
    with agent_at(f"unix:{path}", log):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with attached(f"unix:{path}"):
            seen = what_there_is()
            listening = {name for _, name in seen["unix"]}
            assert listening == {str(path)}
            assert seen["tcp"] == []
            found = await asyncio.to_thread(tried, seen, NOBODY)
            assert found["reached"] == []
        path.chmod(0o777)
        with relayed(NOBODY, f"unix:{path}") as other, relayed(ROOT, other) as address:
            await refused(address, "takes in nobody else")
        async with attached(f"unix:{path}"):
            pass
    assert f"user {NOBODY} was refused" in log[0]
    figures(f"{found['tried']} attempts at {len(seen['processes'])} processes and a socket: 0 got anywhere")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
@on_a_loop
async def test_h3_without_a_key_neither_end_takes_another_user_for_its_own(listen):
    """Everybody reaches loopback: an agent asks whose process calls, a driver whose process listens."""
    log = []
    with agent_at(listen, log) as agent:
        with relayed(ROOT, agent.address) as address:
            async with attached(address):
                pass
        # Each end is shown the other user alone.
        with relayed(ROOT, agent.address) as inner, relayed(NOBODY, inner) as address:
            await refused(address, "another user's process listens there")
        with relayed(NOBODY, agent.address) as inner, relayed(ROOT, inner) as address:
            await refused(address, "takes in nobody else")
        async with attached(agent.address):
            pass
    assert f"user {NOBODY} was refused" in log[0]


@on_a_loop
async def test_h3_with_a_key_another_users_relay_is_only_a_wire(tmp_path):
    """It may hold up and cut off; who has the key is who is talked to."""
    with agents(tmp_path) as ([agent], key), relayed(NOBODY, agent.address) as address:
        async with attached(address, key):
            seen = what_there_is([key])
            found = await asyncio.to_thread(tried, seen, NOBODY)
            assert found["reached"] == [f"the port {host}:{port}" for host, port in seen["tcp"]]
        await refused(address, "does not let this program in")


@contextmanager
def agent_at(listen, log):
    """An agent without a key; what it has said is in the log afterwards."""
    agent = Agent("--listen", listen)
    try:
        yield agent
    finally:
        log.append(agent.end(signal.SIGTERM)[2])
