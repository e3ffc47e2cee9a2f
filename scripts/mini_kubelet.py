"""A small node for a real Kubernetes control plane: it runs the pods that are bound to it as processes of this machine.

A pod has a network, a host name, processes, /etc and /dev/shm of its own; all pods' names are in one file of hosts, which stands for
the cluster's DNS: nobody is asked for other names. There is no container runtime: an image is a name (one that begins with "missing" is
not found), and files are this machine's. The first container is run, its exec probes, secrets and memory volumes are honoured, its log is
served, its ports are forwarded.

usage: mini_kubelet.py DIR NODE BRIDGE SUBNET NUMBER (by mini_kubernetes.py)
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, urlsplit

from kubernetes import client, config, watch
from mini_portforward import serve_portforward

DIR, NODE, BRIDGE, SUBNET, NUMBER = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
ADDRESS, PODS_MAX = f"{SUBNET}.1", 40
HEARTBEAT_S, BACKOFF_S = 1.5, (0.2, 2.0, 5.0, 10.0)
CAPACITY = {"cpu": "4", "memory": "16Gi", "pods": str(PODS_MAX), "amd.com/gpu": "8", "rdma/hca": "4"}

# What becomes the pod's first process; its network comes from outside. $1 host name, $2 folder of the pod, $3 file of hosts, $4 address
# with its gateway, $5 working directory; then the folders to mount, as FROM=TO, up to --, then the command.
POD = """\
set -e
mount --make-rprivate /
mkdir -p "$2/upper" "$2/work"
mount -t tmpfs tmpfs "$2/upper"; mkdir "$2/upper/etc" "$2/upper/etc.work" "$2/upper/run" "$2/upper/run.work"
for top in etc run; do
    mount -t overlay overlay -o "lowerdir=/$top,upperdir=$2/upper/$top,workdir=$2/upper/$top.work" /$top
done
mount --bind "$3" /etc/hosts
printf '%s: files\\n' passwd group shadow hosts >/etc/nsswitch.conf
mount -t tmpfs tmpfs /dev/shm
hostname "$1"; address=${4%,*} gateway=${4#*,} cwd=$5; shift 5
while [ "$1" != -- ]; do mkdir -p "${1#*=}"; mount --bind "${1%%=*}" "${1#*=}"; shift; done; shift
ip link set lo up; until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip addr add "$address/24" dev eth0; ip link set eth0 up; ip route add default via "$gateway"
cd "$cwd"; exec "$@"
"""

config.load_kube_config(str(DIR / "kubeconfig"))
core = client.CoreV1Api()
plain = client.ApiClient().sanitize_for_serialization


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def run(*command: str, check: bool = True) -> str:
    """What a command writes."""
    return subprocess.run(command, capture_output=True, text=True, check=check).stdout


class Log:
    """What a container wrote, with the times of its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def take(self, pipe: IO[bytes]) -> None:
        """Read it until it ends."""
        for line in iter(pipe.readline, b""):
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            self.lines.append((stamp, line.decode(errors="replace").rstrip("\n")))

    def text(self, query: dict[str, list[str]]) -> str:
        """It, as it was asked for."""
        since = query.get("sinceTime", [""])[0].removesuffix("Z")
        lines = [line for line in self.lines if line[0] >= since]
        tail = query.get("tailLines")
        if tail:
            lines = lines[-int(tail[0]) :]
        stamped = query.get("timestamps") == ["true"]
        return "".join(f"{stamp} {text}\n" if stamped else f"{text}\n" for stamp, text in lines)


class Pod:
    """A pod at work, on a thread of its own."""

    def __init__(self, pod: dict, place: int) -> None:
        self.name, self.namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self.uid, self.spec = pod["metadata"]["uid"], pod["spec"]
        self.container = self.spec["containers"][0]
        self.place, self.ip = place, f"{SUBNET}.{NUMBER * PODS_MAX + place}"
        self.folder = DIR / "nodes" / NODE / self.uid
        self.folder.mkdir(parents=True)
        self.process: subprocess.Popen | None = None
        self.first: int | None = None
        self.restarts, self.ready, self.started = 0, False, False
        self.state: dict = {"waiting": {"reason": "ContainerCreating"}}
        self.last: dict = {}
        self.logs = [Log()]
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.live, daemon=True)
        self.thread.start()

    def live(self) -> None:
        """From its first start to its deletion."""
        if self.container["image"].startswith("missing"):
            self.have_no_image()
            self.delete()
            return
        while not self.ending.is_set():
            self.start()
            code = self.process.wait()
            self.reading.join()
            self.ended(code)
            if self.spec.get("restartPolicy") == "Never" or (
                self.spec.get("restartPolicy") == "OnFailure" and not code
            ):
                self.ending.wait()
                break
            self.back_off()
        self.delete()

    def have_no_image(self) -> None:
        """Wait for what does not come."""
        image = self.container["image"]
        refused = f'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": not found'
        self.state = {"waiting": {"reason": "ErrImagePull", "message": refused}}
        self.tell()
        self.event("Failed", f'Failed to pull image "{image}": {refused}')
        self.ending.wait(1.0)
        self.state = {"waiting": {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}}
        self.tell()
        self.ending.wait()

    def start(self) -> None:
        """Start its container."""
        subdomain, host = self.spec.get("subdomain"), self.spec.get("hostname") or self.name
        whole = [f"{host}.{subdomain}.{self.namespace}.svc.cluster.local", f"{host}.{subdomain}"] if subdomain else []
        know(self.ip, " ".join([*whole, host]))
        mounts = [f"{self.volume(one['name'])}={one['mountPath']}" for one in self.container.get("volumeMounts", [])
                  if one["mountPath"] != "/dev/shm"]  # fmt: skip
        cwd = self.container.get("workingDir", "/")
        command = [*self.container.get("command", []), *self.container.get("args", [])]
        log = self.logs[-1]
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--kill-child=KILL",
             "--mount-proc", "bash", "-c", POD, "pod", host, self.folder, DIR / "hosts", f"{self.ip},{ADDRESS}", cwd, *mounts,
             "--", *command],
            env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.reading = threading.Thread(target=log.take, args=(self.process.stdout,), daemon=True)
        self.reading.start()
        while not (found := run("pgrep", "-P", str(self.process.pid), check=False).split()):
            if self.process.poll() is not None:
                return
            time.sleep(0.02)
        self.first = int(found[0])
        end = f"{BRIDGE}.{NUMBER}.{self.place}"
        run("ip", "link", "del", end, check=False)
        run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", str(self.first), check=False)
        run("ip", "link", "set", end, "master", BRIDGE, "up", check=False)
        self.state = {"running": {"startedAt": now()}}
        self.ready = self.started = False
        self.tell()
        threading.Thread(target=self.probe, args=(self.process,), daemon=True).start()

    def environment(self) -> dict[str, str]:
        """What the container's environment is; that of the cluster's own address, too."""
        server, port = urlsplit(core.api_client.configuration.host).netloc.split(":")
        python = str(Path(sys.executable).parent)
        found = {
            "PATH": f"{python}:{os.environ['PATH']}", "HOSTNAME": self.name, "HOME": "/root",
            "KUBERNETES_SERVICE_HOST": server, "KUBERNETES_SERVICE_PORT": port,
        }  # fmt: skip
        known = {"status.podIP": self.ip, "metadata.name": self.name, "metadata.namespace": self.namespace}
        for one in self.container.get("env") or []:
            source = (one.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath")
            found[one["name"]] = known[source] if source else one.get("value", "")
        return found

    def volume(self, name: str) -> Path:
        """Where the files of a volume are."""
        folder = self.folder / "volumes" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            [volume] = [one for one in self.spec["volumes"] if one["name"] == name]
            if "secret" in volume:
                secret = core.read_namespaced_secret(volume["secret"]["secretName"], self.namespace)
                for key, value in (secret.data or {}).items():
                    (folder / key).write_bytes(base64.b64decode(value))
                    (folder / key).chmod(volume["secret"].get("defaultMode", 0o644))
        return folder

    def probe(self, process: subprocess.Popen) -> None:
        """Find out when it has started, and whether it is ready."""
        for name in ("startupProbe", "readinessProbe"):
            probe = self.container.get(name)
            while process.poll() is None:
                is_so = probe is None or self.answers(probe)
                if name == "startupProbe" and is_so:
                    break
                if name == "readinessProbe" and is_so != self.ready:
                    self.ready = is_so
                    self.tell()
                if probe is None:
                    return
                time.sleep(min(1.0, probe.get("periodSeconds", 10)))

    def answers(self, probe: dict) -> bool:
        """Run a probe's command in the container."""
        command = ["nsenter", "-t", str(self.first), "-m", "-p", "-n", "--", *probe["exec"]["command"]]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def ended(self, code: int) -> None:
        """Its container has ended."""
        self.ready = False
        code = 128 - code if code < 0 else code
        self.state = {"terminated": {
            "exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now(), "startedAt": now(),
        }}  # fmt: skip
        self.tell()

    def back_off(self) -> None:
        """Wait before it is started again."""
        self.last, self.logs = self.state, [self.logs[-1], Log()]
        pause = BACKOFF_S[min(self.restarts, len(BACKOFF_S) - 1)]
        if self.restarts and not self.ending.is_set():
            text = f"back-off {pause:g}s restarting failed container={self.container['name']} pod={self.name}"
            self.state = {"waiting": {"reason": "CrashLoopBackOff", "message": text}}
            self.tell()
            self.event("BackOff", "Back-off restarting failed container")
        if not self.ending.wait(pause):
            self.restarts += 1

    def delete(self) -> None:
        """It is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)
        know(self.ip, None)
        with contextlib.suppress(client.ApiException):
            options = client.V1DeleteOptions(grace_period_seconds=0, preconditions={"uid": self.uid})
            core.delete_namespaced_pod(self.name, self.namespace, body=options)
        pods.pop(self.uid, None)

    def end(self, grace_s: float) -> None:
        """Have it end."""
        if self.ending.is_set():
            return
        self.ending.set()
        if self.process is not None and self.first is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first, signal.SIGTERM)
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def tell(self) -> None:
        """Write its status."""
        gone = "terminated" in self.state and self.spec.get("restartPolicy", "Always") != "Always"
        failed = gone and self.state["terminated"]["exitCode"]
        phase = "Failed" if failed else "Succeeded" if gone else "Pending" if self.process is None else "Running"
        ready = "True" if self.ready else "False"
        why = {} if self.ready else {"reason": "ContainersNotReady", "message": "containers with unready status"}
        status = {
            "name": self.container["name"], "ready": self.ready, "restartCount": self.restarts, "image": self.container["image"],
            "imageID": "", "state": self.state, "lastState": self.last, "started": self.ready,
        }  # fmt: skip
        conditions = [
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": ready, **why}, {"type": "ContainersReady", "status": ready, **why},
        ]  # fmt: skip
        address = {} if self.process is None else {"podIP": self.ip, "podIPs": [{"ip": self.ip}]}
        body = {"status": {
            "phase": phase, "hostIP": ADDRESS, "startTime": now(), "conditions": conditions, "containerStatuses": [status], **address,
        }, "metadata": {"uid": self.uid}}  # fmt: skip
        with contextlib.suppress(client.ApiException):
            core.patch_namespaced_pod_status(self.name, self.namespace, body)

    def event(self, reason: str, text: str) -> None:
        """Tell of it what is no good news."""
        about = {"kind": "Pod", "name": self.name, "namespace": self.namespace, "uid": self.uid}
        body = {
            "metadata": {"generateName": f"{self.name}."}, "involvedObject": about, "reason": reason, "message": text,
            "type": "Warning", "firstTimestamp": now(), "lastTimestamp": now(), "count": 1, "source": {"component": "kubelet"},
        }  # fmt: skip
        with contextlib.suppress(client.ApiException):
            core.create_namespaced_event(self.namespace, body)


def know(ip: str, names: str | None) -> None:
    """Change who is where, for all pods: in place, since they have this very file."""
    with (DIR / "hosts").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = [line for line in file.read().splitlines() if line.split()[0] != ip]
        if names is not None:
            lines.append(f"{ip} {names}")
        file.seek(0)
        file.write("\n".join([*lines, ""]))
        file.truncate()


class Handler(BaseHTTPRequestHandler):
    """What the API server asks of a node: logs, and ports."""

    def do_GET(self) -> None:
        """Send a log, or be a port."""
        url = urlsplit(self.path)
        if url.path.startswith("/portForward/"):
            self.forward(url.path.split("/")[2:4], int(parse_qs(url.query)["port"][0]))
            return
        found = re.fullmatch(r"/containerLogs/([^/]+)/([^/]+)/([^/]+)", url.path)
        matching = [one for one in pods.values() if found and (one.namespace, one.name) == found.groups()[:2]]
        query = parse_qs(url.query)
        logs = matching[0].logs if matching else []
        previous = query.get("previous") == ["true"]
        if not logs or (previous and len(logs) == 1):
            self.send_error(404)
            return
        text = logs[0 if previous else -1].text(query).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def forward(self, whole_name: list[str], port: int) -> None:
        """Be a port of a pod."""
        matching = [one for one in pods.values() if [one.namespace, one.name] == whole_name]
        if matching:
            serve_portforward(self, matching[0].ip, port)
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve() -> int:
    """Answer the API server; gives the port."""
    server = ThreadingHTTPServer((ADDRESS, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(DIR / "certs" / "apiserver.crt", DIR / "certs" / "apiserver.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def register(port: int) -> None:
    """Be a node."""
    body = {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}}
    try:
        core.create_node(body)
    except client.ApiException as error:
        if error.status != 409:
            raise
    status = {
        "capacity": CAPACITY, "allocatable": CAPACITY, "addresses": [{"type": "InternalIP", "address": ADDRESS}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }  # fmt: skip
    core.patch_node_status(NODE, {"status": status})


def beat() -> None:
    """Say again and again that it is there."""
    since = now()
    while True:
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": now(),
                     "lastTransitionTime": since}  # fmt: skip
        with contextlib.suppress(Exception):
            core.patch_node_status(NODE, {"status": {"conditions": [condition]}})
        time.sleep(HEARTBEAT_S)


pods: dict[str, Pod] = {}
seen: set[str] = set()


def take(event: dict) -> None:
    """See to a pod."""
    pod = plain(event["object"])
    uid = pod["metadata"]["uid"]
    if event["type"] == "DELETED":
        if uid in pods:
            threading.Thread(target=pods[uid].end, args=(0,), daemon=True).start()
    elif "deletionTimestamp" in pod["metadata"]:
        grace = pod["metadata"].get("deletionGracePeriodSeconds", 30)
        if uid in pods:
            threading.Thread(target=pods[uid].end, args=(grace,), daemon=True).start()
        else:
            # It ran here before the power went.
            options = client.V1DeleteOptions(grace_period_seconds=0)
            with contextlib.suppress(client.ApiException):
                core.delete_namespaced_pod(pod["metadata"]["name"], pod["metadata"]["namespace"], body=options)
    elif uid not in seen and not (pod.get("status", {}).get("podIP")):
        seen.add(uid)
        place = next(number for number in range(2, PODS_MAX) if number not in {one.place for one in pods.values()})
        pods[uid] = Pod(pod, place)


def main() -> None:
    """Be a node until it ends."""

    def stop(*_: object) -> None:
        for pod in pods.values():
            if pod.process is not None:
                pod.process.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    register(serve())
    threading.Thread(target=beat, daemon=True).start()
    while True:
        with contextlib.suppress(client.ApiException, OSError):
            stream = watch.Watch().stream(
                core.list_pod_for_all_namespaces, field_selector=f"spec.nodeName={NODE}", timeout_seconds=60
            )
            for event in stream:
                take(event)


main()
