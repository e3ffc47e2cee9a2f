"""The objects of a job in its cluster: made, looked at, changed, deleted."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.errors import JobError, RoostError
from roost.job import kubernetes_forward
from roost.job.kubernetes_api import Api, ConflictError, MissingError, NotSoError, SilentApiError
from roost.job.kubernetes_documents import DRIVER, KINDS, MESH, RECORD, RUN, Run, secret
from roost.job.kubernetes_look import Seen
from roost.job.kubernetes_pods import agent_name, incarnation, is_up
from roost.job.kubernetes_tunnels import Tunnels
from roost.job.kubernetes_watch import View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.job.documents import Document
    from roost.job.record import Announced, Record

__all__ = ["Cluster", "namespace_of"]

_PODS, _EVENTS = "/api/v1/namespaces/{}/pods", "/api/v1/namespaces/{}/events"


class _Watched(NamedTuple):
    """What is watched, and of which run."""

    run: str
    view: View


class Cluster:
    """A job's cluster, as one program sees it: it is spoken to when it has to be, by whatever thread.

    Args:
        kubeconfig: as of `Api`.
        context: as of `Api`.
        select: by mesh, a selector of pods that others make; none for own ones.
        makers: the kind of what makes its pods.
    """

    def __init__(
        self, kubeconfig: str | None, context: str | None, select: Mapping[str, str], makers: str = "StatefulSet"
    ) -> None:
        self._named = kubeconfig, context
        self._select = select
        self._makers = makers
        self._lock = threading.Lock()
        self._api: Api | None = None
        self._watched: _Watched | None = None
        # Runs of which an agent has listened.
        self._have_run: set[str] = set()
        self._tunnels: Tunnels | None = None
        self._may_forward = False

    @property
    def api(self) -> Api:
        """Its API server."""
        with self._lock:
            return self._opened()

    def _opened(self) -> Api:
        if self._api is None:
            self._api = Api(*self._named)
        return self._api

    def close(self) -> None:
        """Let go of it."""
        with self._lock:
            self._stop_watching()
            if self._tunnels is not None:
                self._tunnels.close()
                self._tunnels = None
            if self._api is not None:
                self._api.close()
                self._api = None

    # What there is -------------------------------------------------------------------------------------------------------
    def see(self, record: Record) -> Seen:
        """What there is of a run.

        Raises:
            SilentApiError: the server does not answer.
        """
        with self._lock:
            watched = self._watched
            if watched is None or watched.run != record.run or watched.view.is_over:
                self._stop_watching()
                note = partial(self._note, record.run)
                view = View(self._opened(), self._lists(record), optional=("events",), note=note)
                watched = self._watched = _Watched(record.run, view)
        watched.view.look()
        return self._seen(watched)

    def _note(self, run: str, one: Document) -> None:
        if is_up(one) and one["metadata"].get("labels", {}).get(MESH) != DRIVER:
            self._have_run.add(run)

    def glance(self, record: Record) -> Seen | None:
        """The same, as far as it is known here: nobody is asked."""
        watched = self._watched
        return None if watched is None or watched.run != record.run else self._seen(watched)

    def _seen(self, watched: _Watched) -> Seen:
        view, has_run = watched.view, watched.run in self._have_run
        if self._select:
            pods = {mesh: view.objects(mesh) for mesh in self._select}
            return Seen(pods, [], view.objects("events"), is_own=False, has_run=has_run)
        pods = {}
        for pod in view.objects("pods"):
            pods.setdefault(pod["metadata"]["labels"].get(MESH, ""), []).append(pod)
        return Seen(pods, view.objects("makers"), view.objects("events"), view.former("pods"), has_run=has_run)

    def _lists(self, record: Record) -> dict[str, tuple[str, dict[str, str]]]:
        namespace = namespace_of(record)
        pods = _PODS.format(namespace)
        lists = {"events": (_EVENTS.format(namespace), {"fieldSelector": "type!=Normal"})}
        own = {"labelSelector": f"{RUN}={record.run}"}
        if self._select:
            return lists | {mesh: (pods, {"labelSelector": selector}) for mesh, selector in self._select.items()}
        return lists | {"pods": (pods, own), "makers": (KINDS[self._makers].format(namespace), own)}

    def _stop_watching(self) -> None:
        if self._watched is not None:
            self._watched.view.close()
            self._watched = None

    def tunnel(self, record: Record, told: Announced, port: int) -> str:
        """An address here that leads to a pod's agent.

        Args:
            record: the job.
            told: the agent.
            port: where it listens.
        """
        with self._lock:
            if self._tunnels is None:
                kubernetes_forward.load()
                self._tunnels = Tunnels(partial(kubernetes_forward.pod_port, self._opened(), namespace_of(record)))
            return f"127.0.0.1:{self._tunnels.port(told.name, told.agent, port)}"

    def keep_tunnels(self, seen: Seen) -> None:
        """Close those that lead to agents of pods that have gone, or to one before the one that is there now."""
        with self._lock:
            if self._tunnels is not None:
                self._tunnels.keep({incarnation(pod) for pods in seen.pods.values() for pod in pods})

    def check_tunnels(self, record: Record, pod: str, port: int) -> None:
        """See to it, once, that this user may have ports of pods forwarded.

        Raises:
            JobError: he may not, in Kubernetes' words.
        """
        if not self._may_forward:
            # What does not answer now may when it is used.
            with suppress(SilentApiError):
                probe, _ = kubernetes_forward.pod_port(self.api, namespace_of(record), pod, port)
                # The library's thread sees it, and ends the connection: closed under its feet it would raise there.
                probe.close()
            self._may_forward = True

    @property
    def tunnel_troubles(self) -> list[str]:
        """Why agents are not reached through the API server."""
        tunnels = self._tunnels
        return [] if tunnels is None else tunnels.troubles

    def log(self, record: Record, pod: Document, **query: str) -> str:
        """What a pod's agent wrote; nothing where it has not begun, or is gone.

        Raises:
            SilentApiError: the server, or the pod's node, does not answer.
            JobError: this user may not see it.
        """
        path = f"{_PODS.format(namespace_of(record))}/{pod['metadata']['name']}/log"
        try:
            return self.api.text(path, container=agent_name(pod), **query)
        except (MissingError, NotSoError):
            return ""

    # What is made of it --------------------------------------------------------------------------------------------------
    def create(self, run: Run, key: str, record: Record, folder: str, documents: list[Document]) -> None:
        """Make the objects of a run, or none.

        Args:
            run: the run.
            key: that of its hosts.
            record: what its state file says.
            folder: where this program keeps what it knows of the job's runs.
            documents: all objects but the secret, which owns them.

        Raises:
            JobError: the name is taken, there is no such namespace, or the server refuses.
        """
        namespace = run.settings["namespace"]
        try:
            owner = self._create_secret(run, secret(run, key, json.dumps(record.to_json())), folder)
            for document in documents:
                owned = {**document, "metadata": {**document["metadata"], "ownerReferences": [_reference(owner)]}}
                self.api.create(KINDS[document["kind"]].format(namespace), owned)
        except BaseException:
            with suppress(RoostError):
                self.remove(namespace, run.run)
            raise

    def _create_secret(self, run: Run, document: Document, folder: str) -> Document:
        namespace = run.settings["namespace"]
        path = KINDS["Secret"].format(namespace)
        try:
            return self.api.create(path, document)
        except MissingError as error:
            raise JobError(f"{error}. Make the namespace {namespace!r}, or give namespace= one that is there") from None
        except ConflictError as error:
            there = self.api.get(f"{path}/{run.name}")["metadata"].get("labels", {}).get(RUN)
            if there is None:
                raise JobError(f"{error}. Give this job another name") from None
            if not os.path.isdir(os.path.join(folder, there)):
                raise JobError(
                    f"another job {run.name!r} is in the namespace {namespace!r}: take it with KubernetesJob.connect({run.name!r}), "
                    "kill it there, or give this one another name"
                ) from None
        # Who applied it from this folder ended before it was done with that.
        self.remove(namespace, there)
        return self.api.create(path, document)

    def check_namespace(self, namespace: str) -> None:
        """See to it that it is there.

        Raises:
            JobError: it is not.
        """
        try:
            self.api.get(f"/api/v1/namespaces/{namespace}")
        except MissingError as error:
            raise JobError(f"{error}. Give namespace= one that is there") from None
        except SilentApiError:
            raise
        except JobError:
            pass  # not everybody may see that

    def remove(self, namespace: str, run: str) -> None:
        """Delete all objects of a run, whoever made them."""
        api = self.api
        # Not everybody may see kinds that he makes nothing of.
        for kind in (self._makers, "Service", "NetworkPolicy", "Secret"):
            where = KINDS[kind].format(namespace)
            for one in api.items(where, labelSelector=f"{RUN}={run}"):
                api.delete(f"{where}/{one['metadata']['name']}", one["metadata"]["uid"])

    def scale(self, of: str, pods: int) -> None:
        """Change how many pods there are: `of` is the namespace of what makes them, a slash, its name."""
        namespace, _, name = of.partition("/")
        spec = {"replicas": pods} if self._makers == "StatefulSet" else {"completions": pods, "parallelism": pods}
        self.api.change(f"{KINDS[self._makers].format(namespace)}/{name}", {"spec": spec})

    def find(self, name: str, namespace: str | None) -> tuple[dict[str, Any], str]:
        """What the state file of the job of this name says, brought up to date, and the key of its hosts.

        Raises:
            LookupError: there is none.
        """
        import base64

        api = self.api
        namespace = namespace or api.namespace
        try:
            found = api.get(f"{KINDS['Secret'].format(namespace)}/{name}")
            fields: dict[str, Any] = json.loads(found["metadata"]["annotations"][RECORD])
        except (MissingError, KeyError):
            raise LookupError(
                f"the namespace {namespace!r} has no job {name!r}: apply it, or give namespace= or folder= where it is"
            ) from None
        kind, count = ("Job", "parallelism") if fields["spec"].get("driver") else ("StatefulSet", "replicas")
        makers = api.items(KINDS[kind].format(namespace), labelSelector=f"{RUN}={fields['run']}")
        hosts = {one["metadata"]["labels"][MESH]: one["spec"].get(count, 1) for one in makers}
        for mesh, spec in fields["spec"]["meshes"].items():
            spec["hosts"] = hosts.get(mesh, spec["hosts"])
        fields["parts"] = [[mesh, 0, hosts.get(mesh, known), of] for mesh, _, known, of in fields["parts"]]
        return fields, base64.b64decode(found["data"]["key"]).decode()


def namespace_of(record: Record) -> str:
    """Where the objects of a run are."""
    return record.parts[0].id.partition("/")[0]


def _reference(owner: Document) -> Document:
    """With its owner an object goes, whoever deletes that."""
    metadata = owner["metadata"]
    return {"apiVersion": "v1", "kind": "Secret", "name": metadata["name"], "uid": metadata["uid"]}
