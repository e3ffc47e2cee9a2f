"""`SkyPilotJob`: hosts from whatever SkyPilot finds them on: clouds, Kubernetes, Slurm, machines reached by ssh."""

from __future__ import annotations

import io
import logging
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from roost.addresses import joined
from roost.errors import JobError
from roost.job.documents import as_yaml
from roost.job.job import Job
from roost.job.knowing import Look
from roost.job.logs import LogLines
from roost.job.record import Part, Record, announced, tell_of
from roost.job.skypilot_log import ClusterLog
from roost.job.skypilot_sdk import Sdk, SilentServerError, asked, field, word
from roost.job.skypilot_task import check_settings, cluster_name, lines_of, listening, task_of
from roost.job.spec import lists_of_texts, tables
from roost.values import check_flag, check_integer

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from roost.job.skypilot_sdk import SkyPilot
    from roost.job.spec import MeshSpec

__all__ = ["SkyPilotJob"]

_logger = logging.getLogger("roost.job")

# How much of what a cluster's task wrote last is kept when it has ended.
_LINES_KEPT = 200
# Before an API server that did not answer is asked again what became of a launch.
_AGAIN_S = 5.0
# How long SkyPilot may take to begin with a cluster.
_BEGIN_S = 120.0
_UP = "UP"
_GONE = "its cluster is gone: SkyPilot or its cloud took it away"
_LETS_GO = "SkyPilot takes a cluster down as a whole: {0} can have {1} hosts or {2}"


class SkyPilotJob(Job):
    """Hosts from SkyPilot: each mesh is a cluster of its own, with an agent on each node, and gone when the job is.

    Args:
        meshes: how many nodes, or a `MeshSpec`, by name; its `args` are fields of SkyPilot's resources: `["use_spot=true"]`.
        name: the job's name; the clusters are called NAME-MESH.
        folder: as of `Job`; the hosts need not share it.
        sync: as of `Job`.
        infra: where SkyPilot is to look: "kubernetes", "aws/us-east-1", "slurm/CLUSTER"; anywhere when left out.
        accelerator: what `MeshSpec.gpus` counts: "MI300X", "H200".
        resources: more of SkyPilot's resources, for all meshes: `{"image_id": "docker:…"}`.
        setup: lines of shell that make a new node ready: `["pip install roost"]`.
        prologue: lines of shell that come before the agent, each time.
        env: environment variables of the agents.
        python: the interpreter there.
        port: where the agents listen; 0 lets each system choose.
        external: whether they are reached from outside the clusters' network, by their public addresses; needs `port`.
        idle_minutes: after how long a cluster on which nothing runs is taken down, should nobody have done so.
        task: more of the task as SkyPilot's YAML has it, merged into it: `{"config": …}`, `{"file_mounts": …}`.
        warn_s: as of `Job`.

    Raises:
        ValueError: names or numbers that cannot be, or that SkyPilot refuses.
    """

    kind: ClassVar[str] = "skypilot"
    # Each look is a request to SkyPilot's API server, and through it to the clusters.
    _ask_s: ClassVar[float] = 2.0

    def __init__(
        self,
        meshes: Mapping[str, int | MeshSpec],
        *,
        name: str = "roost",
        folder: str | os.PathLike[str] | None = None,
        sync: str | os.PathLike[str] | None = None,
        infra: str | None = None,
        accelerator: str | None = None,
        resources: Mapping[str, Any] | None = None,
        setup: Sequence[str] = (),
        prologue: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        python: str = "python3",
        port: int = 0,
        external: bool = False,
        idle_minutes: int = 10,
        task: Mapping[str, Any] | None = None,
        warn_s: float = 300.0,
    ) -> None:
        check_integer("SkyPilotJob", "port", port, least=0)
        check_integer("SkyPilotJob", "idle_minutes", idle_minutes, least=0)
        check_flag("SkyPilotJob", "external", external, "whether the hosts are reached by their public addresses")
        super().__init__(
            meshes, name=name, folder=folder, sync=sync, warn_s=warn_s, infra=infra, accelerator=accelerator,
            python=python, port=port, external=external,
            idle_minutes=idle_minutes, **tables("SkyPilotJob", resources=resources, env=env, task=task),
            **lists_of_texts("SkyPilotJob", setup=setup, prologue=prologue),
        )  # fmt: skip
        check_settings(self.name, self.meshes, self._settings)
        self._made: SkyPilot | None = None
        # What SkyPilot said last, for when it does not answer.
        self._last = Look("pending")
        # By a part's id, the answer to its launch, and how it ended: a cluster that is gone does not tell.
        self._launches: dict[str, _Launch] = {}
        self._ends: dict[str, _Seen] = {}

    @staticmethod
    def _sdk() -> SkyPilot:
        """SkyPilot, or what stands for it; made when it is used for the first time."""
        return Sdk()

    @property
    def _sky(self) -> SkyPilot:
        if self._made is None:
            self._made = type(self)._sdk()
        return self._made

    def render(self) -> str:
        """The tasks that would be launched, one for each mesh."""
        fields: dict[str, Any] = {"kind": self.kind, "name": self.name, "run": "RUN", "spec": {}, "parts": []}
        record = Record(self.folder, fields)
        parts = [Part(name, 0, spec.hosts, "") for name, spec in self.meshes.items()]
        return as_yaml([self._task(record, part) for part in parts], "skypilot")

    def logs(self, mesh: str, rank: int = 0, *, follow: bool = False) -> LogLines:
        """As of `Job`: what its node wrote, with SkyPilot's own lines; of a job that has ended, the last lines."""
        record = self._applied()
        if record.ended is not None or mesh == "driver":
            return super().logs(mesh, rank, follow=follow)
        self._log_path(record, mesh, rank)  # no such host is an error here
        part = next(one for one in record.parts if one.mesh == mesh and one.first <= rank < one.first + one.hosts)
        log = ClusterLog(self._sky, _cluster_of(part), rank - part.first, follow=follow)
        return LogLines(log.read, log.is_over if follow else None)

    # What it says of itself ----------------------------------------------------------------------------------------------
    def _task(self, record: Record, part: Part) -> dict[str, Any]:
        return task_of(self.name, record, part, self.meshes[part.mesh], self._settings)

    def _submit(self, record: Record, wanted: list[Part]) -> list[Part]:
        done: list[Part] = []
        try:
            for part in wanted:
                cluster = cluster_name(self.name, part)
                self._check_free(cluster)
                request = asked(self._sky.launch, self._task(record, part), cluster, self._settings["idle_minutes"])
                done.append(part._replace(id=f"{cluster}@{request}"))
        except BaseException:
            self._take_down(done)
            raise
        return done

    def _check_free(self, cluster: str) -> None:
        """See to it that nobody has it: SkyPilot would run this job's task there."""
        there = self._cluster(cluster)
        if there is not None:
            raise JobError(
                f"SkyPilot has a cluster {cluster!r} already ({word(field(there, 'status'))}): `sky down {cluster}` ends it, or give "
                "this job another name"
            )

    def _look(self, record: Record) -> Look:
        try:
            seen = {part: self._see(part) for part in record.parts}
            for part, one in seen.items():
                if one.state == "running":
                    self._hear(record, part)
                elif one.state == "ended" and part.id not in self._ends:
                    self._ends[part.id] = one
                    self._keep_last_words(record, part)
        except SilentServerError as error:
            # The clusters go on without.
            return self._last._replace(reason=str(error))
        reason = "; ".join(dict.fromkeys(one.reason for one in seen.values() if one.state != "running"))
        states = {one.state for one in seen.values()}
        if states == {"ended"}:
            # Somebody pays for what is left.
            self._take_down(record.parts)
            failed, has_run = any(one.failed for one in seen.values()), any(one.has_run for one in seen.values())
            return Look("ended", reason, failed, has_run=has_run)
        places = {part: [(part.mesh, rank) for rank in range(part.first, part.first + part.hosts)] for part in seen}
        self._last = Look(
            "running" if "running" in states else "pending", "" if states == {"running"} else reason,
            gone={at: one.reason for part, one in seen.items() if one.state == "ended" for at in places[part]},
            waiting={at: one.reason for part, one in seen.items() if one.state == "pending" for at in places[part]},
            known={at: f"SkyPilot: {one.reason}" for part, one in seen.items() for at in places[part]},
        )  # fmt: skip
        return self._last

    def _see(self, part: Part) -> _Seen:
        """How the cluster of a part is, and what runs there."""
        if part.id in self._ends:
            return self._ends[part.id]
        cluster, launch = _cluster_of(part), self._launch(part)
        # In this order: what is done by now shows in what is asked then.
        is_done, error = launch.is_done, launch.error
        there = self._cluster(cluster)
        status = "" if there is None else word(field(there, "status"))
        tasks = asked(self._sky.get, asked(self._sky.queue, cluster)) if status == _UP else []
        if tasks:
            last = max(tasks, key=lambda one: int(field(one, "job_id")))
            return _of_task(cluster, field(last, "job_id"), word(field(last, "status")))
        if error is not None:
            return _Seen("ended", error, failed=True)
        return _without_task(cluster, status, is_made=is_done)

    def _launch(self, part: Part) -> _Launch:
        if part.id not in self._launches:
            self._launches[part.id] = _Launch(self._sky, part.id.partition("@")[2])
        return self._launches[part.id]

    def _cluster(self, cluster: str) -> Any:
        """What SkyPilot knows of a cluster; None for nothing."""
        return next(iter(asked(self._sky.get, asked(self._sky.status, cluster))), None)

    def _hear(self, record: Record, part: Part) -> None:
        """Agents there tell of themselves in what they write."""
        folder = record.hosts_folder(part, 0)
        known = announced(folder)
        if len(known) == part.hosts:
            return
        cluster, output = _cluster_of(part), io.StringIO()
        asked(self._sky.tail_logs, cluster, output, follow=False)
        found = {place: told for place, told in listening(output.getvalue()).items() if place not in known}
        outside = self._outside(cluster) if found and self._settings["external"] else {}
        for place, (address, port) in found.items():
            tell_of(folder, place, joined(outside.get(address, address), port), f"{cluster}-{place}")

    def _outside(self, cluster: str) -> dict[str, str]:
        """By the address of a node in its own network, the one that it has for others."""
        there = self._cluster(cluster)
        return {} if there is None else dict(field(there, "handle").stable_internal_external_ips)

    def _keep_last_words(self, record: Record, part: Part) -> None:
        output = io.StringIO()
        try:
            asked(self._sky.tail_logs, _cluster_of(part), output, follow=False)
        except JobError:
            return  # it goes with its cluster
        for place in range(part.hosts):
            lines = [*io.StringIO(lines_of(output.getvalue(), place))][-_LINES_KEPT:]
            with open(record.log_file(part, place), "w", encoding="utf-8") as file:
                file.writelines(lines)

    def _end(self, record: Record) -> None:
        for part in record.parts:
            if part.id not in self._ends:
                self._keep_last_words(record, part)
        self._take_down(record.parts)

    def _take_down(self, parts: Sequence[Part]) -> None:
        """Have the clusters of parts taken down that are there, all at once, and wait for that."""
        there = [_cluster_of(part) for part in parts if self._is_there(part)]
        requests = {cluster: asked(self._sky.down, cluster) for cluster in there}
        for cluster, request in requests.items():
            try:
                asked(self._sky.get, request)
            except JobError as error:
                if self._cluster(cluster) is not None:
                    _logger.warning("cluster %s is not taken down, and costs what it costs: %s", cluster, error)

    def _is_there(self, part: Part) -> bool:
        """Whether a part has a cluster: one that was asked for and has not begun would come after it was looked for."""
        launch, until = self._launch(part), time.monotonic() + _BEGIN_S
        while True:
            is_done = launch.is_done
            if self._cluster(_cluster_of(part)) is not None:
                return True
            if is_done or time.monotonic() > until:
                return False
            time.sleep(self._ask_s)

    def _shorten(self, record: Record, part: Part, hosts: int) -> Part:
        if hosts:
            raise JobError(_LETS_GO.format(part.mesh, part.first or "none", part.first + part.hosts))
        self._take_down([part])
        # The next one that begins at this rank is another one.
        shutil.rmtree(record.hosts_folder(part, 0), ignore_errors=True)
        return part._replace(hosts=0)


class _Seen(NamedTuple):
    """How a part is."""

    state: Literal["pending", "running", "ended"]
    reason: str
    failed: bool = False
    has_run: bool = False
    """Of one that has ended, whether its task had begun."""


def _of_task(cluster: str, number: Any, status: str) -> _Seen:
    said = f"task {number} on {cluster} is {status}"
    if status in ("INIT", "PENDING", "SETTING_UP"):
        return _Seen("pending", said)
    if status == "RUNNING":
        return _Seen("running", said)
    return _Seen("ended", said, failed=status != "SUCCEEDED", has_run=status in ("SUCCEEDED", "FAILED"))


def _without_task(cluster: str, status: str, *, is_made: bool) -> _Seen:
    if not is_made:
        return _Seen("pending", f"its cluster {cluster} is being made{status and f' ({status})'}")
    if status == _UP:
        return _Seen("pending", f"its cluster {cluster} is up, and its task has not begun")
    if not status:
        return _Seen("ended", _GONE, failed=True)
    return _Seen("ended", f"its cluster {cluster} is {status}: a node of it is lost, or it was stopped", failed=True)


class _Launch:
    """The answer to a launch, which takes minutes: it is waited for on a thread of its own."""

    def __init__(self, sky: SkyPilot, request: str) -> None:
        self._sky, self._request = sky, request
        self.is_done = False
        self.error: str | None = None
        threading.Thread(target=self._wait, name=f"roost-launch {request}", daemon=True).start()

    def _wait(self) -> None:
        while not self.is_done:
            try:
                asked(self._sky.get, self._request)
            except SilentServerError:
                time.sleep(_AGAIN_S)
                continue
            except JobError as error:
                self.error = str(error)
            self.is_done = True


def _cluster_of(part: Part) -> str:
    return part.id.partition("@")[0]
