"""Hosts in network namespaces of one machine: each has an address of its own, and its wire can be cut, lossy, or hostile.

The driver runs where the tests do. A namespace of its own, the switch, joins them: the machine's own filters see none of it but
the driver's packets.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from roost.keys import make_key

# A range for tests of networks (RFC 2544): no real host has such an address.
RANGE = "198.18"
PORT = 7000
NAMESPACES = Path("/run/netns")
DRIVER = 1
FIRST_HOST = 10
FIRST_OTHER, OTHERS = 100, 150
_UNTIL_IT_LISTENS_S = 60


def reason_to_skip():
    """Why there can be no network of namespaces here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need {' and '.join(missing)} (Debian: iproute2, nftables)"
    # A container may have root and tools, and not the right.
    name = f"roost-{os.getpid()}-try"
    tried = subprocess.run(
        f"ip netns add {name} && ip netns exec {name} nft list ruleset", shell=True, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"network namespaces do not work here: {tried.stderr.strip()}"


def ip(*lines, within=None):
    """Run many commands of `ip` at once, in a namespace where it is given."""
    where = [] if within is None else ["-n", within]
    subprocess.run(["ip", *where, "-batch", "-"], input="\n".join(lines), text=True, check=True)


def pids_in(namespace):
    """The processes of a namespace."""
    inode = (NAMESPACES / namespace).stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/net").stat().st_ino == inode:
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended
    return found


class HostThere:
    """A host: a namespace with an address, and the agent in it."""

    def __init__(self, network, number):
        self.network, self.number = network, number
        self.name = f"host{number}"
        self.namespace = f"{network.prefix}-{number}"
        self.address = f"{network.range}.{FIRST_HOST + number}"
        self.port = PORT
        self.agent = None
        self.log = network.folder / f"{self.name}.log"
        self._orphans = []

    @property
    def where(self):
        """What a driver attaches."""
        return f"{self.address}:{self.port}"

    # The agent -----------------------------------------------------------------------------------------------------
    def start(self, *arguments, key=None):
        """Start an agent, which has no other in its place, and return at once."""
        command = [
            sys.executable, "-m", "roost", "host", "--listen", self.where, "--name", self.name,
            "--key-file", str(key or self.network.key), *arguments,
        ]  # fmt: skip
        with self.log.open("a") as log:
            self.agent = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *command], stdout=subprocess.PIPE, stderr=log, text=True,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return self

    def listens(self):
        """Block until the agent does."""
        line = self.agent.stdout.readline()
        assert line.startswith("listening on "), f"{self.name} did not start: {self.log.read_text()}"
        return self

    def kill(self, number=signal.SIGKILL):
        """Send the agent a signal; when it is killed, wait for that."""
        if number == signal.SIGKILL:
            self._orphans += self.pids()
        os.kill(self.agent.pid, number)
        if number == signal.SIGKILL:
            self.forget()

    def forget(self):
        """The agent has ended, or does now."""
        self.agent.wait()
        self.agent.stdout.close()
        self.agent = None

    def pids(self):
        """Its processes but for the agent: procs, and the template that they are forked from."""
        return [pid for pid in pids_in(self.namespace) if self.agent is None or pid != self.agent.pid]

    def reap(self):
        """Take the statuses of what a killed agent left: a driver in this process adopts it."""
        for pid in self._orphans:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def rss(self):
        """The agent's resident memory, in bytes."""
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.agent.pid}/status").read_text())[1]) << 10

    # Its wire ------------------------------------------------------------------------------------------------------
    def cut(self, way="both", other=None):
        """Drop what comes in, what goes out, or both; of one other host, or address, alone where it is given."""
        address = getattr(other, "address", other)
        whom = {"in": "", "out": ""} if other is None else {"in": f"ip saddr {address} ", "out": f"ip daddr {address} "}
        self._fault(*((side, f"{whom[side]}drop") for side in ("in", "out") if way in (side, "both")))

    def lose(self, percent):
        """Drop some of the packets, at random, in both directions."""
        self._fault(*((side, f"numgen random mod 1000 < {int(10 * percent)} drop") for side in ("in", "out")))

    def reset(self, a_second):
        """Reset a connection whose data comes in, so often at most."""
        rule = f"tcp flags & (syn|fin|rst) == 0 ip length > 60 limit rate {a_second}/second burst 1 packets counter reject with tcp reset"
        self._fault(("in", rule))

    def resets(self):
        """How many there were."""
        rules = self._nft("list ruleset")
        return int(re.search(r"counter packets (\d+)", rules)[1])

    def heal(self):
        """All of it is over."""
        self._nft("flush ruleset")

    def _fault(self, *rules):
        chains = "\n".join(
            f"chain {side} {{ type filter hook {hook} priority 0\n"
            + "\n".join(rule for where, rule in rules if where == side)
            + "\n}"
            for side, hook in (("in", "input"), ("out", "output"))
        )
        self._nft(f"flush ruleset\ntable inet fault {{\n{chains}\n}}")

    def _nft(self, rules):
        command = ["ip", "netns", "exec", self.namespace, "nft", "-f", "-"]
        return subprocess.run(command, input=rules, text=True, check=True, stdout=subprocess.PIPE).stdout


class Network:
    """Some hosts and the driver on one switch; `with` takes all of it away again."""

    def __init__(self, folder):
        self.folder = folder
        pid = os.getpid()
        self.prefix = f"roost-{pid}"
        self.range = f"{RANGE}.{pid % 256}"
        self.driver = f"{self.range}.{DRIVER}"
        self.key = folder / "key"
        self.hosts = []
        self._others = 0
        self._wire = f"rw{pid}"
        self._switch = f"{self.prefix}-switch"

    def __enter__(self):
        remove_what_others_left()
        make_key(self.key)
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self):
        ip(
            f"netns add {self._switch}",
            f"link add {self._wire} type veth peer name driver netns {self._switch}",
            f"addr add {self.driver}/24 dev {self._wire}",
            f"link set {self._wire} up",
        )
        ip("link add switch type bridge", "link set switch up", "link set driver master switch up", within=self._switch)

    def __exit__(self, *_):
        for host in self.hosts:
            if host.agent is not None:
                host.kill()
        # A namespace that is removed lets go of its links a while later, and the next network's wire has this name.
        subprocess.run(["ip", "link", "del", self._wire], capture_output=True, check=False)
        remove(self._switch, *(host.namespace for host in self.hosts))
        for host in self.hosts:
            host.reap()

    def another_address(self):
        """An address of somebody else on the driver's machine; after many it is one of the first again."""
        number, self._others = self._others % OTHERS, self._others + 1
        address = f"{self.range}.{FIRST_OTHER + number}"
        if number == self._others - 1:
            ip(f"addr add {address}/24 dev {self._wire}")
        return address

    def grow(self, count):
        """More hosts, each with an agent that listens."""
        return [host.listens() for host in [self.add().start() for _ in range(count)]]

    def add(self):
        """One more host, without an agent."""
        host = HostThere(self, len(self.hosts))
        ip(
            f"netns add {host.namespace}",
            f"link add wire netns {host.namespace} type veth peer name {host.name} netns {self._switch}",
        )
        self.hosts.append(host)
        ip(f"link set {host.name} master switch up", within=self._switch)
        ip(f"addr add {host.address}/24 dev wire", "link set wire up", "link set lo up", within=host.namespace)
        return host


def remove(*namespaces):
    """End all that runs in some namespaces, and them."""
    there = [name for name in namespaces if (NAMESPACES / name).exists()]
    for name in there:
        for pid in pids_in(name):
            os.kill(pid, signal.SIGKILL)
    ip(*(f"netns del {name}" for name in there))


def remove_what_others_left():
    """Namespaces of test runs that were killed."""
    found = [re.fullmatch(r"roost-(\d+)-\w+", entry.name) for entry in NAMESPACES.glob("roost-*-*")]
    remove(*(one[0] for one in found if one is not None and not Path(f"/proc/{one[1]}").exists()))
