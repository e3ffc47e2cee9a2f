#!/usr/bin/env python3
"""A real Kubernetes control plane with small nodes on one machine, to be thrown away.

    scripts/mini_kubernetes.py prepare                build the control plane, once (some minutes; kept in ~/.cache/roost)
    scripts/mini_kubernetes.py start DIR [--nodes N]  start it; its state lies in DIR, DIR/kubeconfig names it
    scripts/mini_kubernetes.py kill DIR NODE          cut a node's power
    scripts/mini_kubernetes.py boot DIR NODE          and give it back
    scripts/mini_kubernetes.py stop DIR               end it all; DIR stays

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real ones. A node is a `mini_kubelet.py`, which runs pods as
processes in namespaces of their own; each claims 4 processors, 16 GiB and 8 GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from pathlib import Path
from ssl import create_default_context
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
BINARIES = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "roost", "kubernetes")
PROGRAMS = ["ip", "unshare", "nsenter", "pgrep", "openssl"]
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
TOKEN = "admin"  # the cluster is this machine's alone
DAEMONS = ["kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"]


def fail(text: str) -> NoReturn:
    """Ends with one sentence."""
    print(f"mini_kubernetes: {text}", file=sys.stderr)
    sys.exit(1)


def free_port() -> int:
    """One that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """What lies in a folder."""

    def __init__(self, folder: str) -> None:
        self.dir = Path(folder).resolve()
        # Clusters in several folders do not meet. Devices' names have at most 15 letters.
        tag = zlib.crc32(str(self.dir).encode())
        self.bridge = f"mku{tag % 0xFFFF:04x}"
        self.subnet = f"10.{64 + tag % 128}.{tag // 128 % 256}"

    def command(self, *command: str, check: bool = True) -> str:
        """What one writes."""
        done = subprocess.run(command, env={**os.environ, "PATH": PATH}, capture_output=True, text=True, check=False)
        if check and done.returncode:
            fail(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def pid(self, name: str) -> int | None:
        """That of a daemon or node, while it lives."""
        try:
            pid = int((self.dir / "run" / f"{name}.pid").read_text())
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return None
        except (OSError, ValueError):
            return None
        return pid

    def spawn(self, name: str, *command: str) -> None:
        """Starts a daemon in a session of its own."""
        with (self.dir / "log" / f"{name}.log").open("ab") as log:
            daemon = subprocess.Popen(
                command, env={**os.environ, "PATH": PATH}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        (self.dir / "run" / f"{name}.pid").write_text(str(daemon.pid))

    def wait_for(self, what: str, is_so: Callable[[], object], within_s: float) -> None:
        """Looks until it is."""
        until = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > until:
                fail(f"{what}: not within {within_s:g} s; the logs are in {self.dir}/log")
            time.sleep(0.1)

    def start(self, count: int) -> None:
        """Makes the folder, the network, the daemons; returns when all nodes are ready."""
        if self.pid("kube-apiserver"):
            fail(f"a cluster runs in {self.dir} already")
        for name in ("run", "log", "certs", "etcd", "nodes"):
            shutil.rmtree(self.dir / name, ignore_errors=True)
            (self.dir / name).mkdir(parents=True)
        (self.dir / "hosts").write_text("127.0.0.1 localhost\n")
        self.command("ip", "link", "add", self.bridge, "type", "bridge")
        self.command("ip", "addr", "add", f"{self.subnet}.1/24", "dev", self.bridge)
        self.command("ip", "link", "set", self.bridge, "up")
        self.start_control_plane()
        self.boot(*(f"m{number}" for number in range(1, count + 1)))
        # Pods are refused until there is an account that they may run as.
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        self.wait_for("there is a service account", lambda: (self.asked(path) or {}).get("secrets"), 60)

    def start_control_plane(self) -> None:
        """The four daemons."""
        store, peers, port = free_port(), free_port(), free_port()
        self.write_kubeconfig(f"https://{self.subnet}.1:{port}")
        certs = self.dir / "certs"
        self.command("openssl", "genrsa", "-out", f"{certs}/accounts.key", "2048")
        self.command("openssl", "rsa", "-in", f"{certs}/accounts.key", "-pubout", "-out", f"{certs}/accounts.pub")
        (certs / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        self.spawn(
            "etcd", f"{BINARIES}/etcd", f"--data-dir={self.dir}/etcd", f"--listen-client-urls=http://127.0.0.1:{store}",
            f"--advertise-client-urls=http://127.0.0.1:{store}", f"--listen-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}", f"--initial-cluster=default=http://127.0.0.1:{peers}",
        )  # fmt: skip
        self.spawn(
            "kube-apiserver", f"{BINARIES}/kube-apiserver", f"--etcd-servers=http://127.0.0.1:{store}", f"--secure-port={port}",
            f"--bind-address={self.subnet}.1", f"--advertise-address={self.subnet}.1", f"--cert-dir={certs}",
            f"--token-auth-file={certs}/tokens.csv", "--authorization-mode=RBAC", "--allow-privileged",
            f"--service-account-key-file={certs}/accounts.pub", f"--service-account-signing-key-file={certs}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.250.0.0/16",
            "--kubelet-preferred-address-types=InternalIP",
        )  # fmt: skip
        self.wait_for("the API server is ready", lambda: self.asked("/readyz") is not None, 90)
        config = f"--kubeconfig={self.dir}/kubeconfig"
        alone = ["--leader-elect=false", "--port=0", "--secure-port=0", config]
        self.spawn(
            "kube-controller-manager", f"{BINARIES}/kube-controller-manager", *alone,
            f"--service-account-private-key-file={certs}/accounts.key", f"--root-ca-file={certs}/apiserver.crt",
            # A silent node is noticed at once: Kubernetes' own choice is forty seconds.
            "--node-monitor-period=1s", "--node-monitor-grace-period=6s",
        )  # fmt: skip
        self.spawn("kube-scheduler", f"{BINARIES}/kube-scheduler", *alone)

    def write_kubeconfig(self, address: str) -> None:
        """How clients find it. JSON is YAML, too."""
        cluster = {"server": address, "certificate-authority": f"{self.dir}/certs/apiserver.crt"}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "mini",
            "clusters": [{"name": "mini", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "mini", "context": {"cluster": "mini", "user": "admin"}}],
        }  # fmt: skip
        (self.dir / "kubeconfig").write_text(json.dumps(config, indent=2))

    def asked(self, path: str) -> dict | None:
        """What the API server answers; None while it does not."""
        authority = self.dir / "certs" / "apiserver.crt"
        if not authority.exists():
            return None
        [cluster] = json.loads((self.dir / "kubeconfig").read_text())["clusters"]
        request = urllib.request.Request(
            cluster["cluster"]["server"] + path, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5, context=create_default_context(cafile=authority)) as answer:
                text = answer.read()
        except OSError:
            return None
        return {} if text == b"ok" else json.loads(text)

    def is_ready(self, node: str) -> bool:
        """Whether pods may be bound to a node."""
        found = self.asked(f"/api/v1/nodes/{node}") or {"status": {}}
        conditions = {one["type"]: one["status"] for one in found["status"].get("conditions", [])}
        return conditions.get("Ready") == "True" and not found["spec"].get("taints")

    def boot(self, *nodes: str) -> None:
        """Starts nodes; returns when they are ready."""
        for node in nodes:
            self.spawn(
                f"node-{node}", sys.executable, str(HERE / "mini_kubelet.py"), str(self.dir), node, self.bridge, self.subnet,
                node[1:],
            )  # fmt: skip
        self.wait_for(f"{', '.join(nodes)} are ready", lambda: all(map(self.is_ready, nodes)), 60)

    def kill(self, node: str) -> None:
        """Ends a node and all that runs there, at once."""
        pid = self.pid(f"node-{node}")
        if pid is None:
            fail(f"{node} does not run")
        os.kill(pid, signal.SIGKILL)
        self.wait_for(f"{node} is gone", lambda: self.pid(f"node-{node}") is None, 10)

    def stop(self) -> None:
        """Ends everything."""
        nodes = sorted(path.stem for path in (self.dir / "run").glob("node-*.pid"))
        for name in [*nodes, *DAEMONS]:
            pid = self.pid(name)
            if pid:
                # A node ends its pods; of the others nothing is kept.
                os.kill(pid, signal.SIGTERM if name in nodes else signal.SIGKILL)
                self.wait_for(f"{name} has ended", lambda name=name: self.pid(name) is None, 10)
            (self.dir / "run" / f"{name}.pid").unlink(missing_ok=True)
        self.command("ip", "link", "del", self.bridge, check=False)


def lacking() -> list[str]:
    """The programs that are not there."""
    found = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return found + [name for name in DAEMONS if not (BINARIES / name).exists()]


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="what")
    commands.add_parser("prepare")
    for what in ("start", "kill", "boot", "stop"):
        command = commands.add_parser(what)
        command.add_argument("dir")
        if what == "start":
            command.add_argument("--nodes", type=int, default=3)
        elif what != "stop":
            command.add_argument("node")
    return parser.parse_args()


def main() -> None:
    """Does it."""
    options = parsed()
    if options.what == "prepare":
        subprocess.run([HERE / "kubernetes-toolchain.sh", BINARIES], check=True)
        return
    if os.getuid() != 0:
        fail("namespaces need root")
    if lacking():
        fail(f"{', '.join(lacking())} not found: `scripts/mini_kubernetes.py prepare` builds Kubernetes")
    cluster = Cluster(options.dir)
    if options.what == "start":
        try:
            cluster.start(options.nodes)
        except BaseException:
            cluster.stop()
            raise
    elif options.what == "stop":
        cluster.stop()
    else:
        getattr(cluster, options.what)(options.node)


main()
