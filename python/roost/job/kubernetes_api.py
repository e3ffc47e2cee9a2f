"""Kubernetes' API: documents as they are, through the official client, which knows how to find and to prove itself to a cluster."""

from __future__ import annotations

import http
import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from roost.errors import JobError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from roost.job.documents import Document

__all__ = [
    "Api",
    "ConflictError",
    "ExpiredError",
    "MissingError",
    "NotSoError",
    "SilentApiError",
    "events_in",
    "library",
]

# How long the API server has to take a connection, and to answer.
_CONNECT_S, _ANSWER_S = 5.0, 30.0
# How often a request is made that the server was too busy for, or that somebody else's change came before; and the pause between.
_ATTEMPTS, _PAUSE_S, _PAUSE_MAX_S = 4, 0.2, 5.0
_BUSY = (429, 503)
_FAILED_ITSELF = 500
_NAMESPACE_OF_POD = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class SilentApiError(JobError):
    """The API server does not answer, is too busy to, or fails itself: later it may."""


class MissingError(JobError):
    """There is no such object, or no such namespace."""


class NotSoError(JobError):
    """What was asked for makes no sense as things are: the log of a container that has not begun."""


class ConflictError(JobError):
    """It is there already."""


class ExpiredError(JobError):
    """What has happened since is not kept any more: look at all of it anew."""


def library(name: str) -> ModuleType:
    """A module of the extra's.

    Raises:
        Unavailable: it is not installed.
    """
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unavailable(
            f"KubernetesJob needs Kubernetes' client for Python ({error}): pip install 'roost[kubernetes]'"
        ) from None


class Api:
    """A cluster's API server.

    Args:
        kubeconfig: the file that names it; when left out, in a pod the pod's own service account, else what kubectl would take.
        context: which of the file's contexts; its current one when left out.

    Raises:
        Unavailable: the client is not installed, or no cluster is named.
    """

    namespace: str
    """The one that is meant where none is given."""

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        client, config = library("kubernetes.client"), library("kubernetes.config")
        settings = client.Configuration()
        # What is told of an object is told by the server, once and in its own words.
        settings.retries = False
        try:
            if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(client_configuration=settings)
                with open(_NAMESPACE_OF_POD, encoding="utf-8") as file:
                    self.namespace = file.read().strip()
            else:
                config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=settings)
                self.namespace = _namespace_of(config, kubeconfig, context)
        except (config.ConfigException, OSError) as error:
            raise Unavailable(
                f"there is no Kubernetes here: {error}. Give kubeconfig= a file that names the cluster, as for kubectl"
            ) from None
        self._client = client.ApiClient(settings)
        self.server: str = settings.host

    def get(self, path: str, **query: str) -> Document:
        """What is there: an object, or a list of some.

        Raises:
            MissingError: nothing is.
            JobError: as of all of these: the server refuses, in its words, or does not answer.
        """
        return _parsed(self._call("GET", path, query))

    def items(self, path: str, **query: str) -> list[Document]:
        """The objects of a list."""
        return list(self.get(path, **query).get("items") or [])

    def create(self, path: str, document: Document) -> Document:
        """Make an object.

        Raises:
            ConflictError: there is one of this name.
        """
        return _parsed(self._call("POST", path, {}, document))

    def change(self, path: str, changes: Document) -> Document:
        """Merge changes into an object."""
        return _parsed(self._call("PATCH", path, {}, changes, "application/merge-patch+json"))

    def delete(self, path: str, uid: str) -> None:
        """Delete the very object that has this uid, if it is there, and what it owns."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        # One of another uid that has its name by now is somebody else's.
        with suppress(MissingError, ConflictError):
            self._call("DELETE", path, {}, body).drain_conn()

    def text(self, path: str, **query: str) -> str:
        """What is no document: a log."""
        return str(self._call("GET", path, query).data.decode(errors="replace"))

    def watch(self, path: str, seconds: int, **query: str) -> Any:
        """The changes of a list from a version on, as they come: an open response, whose lines `events_in` reads.

        Args:
            path: that of the list.
            seconds: after which the server ends it.
            query: which objects, and from which version on.

        Raises:
            ExpiredError: what has happened since that version is not kept any more.
        """
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        # One that has gone silent altogether is given up a little later than its server would end it.
        return self._call("GET", path, query, answer_s=seconds + _ANSWER_S)

    @property
    def settings(self) -> Any:
        """How the server is reached, and by what this user proves who he is: the library's."""
        return self._client.configuration

    def address(self, path: str, **query: str) -> tuple[str, list[str]]:
        """The whole address of a path, and the headers by which this user proves who he is."""
        _, url, headers, *_ = self._client.param_serialize(
            "GET", path, query_params=list(query.items()), auth_settings=["BearerToken"]
        )
        return url, [f"{name}: {value}" for name, value in headers.items() if name.lower() == "authorization"]

    def close(self) -> None:
        """Close what is open."""
        self._client.close()

    def _call(
        self, method: str, path: str, query: Mapping[str, str], body: Document | None = None,
        content: str = "application/json", answer_s: float = _ANSWER_S,
    ) -> Any:  # fmt: skip
        pause_s = _PAUSE_S
        for attempt in range(_ATTEMPTS):
            response = self._answer(method, path, query, body, content, answer_s)
            if response.status < http.HTTPStatus.MULTIPLE_CHOICES:
                return response
            error = _error_of(response, f"{method} {path}")
            again = response.status in _BUSY or (response.status == http.HTTPStatus.CONFLICT and method == "PATCH")
            if not again or attempt == _ATTEMPTS - 1:
                raise error
            asked_s = response.headers.get("Retry-After", "")
            time.sleep(min(float(asked_s) if asked_s.isdigit() else pause_s, _PAUSE_MAX_S))
            pause_s *= 2
        raise AssertionError  # the last attempt returns or raises

    def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: Document | None, content: str, answer_s: float
    ) -> Any:
        errors = library("urllib3.exceptions")
        refused = library("kubernetes.client").ApiException
        request = self._client.param_serialize(
            method, path, query_params=list(query.items()), body=body, auth_settings=["BearerToken"],
            header_params={"Accept": "application/json, text/plain", "Content-Type": content},
        )  # fmt: skip
        try:
            return self._client.call_api(*request, _request_timeout=(_CONNECT_S, answer_s)).response
        except (errors.HTTPError, refused, OSError) as error:
            raise SilentApiError(f"Kubernetes at {self.server} does not answer: {_plain(error)}") from None


def events_in(response: Any) -> Iterator[tuple[str, Document]]:
    """What a watch tells, until its server ends it: (ADDED, MODIFIED, DELETED or BOOKMARK, the object).

    Raises:
        ExpiredError: as of `watch`.
        SilentApiError: the connection was lost.
    """
    errors = library("urllib3.exceptions")
    rest = b""
    try:
        for chunk in response.stream(amt=None):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _refusal(event["object"], int(event["object"].get("code") or 500), "watch")
                yield event["type"], event["object"]
    except (errors.HTTPError, OSError, ValueError) as error:
        raise SilentApiError(f"a watch was cut off: {_plain(error)}") from None


def _namespace_of(config: Any, kubeconfig: str | None, context: str | None) -> str:
    contexts, current = config.list_kube_config_contexts(kubeconfig)
    meant = current if context is None else next(one for one in contexts if one["name"] == context)
    return str(meant["context"].get("namespace") or "default")


def _parsed(response: Any) -> Document:
    found: Document = json.loads(response.data)
    return found


def _error_of(response: Any, what: str) -> JobError:
    text = response.data.decode(errors="replace")
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    if not isinstance(status, dict) or "message" not in status:
        status = {"message": text.strip()[:200] or response.reason}
    return _refusal(status, response.status, what)


def _refusal(status: Document, code: int, what: str) -> JobError:
    """What the server's word for a refusal means here."""
    said = f"Kubernetes refuses ({what}): {status.get('message') or status.get('reason') or ''} ({code})"
    kinds: dict[int, type[JobError]] = {400: NotSoError, 404: MissingError, 409: ConflictError, 410: ExpiredError}
    if code in (401, 403):
        said += "; ask whoever runs the cluster for these rights, give kubeconfig= another user's file, or correct namespace="
    return kinds.get(code, SilentApiError if code in _BUSY or code >= _FAILED_ITSELF else JobError)(said)


def _plain(error: BaseException) -> str:
    """An error without the objects that the client puts in front."""
    reason = getattr(error, "reason", None) or error
    return str(reason).rpartition(">: ")[2] or type(error).__name__
