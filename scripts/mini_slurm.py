#!/usr/bin/env python3
"""A real Slurm cluster of several nodes on one machine, to be thrown away.

    scripts/mini_slurm.py prepare                install what is missing (Debian's packages; needs root)
    scripts/mini_slurm.py start DIR [--nodes N]  start it; its state lies in DIR (--while PID: as long as that process lives, at most)
    scripts/mini_slurm.py exec DIR NODE COMMAND… run a command on a node, or on `login`: this host, with the nodes' names known
    scripts/mini_slurm.py kill DIR NODE          cut a node's power
    scripts/mini_slurm.py boot DIR NODE          and give it back, once Slurm has given the node up
    scripts/mini_slurm.py stop DIR               end it all; DIR stays
    scripts/mini_slurm.py with [--nodes N] COMMAND…  run a command on the login node of one that lasts as long; $MINI_SLURM is its DIR

Each node is a slurmd in namespaces of its own, so it has an address, a host name, ports and processes of its own; files are those of
this machine, as on a cluster with a shared file system. The partition `main` may be preempted by `urgent` (SIGTERM, 5 s, then
requeued); each node claims 4 processors and 2 GPUs, which are copies of /dev/null.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from mini_cluster import MiniCluster, commands_of, fail, not_found, obey

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "iproute2", "procps"]
PROGRAMS = ["slurmctld", "slurmd", "srun", "munged", "ip", "unshare", "nsenter", "pgrep"]
GPUS = 2

# Slurm's own defaults are for clusters that are watched by people: minutes pass before a silent node is down.
CONFIG = """\
ClusterName=mini
SlurmctldHost={host}({subnet}.1)
SlurmctldPort={port}
SlurmdPort=6818
SrunPortRange=60001-62000
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={dir}/run/munge.sock
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/state/%n
SlurmctldPidFile={dir}/run/slurmctld.own.pid
SlurmdPidFile={dir}/run/slurmd-%n.own.pid
# Neither cgroups nor pinning: a node claims more than this machine has.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
GresTypes=gpu
SlurmdTimeout=6
MessageTimeout=5
TCPTimeout=2
KillWait=3
ReturnToService=2
MinJobAge=600
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=DEFAULT CPUs=4 RealMemory=2000 Gres=gpu:{gpus}
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=5
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""

# A shell stays the node's first process: it takes in what is left of jobs. slurmd waits for its cable.
NODE = """\
set -e
hostname "$1"; mount --bind "$2/hosts" /etc/hosts; mount --bind "$2/nsswitch.conf" /etc/nsswitch.conf
ip link set lo up; until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip addr add "$3/24" dev eth0; ip link set eth0 up; ip route add default via "$4"
SLURM_CONF=$2/slurm.conf slurmd -D -N "$1" -L "$2/log/slurmd-$1.log"
"""


class Slurm(MiniCluster):
    """A cluster of Slurm's."""

    letters = "msl"
    folders = ("state", "dev")
    daemons = ("slurmctld", "munged")
    nodes = 4
    daemons_end_by = signal.SIGTERM
    # A node's holder: the whole node ends with it.
    nodes_end_by = signal.SIGKILL

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.port = 16000 + self.tag % 4000
        self.environment["SLURM_CONF"] = f"{self.dir}/slurm.conf"

    def first_process(self, node: str) -> int | None:
        """The node's first process, as this host numbers it."""
        pid = self.pid(f"node-{node}")
        found = self.command("pgrep", "-P", str(pid), check=False).stdout.split() if pid else []
        return int(found[0]) if found else None

    def begin(self, count: int) -> None:
        """Starts the daemons and the nodes; returns when all are idle."""
        self.dir.chmod(0o755)
        nodes = {f"n{number}": f"{self.subnet}.{10 + number}" for number in range(1, count + 1)}
        self.write_files(nodes)
        run = self.dir / "run"
        # It dislikes root and folders that others can write, which is what it has here.
        self.spawn(
            "munged", "munged", "--foreground", "--force", f"--key-file={run}/munge.key", f"--socket={run}/munge.sock",
            f"--pid-file={run}/munged.own.pid", f"--log-file={self.dir}/log/munged.own.log", f"--seed-file={run}/seed",
        )  # fmt: skip
        self.wait_for("munged", (run / "munge.sock").exists, 10)
        self.spawn("slurmctld", *self.with_names("slurmctld", "-D", "-i", "-L", f"{self.dir}/log/slurmctld.own.log"))
        self.wait_for("slurmctld", lambda: self.command("scontrol", "ping", check=False).returncode == 0, 20)
        for node in nodes:
            self.switch_on(node)
        self.wait_for("all nodes are idle", lambda: self.idle() == count, 30)

    def write_files(self, nodes: dict[str, str]) -> None:
        """The configuration, who is where, the key, the devices."""
        host = os.uname().nodename
        names = [f"{address} {node}" for node, address in nodes.items()]
        hosts = ["127.0.0.1 localhost", f"{self.subnet}.1 {host} login", *names]
        (self.dir / "hosts").write_text("\n".join([*hosts, ""]))
        # Nobody answers a node's questions for other names, and it is not to wait for that.
        (self.dir / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
        lines = "\n".join(f"NodeName={node} NodeAddr={address}" for node, address in nodes.items())
        config = CONFIG.format(
            host=host, subnet=self.subnet, port=self.port, dir=self.dir, gpus=GPUS, nodes=lines
        )  # fmt: skip
        (self.dir / "slurm.conf").write_text(config)
        (self.dir / "gres.conf").write_text(f"Name=gpu File={self.dir}/dev/gpu[0-{GPUS - 1}]\n")
        for number in range(GPUS):
            device = self.dir / "dev" / f"gpu{number}"
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        key = self.dir / "run" / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))

    def with_names(self, *command: str) -> list[str]:
        """A command for which the nodes' names are known; the machine's own file stays as it is."""
        script = 'mount --bind "$0" /etc/hosts; exec "$@"'
        return ["unshare", "--mount", "bash", "-c", script, f"{self.dir}/hosts", *command]

    def idle(self) -> int:
        """How many nodes are."""
        return sum(map(int, self.command("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D").stdout.split()))

    def boot(self, node: str) -> None:
        """Starts one that was killed. Of one that is back before it was missed, Slurm cancels the steps, on all other nodes, too."""
        self.wait_for(
            f"Slurm knows that {node} is down",
            lambda: self.command("sinfo", "-h", "-p", "main", "-n", node, "-o", "%T").stdout.startswith("down"), 40,
        )  # fmt: skip
        self.switch_on(node)

    def switch_on(self, node: str) -> None:
        """Starts a node."""
        number = int(node[1:])
        end = f"{self.bridge}.{number}"
        self.command("ip", "link", "del", end, check=False)
        self.spawn(
            f"node-{node}", "unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc",
            "bash", "-c", NODE, "node", node, str(self.dir), f"{self.subnet}.{10 + number}", f"{self.subnet}.1",
        )  # fmt: skip
        self.wait_for(f"{node} has a first process", lambda: self.first_process(node), 10)
        self.command(
            "ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", str(self.first_process(node))
        )
        self.command("ip", "link", "set", end, "master", self.bridge, "up")

    def kill(self, node: str) -> None:
        """Ends a node and all that runs there, at once."""
        os.kill(self.running(node), signal.SIGKILL)
        self.wait_for(f"{node} is gone", lambda: self.first_process(node) is None, 10)

    def running(self, node: str) -> int:
        """The first process of a node that has to run."""
        return self.first_process(node) or fail(f"{node} does not run")

    def exec(self, node: str, command: list[str]) -> NoReturn:
        """Becomes a command there."""
        if node == "login":
            whole = self.with_names(*command)
        else:
            whole = [
                "nsenter",
                "-t",
                str(self.running(node)),
                "-m",
                "-u",
                "-n",
                "-p",
                f"--wdns={Path.cwd()}",
                "--",
                *command,
            ]
        os.execvpe(whole[0], whole, self.environment)

    def used_by(self, command: list[str]) -> tuple[list[str], dict[str, str]]:
        """A command on the login node."""
        return [sys.executable, __file__, "exec", str(self.dir), "login", *command], {}

    @staticmethod
    def lacking() -> list[str]:
        """The programs that are not there."""
        return not_found(PROGRAMS)

    @staticmethod
    def prepare() -> None:
        """Installs what is missing."""
        if not Slurm.lacking():
            return
        if os.getuid() != 0 or shutil.which("apt-get") is None:
            fail(
                f"{', '.join(Slurm.lacking())} not found: install Slurm (Debian: apt-get install {' '.join(PACKAGES)})"
            )
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *PACKAGES]
        for _ in range(2):
            done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
            if done.returncode == 0:
                return
            subprocess.run(["apt-get", "update", "--quiet"], stdout=subprocess.DEVNULL, check=False)
        fail("Slurm could not be installed (see above)")


def main() -> None:
    """Does it."""
    parser, commands = commands_of(Slurm, __doc__)
    inside = commands.add_parser("exec")
    inside.add_argument("dir")
    inside.add_argument("node")
    inside.add_argument("command", nargs=argparse.REMAINDER)
    obey(Slurm, parser, "installs Slurm")


main()
