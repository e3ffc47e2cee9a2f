#!/usr/bin/env python3
"""A real Kubernetes control plane with small nodes on one machine, to be thrown away.

    scripts/mini_kubernetes.py prepare                build the control plane, once (some minutes; kept in ~/.cache/roost)
    scripts/mini_kubernetes.py start DIR [--nodes N]  start it; its state lies in DIR, DIR/kubeconfig names it (--while PID: as
                                                      long as that process lives, at most)
    scripts/mini_kubernetes.py kill DIR NODE          cut a node's power
    scripts/mini_kubernetes.py boot DIR NODE          and give it back
    scripts/mini_kubernetes.py stop DIR               end it all; DIR stays
    scripts/mini_kubernetes.py with [--nodes N] COMMAND…  run a command with one that lasts as long; $KUBECONFIG names it,
                                                      $MINI_KUBERNETES is its DIR

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real ones. A node is a `mini_kubelet.py`, which runs pods as
processes in namespaces of their own; each claims 4 processors, 16 GiB and 8 GPUs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from ssl import create_default_context

from mini_cluster import MiniCluster, commands_of, fail, not_found, obey

HERE = Path(__file__).parent
BINARIES = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "roost", "kubernetes")
PROGRAMS = ["ip", "unshare", "nsenter", "pgrep", "openssl"]
TOKEN = "admin"  # the cluster is this machine's alone


def free_port() -> int:
    """One that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Kubernetes(MiniCluster):
    """A cluster of Kubernetes'."""

    letters = "mku"
    folders = ("certs", "etcd", "nodes")
    daemons = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "etcd")
    nodes = 3
    # Nothing is kept of them.
    daemons_end_by = signal.SIGKILL
    # A node ends its pods.
    nodes_end_by = signal.SIGTERM

    def begin(self, count: int) -> None:
        """Starts the daemons and the nodes; returns when all are ready."""
        (self.dir / "hosts").write_text("127.0.0.1 localhost\n")
        self.start_control_plane()
        self.boot_all([f"m{number}" for number in range(1, count + 1)])
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

    def boot(self, node: str) -> None:
        """Starts a node; returns when it is ready."""
        self.boot_all([node])

    def boot_all(self, nodes: list[str]) -> None:
        """Starts nodes, all at once."""
        for node in nodes:
            self.spawn(
                f"node-{node}", sys.executable, str(HERE / "mini_kubelet.py"), str(self.dir), node, self.bridge, self.subnet,
                node[1:],
            )  # fmt: skip
        self.wait_for(f"{', '.join(nodes)} are ready", lambda: all(map(self.is_ready, nodes)), 60)

    def kill(self, node: str) -> None:
        """Ends a node and all that runs there, at once."""
        if self.pid(f"node-{node}") is None:
            fail(f"{node} does not run")
        self.end([f"node-{node}"], signal.SIGKILL)

    def used_by(self, command: list[str]) -> tuple[list[str], dict[str, str]]:
        """A command of this machine's, which reaches pods by their addresses."""
        return command, {"KUBECONFIG": f"{self.dir}/kubeconfig"}

    @staticmethod
    def lacking() -> list[str]:
        """The programs that are not there."""
        return not_found(PROGRAMS) + [name for name in Kubernetes.daemons if not (BINARIES / name).exists()]

    @staticmethod
    def prepare() -> None:
        """Builds it."""
        subprocess.run([HERE / "kubernetes-toolchain.sh", BINARIES], check=True)


parser, _ = commands_of(Kubernetes, __doc__)
obey(Kubernetes, parser, "builds Kubernetes")
