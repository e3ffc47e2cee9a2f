"""`SshJob` through a real sshd, which each connection starts for itself on a port that the system chose."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from leftovers import processes, stat
from loops import handled, next_of, on_a_loop, until
from working import Worker

from roost.errors import JobError
from roost.job import MeshSpec, SshJob

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.timeout(60),
    pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="no OpenSSH server and client"),
]

SERVER = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
PidFile none
"""
CLIENT = """\
Host n1 n2 n3
    HostName 127.0.0.1
    HostKeyAlias cluster
    Port {port}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking yes
    LogLevel ERROR
"""


class Server:
    """What accepts connections."""

    def __init__(self, folder):
        self.folder = folder
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sessions = []
        self.seen = set()
        self._thread = threading.Thread(target=self._accept)
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "sshd_config").write_text(SERVER.format(folder=folder))
        port = self._listening.getsockname()[1]
        (folder / "ssh_config").write_text(CLIENT.format(folder=folder, port=port))
        (folder / "known_hosts").write_text(f"cluster {(folder / 'host_key.pub').read_text()}")

    def __enter__(self):
        if os.getuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # where it locks itself in
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        for session in self._sessions:
            session.wait(20)
        # What ends after its sshd is this process's then, which takes in its end.
        theirs = [pid for pid in processes() if (seen := stat(pid)) and seen[1:] == (os.getpid(), "sshd")]
        for pid in [*self.seen, *theirs]:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            command = [SSHD, "-i", "-e", "-f", self.folder / "sshd_config"]
            with connection, open(self.folder / "sshd.log", "ab") as log:
                self._sessions.append(subprocess.Popen(command, stdin=connection, stdout=connection, stderr=log))

    def job(self, meshes, name="j", **options):
        given = {"hosts": ["n1", "n2"], "env": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, **options}
        folder = self.folder / name
        return SshJob(meshes, name=name, folder=folder, ssh_args=["-F", str(self.folder / "ssh_config")], **given)


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path) as found:
        yield found


def agents_of(server):
    """The processes there that are agents."""
    found = []
    for folder in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path("/proc", folder, "environ").read_bytes()
            command = Path("/proc", folder, "cmdline").read_bytes()
        except OSError:
            continue
        if b"--key-stdin\0" in command and f"ROOST_TEST={server.folder}".encode() in environment:
            found.append(int(folder))
    server.seen.update(found)
    return found


@on_a_loop
async def test_hosts_that_are_given_and_one_whose_connection_ends(server):
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "ROOST_TEST": str(server.folder)}
    job = server.job({"trainers": MeshSpec(2, at_least=1)}, env=env)
    await job.apply()
    events = job.events()
    try:
        async with await job.state() as hosts:
            assert list(hosts.trainers.names) == ["n1", "n2"]
            async with hosts.trainers.spawn_procs(supervise=handled) as procs:
                workers = await procs.spawn("workers", Worker)
                assert list(await workers.add.call(1)) == [11, 11]
                assert len(agents_of(server)) == 2
                clients = list(map(int, (await job.status()).ids))
                os.kill(clients[1], signal.SIGKILL)
                lost = await next_of(events, "host_lost")
                assert (lost.mesh, lost.rank, lost.host) == ("trainers", 1, "n2")
                await until(lambda: len(agents_of(server)) == 1)
                assert await workers.slice(hosts=0).add.call_one(1) == 11
    finally:
        ended = await SshJob.connect("j", folder=job.folder).kill()
    assert ended.state == "ended"
    assert agents_of(server) == [], "its end was waited for"
    assert "the connection by which it was started has ended" in "\n".join(job.logs("trainers"))


@on_a_loop
async def test_why_a_host_cannot_be_had(server):
    for python, words in {
        "/nowhere/python": "n1: .*/nowhere/python.*; python=",
        "/bin/false": "n1: its agent exited with code 1",
    }.items():
        job = server.job({"trainers": 1}, name=Path(python).parent.name, python=python)
        await job.apply()
        with pytest.raises(JobError, match=words):
            await job.ready()
    bare = server.job({"trainers": 1}, name="bare", env={"PYTHONPATH": ""}, python=f"{sys.base_prefix}/bin/python3")
    await bare.apply()
    with pytest.raises(JobError, match=r"No module named roost; install Roost for"):
        await bare.ready()
    (server.folder / "known_hosts").write_text("")
    strange = server.job({"trainers": 1}, name="strange")
    await strange.apply()
    with pytest.raises(JobError, match=r"n1: Host key verification failed\.; connect once by hand, `ssh n1`"):
        await strange.ready()


@on_a_loop
async def test_more_hosts_come_from_those_that_are_given(server):
    job = server.job({"trainers": 1}, hosts=["n1", "n2"])
    await job.apply()
    try:
        await job.resize("trainers", 2)
        assert [one.host for one in (await job.ready()).hosts] == ["n1", "n2"]
        with pytest.raises(JobError, match="no host is free: hosts= gives 2"):
            await job.resize("trainers", 3)
        # One that is given back and taken again is another agent, at another port.
        await job.resize("trainers", 1)
        await job.resize("trainers", 2)
        async with await job.state(timeout=20) as hosts, hosts.trainers.spawn_procs() as procs:
            assert list(await procs.spawn("workers", Worker).add.call(1)) == [11, 11]
    finally:
        await job.kill()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": ["n1"]}, "2 hosts are asked for, and 1 are given"),
        ({"hosts": ["n1", "n1"]}, "name each host once"),
        ({"hosts": ["n1", "-oProxyCommand=x"]}, "is no host for ssh"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options, words):
    with pytest.raises(ValueError, match=words):
        SshJob({"trainers": 2}, **options)
