"""The objects of a `KubernetesJob`, as documents: what is rendered is what is created."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.job.agent import agent_command
from roost.job.documents import merged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.job.documents import Document
    from roost.job.spec import MeshSpec

__all__ = [
    "AGENT", "DRIVER", "KINDS", "MESH", "RECORD", "RUN", "Run", "agent_container", "driver_job", "indexed_job", "network_policy",
    "object_name", "secret", "service", "stateful_set",
]  # fmt: skip

RUN = "roost/run"
"""The label that all objects of one run of a job have."""
MESH = "roost/mesh"
"""The label with the name of a mesh."""
RECORD = "roost/record"
"""The annotation in which a job's secret has what its state file says."""
AGENT = "agent"
"""What the container is called."""
DRIVER = "driver"
"""What the driver of a batch job is called, and its container."""

KINDS = {
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Service": "/api/v1/namespaces/{}/services",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Secret": "/api/v1/namespaces/{}/secrets",
}
"""Where the objects of a namespace are; the secret, which owns the others, comes last."""

_ANY_USER_READS = 0o444
_KEY_FILE, _ANNOUNCEMENT = "/dev/shm/roost.key", "/dev/shm/roost.host"  # noqa: S108 - memory of this pod alone
# A secret's file is one that others may read; the agent's is its own. What an agent before it in this pod has announced is not so any
# more. A pod's address may be of either kind.
_SCRIPT = """\
set -e
rm -f {announcement}
(umask 077; cat /etc/roost/key >{key})
case $ROOST_ADDRESS in *:*) any='[::]' own="[$ROOST_ADDRESS]" ;; *) any=0.0.0.0 own=$ROOST_ADDRESS ;; esac
{prologue}exec {agent} --listen "$any:{port}" --advertise "$own"
"""
# How often a batch job's agent may be started anew, for each host: Kubernetes' own choice is six times, for all of them together.
_ANEW_MAX = 100
# How long a node may be silent before its pods are made anew elsewhere; Kubernetes' own choice is five minutes.
_SILENT_NODE_S = 30


class Run(NamedTuple):
    """One run of a job."""

    name: str
    """The job's name."""
    run: str
    """What tells its runs apart."""
    settings: Mapping[str, Any]
    """Those of the job."""

    def metadata(self, name: str, mesh: str | None = None) -> Document:
        """That of an object of this run."""
        labels = {
            **self.settings["labels"], "app.kubernetes.io/name": "roost", "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/managed-by": "roost", RUN: self.run,
        }  # fmt: skip
        if mesh is not None:
            labels[MESH] = mesh
        found: Document = {"name": name, "labels": labels}
        if self.settings["namespace"]:
            found["namespace"] = self.settings["namespace"]
        return found


def object_name(job: str, mesh: str) -> str:
    """What a mesh's objects are called; names of meshes have no - and Kubernetes' no _."""
    return f"{job}-{mesh.replace('_', '-')}"


def secret(run: Run, key: str, record: str) -> Document:
    """The key of a run's hosts, and what another program needs to find the job again."""
    metadata = run.metadata(run.name)
    metadata["annotations"] = {RECORD: record}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": {"key": key}}


def network_policy(run: Run) -> Document:
    """Only pods of this namespace reach the agents and their procs, on whatever port, and who was named."""
    sources: list[Document] = [{"podSelector": {}}]
    sources += [{"ipBlock": {"cidr": cidr}} for cidr in run.settings["allow"]]
    return {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": run.metadata(run.name),
        "spec": {
            "podSelector": {"matchLabels": {RUN: run.run}}, "policyTypes": ["Ingress"], "ingress": [{"from": sources}],
        },
    }  # fmt: skip


def service(run: Run, mesh: str) -> Document:
    """A name for each pod of a mesh, as soon as there is one."""
    name = object_name(run.name, mesh)
    port = run.settings["port"]
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": run.metadata(name, mesh),
        "spec": {
            "clusterIP": "None", "publishNotReadyAddresses": True, "selector": {RUN: run.run, MESH: mesh},
            "ports": [{"name": "agent", "port": port}],
        },
    }  # fmt: skip


def stateful_set(run: Run, mesh: str, spec: MeshSpec) -> Document:
    """The pods of a mesh, all at once, each with its rank in its name."""
    name = object_name(run.name, mesh)
    return {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": _queued(run, name, mesh),
        "spec": {
            "replicas": spec.hosts, "serviceName": name, "podManagementPolicy": "Parallel",
            # Nothing of a pod is ever changed behind the back of who uses it.
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {RUN: run.run, MESH: mesh}},
            "template": {"metadata": _pod_metadata(run, name, mesh), "spec": _pod(run, spec)},
        },
    }  # fmt: skip


def indexed_job(run: Run, mesh: str, spec: MeshSpec) -> Document:
    """The pods of a mesh of a batch job: they end when their driver has, and are made anew before."""
    name = object_name(run.name, mesh)
    pod = {**_pod(run, spec), "restartPolicy": "OnFailure", "subdomain": name}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": _queued(run, name, mesh),
        "spec": {
            "completions": spec.hosts, "parallelism": spec.hosts, "completionMode": "Indexed",
            "backoffLimit": _ANEW_MAX * spec.hosts,
            "template": {"metadata": _pod_metadata(run, name, mesh), "spec": pod},
        },
    }  # fmt: skip


def driver_job(run: Run) -> Document:
    """The pod of a batch job's driver, which is run once."""
    settings = run.settings
    name = object_name(run.name, DRIVER)
    container: Document = {
        "name": DRIVER, "image": settings["image"], "command": list(settings["driver"]),
        "env": [
            {"name": "ROOST_JOB", "value": run.name},
            *({"name": key, "value": value} for key, value in settings["env"].items()),
        ],
    }  # fmt: skip
    if settings["cwd"] is not None:
        container["workingDir"] = settings["cwd"]
    pod: Document = {"containers": [container], "restartPolicy": "Never"}
    if settings["driver_account"] is not None:
        pod["serviceAccountName"] = settings["driver_account"]
    if "imagePullSecrets" in settings["pod"]:
        pod["imagePullSecrets"] = settings["pod"]["imagePullSecrets"]
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": run.metadata(name, DRIVER),
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": run.metadata(name, DRIVER)["labels"]}, "spec": merged(pod, settings["driver_pod"]),
            },
        },
    }  # fmt: skip


def _queued(run: Run, name: str, mesh: str) -> Document:
    """The metadata of what makes the pods of a mesh."""
    metadata = run.metadata(name, mesh)
    if run.settings["queue"] is not None:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = run.settings["queue"]
    return metadata


def _pod_metadata(run: Run, name: str, mesh: str) -> Document:
    found: Document = {"labels": run.metadata(name, mesh)["labels"]}
    if run.settings["annotations"]:
        found["annotations"] = dict(run.settings["annotations"])
    return found


def _pod(run: Run, spec: MeshSpec) -> Document:
    settings = run.settings
    shm: Document = {"medium": "Memory"}
    if settings["shm_mib"] is not None:
        shm["sizeLimit"] = f"{settings['shm_mib']}Mi"
    gone = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    pod: Document = {
        "containers": [agent_container(spec, settings)],
        # A node that is lost is one host, where there are enough of them.
        "topologySpreadConstraints": [
            {
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {RUN: run.run}},
            }
        ],
        # What runs there has no business with the cluster.
        "automountServiceAccountToken": False,
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _SILENT_NODE_S} for key in gone
        ],
        "volumes": [
            # Whatever user the image has: nobody else is in the container.
            {"name": "key", "secret": {"secretName": run.name, "defaultMode": _ANY_USER_READS}},
            {"name": "shm", "emptyDir": shm},
        ],
    }  # fmt: skip
    if settings["service_account"] is not None:
        pod["serviceAccountName"] = settings["service_account"]
    if spec.args:
        pod["nodeSelector"] = dict(argument.split("=", 1) for argument in spec.args)
    whole: Document = merged(pod, settings["pod"])
    return whole


def agent_container(spec: MeshSpec, settings: Mapping[str, Any]) -> Document:
    """The container of an agent.

    Args:
        spec: what the host is to have.
        settings: those of the job.
    """
    # The hosts of a batch job are there for its driver alone.
    idle = ["--idle", f"{settings['idle_s']:g}"] if settings["driver"] else []
    agent = shlex.join(agent_command(settings["python"], "", key_file=_KEY_FILE, announce=_ANNOUNCEMENT, more=idle))
    prologue = "".join(f"{line}\n" for line in settings["prologue"])
    script = _SCRIPT.format(
        announcement=_ANNOUNCEMENT, key=_KEY_FILE, prologue=prologue, agent=agent, port=settings["port"]
    )
    # It says so itself, in a file, once it listens: who tries its port looks like a stranger to it. It is never ended for not
    # answering in time: who uses it sees to that, and knows more.
    listens = {"exec": {"command": ["test", "-e", _ANNOUNCEMENT]}}
    container: Document = {
        "name": AGENT,
        "image": settings["image"],
        "command": ["/bin/sh", "-c", script],
        "env": [
            {"name": "ROOST_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": key, "value": value} for key, value in settings["env"].items()),
        ],
        "ports": [{"name": "agent", "containerPort": settings["port"]}],
        "startupProbe": {**listens, "periodSeconds": 1, "failureThreshold": 600},
        "readinessProbe": {**listens, "periodSeconds": 5},
        "volumeMounts": [
            {"name": "key", "mountPath": "/etc/roost", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - where it is mounted
        ],
    }
    resources = _resources(spec, settings)
    if resources:
        container["resources"] = resources
    # A network card reads and writes memory that has to stay where it is.
    if settings["ipc_lock"] or any(name.startswith("rdma/") for name in settings["resources"]):
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    if settings["cwd"] is not None:
        container["workingDir"] = settings["cwd"]
    return container


def _resources(spec: MeshSpec, settings: Mapping[str, Any]) -> Document:
    limits: dict[str, str] = {name: str(amount) for name, amount in settings["resources"].items()}
    requests: dict[str, str] = {}
    if spec.gpus:
        limits[settings["gpu_resource"]] = str(spec.gpus)
    if spec.memory_mib is not None:
        limits["memory"] = requests["memory"] = f"{spec.memory_mib}Mi"
    if spec.cpus is not None:
        # No limit: who may use no more than so much is held up in the midst of a step.
        requests["cpu"] = str(spec.cpus)
    return {name: amounts for name, amounts in (("requests", requests), ("limits", limits)) if amounts}
