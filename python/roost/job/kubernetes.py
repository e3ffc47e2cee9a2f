"""`KubernetesJob`: hosts that are pods, of StatefulSets of its own or made by others; no operator, no new kinds of objects."""

from __future__ import annotations

import asyncio
import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from roost.errors import JobError, RoostError
from roost.job.documents import as_yaml
from roost.job.job import Job
from roost.job.knowing import Look
from roost.job.kubernetes_api import SilentApiError
from roost.job.kubernetes_cluster import Cluster, namespace_of
from roost.job.kubernetes_documents import (
    DRIVER,
    Run,
    agent_container,
    driver_job,
    indexed_job,
    network_policy,
    object_name,
    secret,
    service,
    stateful_set,
)  # fmt: skip
from roost.job.kubernetes_log import PodLog
from roost.job.kubernetes_look import look_at
from roost.job.kubernetes_pods import agent_end
from roost.job.kubernetes_settings import check_settings
from roost.job.logs import LogLines
from roost.job.record import Part, Record, default_folder, read_record
from roost.job.spec import check_job_name, lists_of_texts, tables
from roost.keys import read_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from roost.job.documents import Document
    from roost.job.knowing import Agent
    from roost.job.kubernetes_look import Seen
    from roost.job.kubernetes_pods import AgentEnd
    from roost.job.spec import MeshSpec
    from roost.job.status import HostStatus, JobStatus

__all__ = ["KubernetesJob"]

# How much of what an agent's container wrote last is kept when it has ended.
_LINES_KEPT = 200
# Within what time a pod is made anew whose agent this program has lost; then it is taken to be cut off.
_RETURN_S = 30.0
_OTHERS = "the pods of {} were made by others: who made them {}"


class KubernetesJob(Job):
    """Hosts that are pods: each mesh is a StatefulSet with a headless Service, and all that a job has goes with its Secret.

    Args:
        meshes: how many pods, or a `MeshSpec`, by name; its `args` are labels that a node is to have: `["gpu=mi300x"]`.
        image: the container image, with Python and Roost.
        name: the job's name, for Kubernetes too.
        folder: where this program keeps what it knows of the job; it need not be shared.
        sync: as of `Job`.
        namespace: where the job runs; when left out, the one that kubectl would take, or that this pod is in.
        kubeconfig: the file that names the cluster; when left out, what kubectl would take, or in a pod its service account.
        context: which of the file's contexts; its current one when left out.
        gpu_resource: what `MeshSpec.gpus` counts: "amd.com/gpu", "nvidia.com/gpu".
        resources: how much of what else a pod is to have: `{"rdma/hca": 1, "hugepages-2Mi": "4Gi"}`.
        ipc_lock: whether pods may pin memory, as network cards need; with an "rdma/…" resource they may.
        shm_mib: the size of /dev/shm, in MiB; as much as the pod has of memory when left out.
        queue: the queue of Kueue's that the pods wait in.
        service_account: whom the pods run as.
        labels: more labels, of all objects.
        annotations: annotations of the pods.
        env: environment variables of the agents.
        python: the interpreter in the image.
        prologue: lines of shell that come first.
        cwd: the working directory; the image's when left out.
        port: where the agents listen.
        allow: networks from which programs may reach the pods, `["10.0.0.0/8"]`, besides the pods of the namespace.
        port_forward: whether pods are reached through the API server, each connection by a port-forward of its own: for a program that
            is outside the cluster's network.
        pod: more of the pods' `spec`, merged into it: lists by the names of what is in them (the container is "agent"), else one
            behind the other.
        select: by mesh, a label selector of pods that others make (Kueue, Volcano, a JobSet), in place of own ones. Their ranks are by
            index, else by name; what they have to run is what `render()` shows.
        key_file: the key of the agents in such pods.
        driver: a command that is run in a pod of its own, in the same image: the job ends with it, and its pods then are those of Jobs.
            There `KubernetesJob.from_environment()` is this job.
        driver_account: the service account of that pod, which has to have the rights that a program with such a job needs.
        driver_pod: more of that pod's `spec`, as of `pod` (its container is "driver").
        idle_s: how long the hosts of a job with a `driver` wait for it, at first and when it has gone, before they end.
        warn_s: as of `Job`.

    Raises:
        ValueError: names or numbers that cannot be, or that Kubernetes refuses.
    """

    kind: ClassVar[str] = "kubernetes"
    # Asking costs nothing: what there is of the job is watched.
    _ask_s: ClassVar[float] = 0.2
    _keep_s: ClassVar[float] = 1.0

    def __init__(
        self,
        meshes: Mapping[str, int | MeshSpec],
        *,
        image: str | None = None,
        name: str = "roost",
        folder: str | os.PathLike[str] | None = None,
        sync: str | os.PathLike[str] | None = None,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        context: str | None = None,
        gpu_resource: str = "amd.com/gpu",
        resources: Mapping[str, int | str] | None = None,
        ipc_lock: bool = False,
        shm_mib: int | None = None,
        queue: str | None = None,
        service_account: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        python: str = "python3",
        prologue: Sequence[str] = (),
        cwd: str | None = None,
        port: int = 26600,
        allow: Sequence[str] = (),
        port_forward: bool = False,
        pod: Mapping[str, Any] | None = None,
        select: Mapping[str, str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        driver: Sequence[str] = (),
        driver_account: str | None = None,
        driver_pod: Mapping[str, Any] | None = None,
        idle_s: float = 300.0,
        warn_s: float = 300.0,
    ) -> None:
        super().__init__(
            meshes, name=name, folder=folder, sync=sync, warn_s=warn_s, image=image, namespace=namespace, kubeconfig=kubeconfig,
            context=context, gpu_resource=gpu_resource, ipc_lock=ipc_lock, shm_mib=shm_mib,
            queue=queue, service_account=service_account,
            python=python, cwd=cwd, port=port, port_forward=port_forward,
            key_file=None if key_file is None else os.path.abspath(os.fspath(key_file)),
            driver_account=driver_account, idle_s=idle_s,
            **tables(
                "KubernetesJob", env=env, resources=resources, labels=labels, annotations=annotations, pod=pod, select=select,
                driver_pod=driver_pod,
            ),
            **lists_of_texts("KubernetesJob", prologue=prologue, allow=allow, driver=driver),
        )  # fmt: skip
        check_settings(self.name, self.meshes, self._settings)
        self._cluster = Cluster(kubeconfig, context, self._settings["select"], "Job" if driver else "StatefulSet")
        # What Kubernetes said last, for when it does not answer.
        self._last = Look("pending")
        # When this program has lost agents; and of which the last words have been kept.
        self._lost: dict[Agent, float] = {}
        self._kept: set[AgentEnd] = set()

    @classmethod
    def connect(
        cls, name: str, *, folder: str | os.PathLike[str] | None = None, namespace: str | None = None,
        kubeconfig: str | None = None, context: str | None = None, port_forward: bool = False,
    ) -> Self:  # fmt: skip
        """The job that an earlier program applied, on whatever machine: its Secret has what this one needs.

        Args:
            name: its name.
            folder: where this program keeps what it knows of it, if not in `~/.roost/jobs/NAME`.
            namespace: as of the constructor, as are the next three.
            kubeconfig: see there.
            context: see there.
            port_forward: see there.

        Raises:
            LookupError: there is none.
            JobError: it is of another kind, or of another version of Roost.
        """
        where = os.path.abspath(default_folder(check_job_name(name)) if folder is None else os.fspath(folder))
        known = read_record(where)
        if known is None or known.ended is not None:
            try:
                own = {"kubeconfig": kubeconfig, "context": context, "port_forward": port_forward}
                _fetch(where, name, namespace, own)
            except (RoostError, LookupError):
                if known is None:
                    raise
        return super().connect(name, folder=folder)

    @classmethod
    def from_environment(cls, *, folder: str | os.PathLike[str] | None = None) -> Self:
        """The job that this program is the `driver` of.

        Args:
            folder: as of `connect`.

        Raises:
            RuntimeError: it is none.
        """
        name = os.environ.get("ROOST_JOB")
        if name is None or "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise RuntimeError(
                "from_environment() is for the driver of a KubernetesJob(driver=…), in its pod: ROOST_JOB is not set"
            )
        return cls.connect(name, folder=folder)

    def render(self) -> str:
        """The objects that would be created; with `select`, the container that others' pods have to have."""
        if self._settings["select"]:
            shown = [agent_container(next(iter(self.meshes.values())), self._settings)]
        else:
            run = Run(self.name, "RUN", self._settings)
            shown = [secret(run, "KEY", "{}"), *self._documents(run)]
        return as_yaml(shown, "kubernetes")

    def logs(self, mesh: str, rank: int = 0, *, follow: bool = False) -> LogLines:
        """As of `Job`: what its agent's container writes; of one that has gone, its last lines."""
        record = self._applied()
        if record.ended is not None:
            return super().logs(mesh, rank, follow=follow)
        if mesh == DRIVER and not self._settings["driver"]:
            raise LookupError(f"{self.name} has no driver of its own: that is the program with its state()")
        self._log_path(record, mesh, rank)  # no such host is an error here

        def fetch(query: Mapping[str, str]) -> str:
            if self._applied().ended is not None:
                return ""
            seen = self._cluster.see(record)
            pod = next(iter(seen.pods.get(DRIVER, [])), None) if mesh == DRIVER else seen.ranks(mesh).get(rank)
            try:
                return "" if pod is None else self._cluster.log(record, pod, **query)
            except SilentApiError:
                # Who follows hears of it later.
                if not follow:
                    raise
                return ""

        return LogLines(PodLog(fetch).read, self._is_over if follow else None)

    # What it says of itself ----------------------------------------------------------------------------------------------
    def _documents(self, run: Run) -> list[Document]:
        found = [network_policy(run)]
        is_batch = bool(self._settings["driver"])
        for mesh, spec in self.meshes.items():
            found += [service(run, mesh), (indexed_job if is_batch else stateful_set)(run, mesh, spec)]
        # Last: it finds what it is to drive.
        return [*found, driver_job(run)] if is_batch else found

    def _submit(self, record: Record, wanted: list[Part]) -> list[Part]:
        cluster = self._cluster
        namespace = self._settings["namespace"] or cluster.api.namespace
        if self._settings["select"]:
            self._check_own("makes more of them", any(part.first for part in wanted))
            cluster.check_namespace(namespace)
            _write_key(record, read_key(self._settings["key_file"]).decode())
            return [part._replace(id=f"{namespace}/{self._settings['select'][part.mesh]}") for part in wanted]
        done = [part._replace(id=f"{namespace}/{object_name(self.name, part.mesh)}") for part in wanted]
        if any(part.first for part in done):
            for part in done:
                cluster.scale(part.id, part.first + part.hosts)
            return done
        record.parts = done
        run = Run(self.name, record.run, {**self._settings, "namespace": namespace})
        key = read_key(record.key_file).decode()
        cluster.create(run, key, record, self.folder, self._documents(run))
        return done

    def _look(self, record: Record) -> Look:
        try:
            seen = self._cluster.see(record)
            self._keep_last_words(record, seen)
            look = look_at(record, seen, self._settings)._replace(has_run=seen.has_run)
            if look.state == "ended" and seen.driver is not None:
                # Its pods have ended, or are about to; what they were made of stays otherwise.
                self._keep_drivers_words(record, seen)
                self._cluster.remove(namespace_of(record), record.run)
        except SilentApiError as error:
            # The pods go on without.
            return self._last._replace(reason=str(error))
        self._last = self._without_lost(self._through_api(record, seen, look))
        return self._last

    def _through_api(self, record: Record, seen: Seen, look: Look) -> Look:
        """With the addresses by which this program reaches agents, where it does not by their own."""
        if not self._settings["port_forward"] or look.there is None:
            return look
        port = self._settings["port"]
        there = {at: told._replace(address=self._cluster.tunnel(record, told, port)) for at, told in look.there.items()}
        self._cluster.keep_tunnels(seen)
        return look._replace(there=there)

    def _without_lost(self, look: Look) -> Look:
        """What Kubernetes says, but for agents that this program has just lost: it hears of their ends later, and makes them anew."""
        there, waiting = dict(look.there or {}), dict(look.waiting)
        for place, told in (look.there or {}).items():
            agent = told.address, told.agent
            if time.monotonic() - self._lost.get(agent, -math.inf) < _RETURN_S:
                del there[place]
                waiting[place] = self._losses[agent]
        return look._replace(there=there, waiting=waiting)

    def _keep_last_words(self, record: Record, seen: Seen) -> None:
        """Write down what agents said that have ended in trouble: a container's log goes with its pod."""
        for part in record.parts:
            for rank, pod in seen.ranks(part.mesh).items():
                ended = agent_end(pod)
                place = rank - part.first
                if ended is None or ended in self._kept or not 0 <= place < part.hosts:
                    continue
                previous = "true" if ended.previous else "false"
                try:
                    text = self._cluster.log(record, pod, tailLines=str(_LINES_KEPT), previous=previous)
                except SilentApiError:
                    continue  # it is asked again at the next look
                except JobError:
                    text = ""  # not everybody may see logs
                # Nothing: the container that takes its place is there by now, and its own log is asked for in another way.
                self._kept |= {ended, ended._replace(previous=True)} if text else {ended}
                with open(record.log_file(part, place), "a", encoding="utf-8") as file:
                    file.write(text if text.endswith("\n") or not text else f"{text}\n")

    def _keep_drivers_words(self, record: Record, seen: Seen) -> None:
        for pod in seen.pods.get(DRIVER, []):
            try:
                text = self._cluster.log(record, pod)
            except SilentApiError:
                raise
            except JobError as error:
                text = f"{error}\n"
            with open(record.driver_log, "w", encoding="utf-8") as file:
                file.write(text)

    def _end(self, record: Record) -> None:
        self._check_own("ends them", self._settings["select"])
        self._cluster.remove(namespace_of(record), record.run)

    def _shortened(self, record: Record, mesh: str, hosts: int) -> list[Part]:
        self._check_own("ends some of them", self._settings["select"])
        # All parts of a mesh are one StatefulSet.
        self._cluster.scale(next(part.id for part in record.parts if part.mesh == mesh), hosts)
        return super()._shortened(record, mesh, hosts)

    def _shorten(self, record: Record, part: Part, hosts: int) -> Part:  # noqa: ARG002 - as of all jobs
        return part._replace(hosts=hosts)

    def _check_own(self, done: str, is_wanted: object) -> None:
        if is_wanted:
            raise JobError(_OTHERS.format(self.name, done))

    def _lose(self, host: HostStatus, reason: str) -> None:
        super()._lose(host, reason)
        self._lost[host.address, host.agent] = time.monotonic()
        # What was looked at before is not so any more.
        self._looked = None

    async def _ready(self, hosts: int | None, timeout_s: float | None) -> JobStatus:
        status = await super()._ready(hosts, timeout_s)
        if self._settings["port_forward"] and (up := status.up()):
            check = self._cluster.check_tunnels
            await asyncio.to_thread(check, self._applied(), up[0].host, self._settings["port"])
        return status

    def _troubles(self) -> list[str]:
        return self._cluster.tunnel_troubles

    def _is_gone(self, host: HostStatus) -> str:
        record = read_record(self.folder)
        seen = None if record is None or record.ended is not None else self._cluster.glance(record)
        # Others' pods may only have lost the label that they are found by.
        if seen is None or not seen.is_own or host.agent.partition(".")[0] in seen.pod_uids:
            return ""
        return "Kubernetes has its pod no more"

    def _said_of(self, mesh: str, rank: int) -> str:
        # What is so now: nobody has to be asked for that.
        record = read_record(self.folder)
        seen = None if record is None else self._cluster.glance(record)
        if record is None or seen is None:
            return ""
        return look_at(record, seen, self._settings).known.get((mesh, rank), "")

    def _over(self, record: Record, reason: str, *, failed: bool, has_run: bool = True, restarts: int = 0) -> None:
        super()._over(record, reason, failed=failed, has_run=has_run, restarts=restarts)
        self._cluster.close()


def _fetch(folder: str, name: str, namespace: str | None, own: Mapping[str, Any]) -> None:
    """Make the folder of a job that another machine's program applied.

    Args:
        folder: that folder.
        name: the job's name.
        namespace: where it is.
        own: the settings that are this program's.

    Raises:
        LookupError: there is no such job.
    """
    cluster = Cluster(own["kubeconfig"], own["context"], {})
    try:
        fields, key = cluster.find(name, namespace)
    finally:
        cluster.close()
    fields["spec"] |= own
    record = Record(folder, fields)
    os.makedirs(os.path.join(record.run_folder, "logs"), mode=0o700, exist_ok=True)
    _write_key(record, key)
    record.write()


def _write_key(record: Record, key: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(record.key_file)
    with open(os.open(record.key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(f"{key}\n")
