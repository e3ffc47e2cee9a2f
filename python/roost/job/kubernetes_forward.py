"""A connection with a port of a pod, through the API server and the pod's node."""

from __future__ import annotations

import json
import socket
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from roost.errors import JobError
from roost.job.kubernetes_api import SilentApiError, library

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.job.kubernetes_api import Api

__all__ = ["load", "pod_port"]

# How long the API server has to take a connection, and to answer at each step of it.
_ANSWER_S = 30.0
_NO_RIGHT = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def load() -> None:
    """Load what it takes: some seconds on a busy machine, which nobody who connects is to wait for."""
    library("websocket")
    library("kubernetes.stream.ws_client")


def pod_port(api: Api, namespace: str, pod: str, port: int) -> tuple[socket.socket, Callable[[], None]]:
    """A socket that is connected with a port of a pod; and what to call when that was cut.

    Args:
        api: the cluster's.
        namespace: the pod's.
        pod: its name.
        port: its port.

    Raises:
        SilentApiError: it is not possible now, in Kubernetes' words.
        JobError: this user may not have it.
    """
    websocket, library_end = library("websocket"), library("kubernetes.stream.ws_client")
    url, headers = api.address(f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward", ports=str(port))
    settings = api.settings
    # The library's own way to connect has no limit of time, and changes its client meanwhile.
    connection = websocket.WebSocket(sslopt={} if url.startswith("http:") else _proof(settings))
    given = {"header": [*headers, f"sec-websocket-protocol: {library_end.V4_CHANNEL_PROTOCOL}"], "timeout": _ANSWER_S}
    try:
        connection.connect(
            f"ws{url.removeprefix('http')}", **library_end.websocket_proxycare(given, settings, url, None)
        )
    except (websocket.WebSocketException, OSError) as error:
        code = getattr(error, "status_code", None)
        text = f"Kubernetes does not forward port {port} of {pod}: {_said(error)}"
        if code in _NO_RIGHT:
            raise JobError(f"{text}; ask for the rights to get and to create pods/portforward") from None
        raise SilentApiError(text) from None
    connection.settimeout(None)
    found = library_end.PortForward(connection, [port])
    # As it is: the library has its own in a wrapper. Of a connection that is cut it lets go late.
    return socket.socket(fileno=found.socket(port).detach()), connection.shutdown


def _proof(settings: Any) -> dict[str, Any]:
    """How both ends of a connection prove who they are."""
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if not settings.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    return {
        "context": context,
        **({"server_hostname": settings.tls_server_name} if settings.tls_server_name else {}),
    }


def _said(error: Exception) -> str:
    """What the server says of a refusal, or the client of what went wrong."""
    try:
        return f"{json.loads(getattr(error, 'resp_body', None) or '')['message']} ({error.status_code})"  # type: ignore[attr-defined]
    except (ValueError, KeyError, TypeError):
        return str(error).partition(" -+-+-")[0] or type(error).__name__
