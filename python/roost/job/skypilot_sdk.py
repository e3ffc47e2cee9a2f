"""What `SkyPilotJob` asks of SkyPilot: six calls, and its SDK, which answers them."""

from __future__ import annotations

import re
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from roost.errors import JobError, RoostError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.job.documents import Document

__all__ = ["Sdk", "SilentServerError", "SkyPilot", "asked", "field", "word"]

T = TypeVar("T")

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# What SkyPilot calls it when its API server is away; what the network says itself is an `OSError`.
_SILENT = ("ApiServerConnectionError", "ServerTemporarilyUnavailableError")


class SilentServerError(JobError):
    """SkyPilot's API server does not answer."""


class SkyPilot(Protocol):
    """The six calls. All but `get` and `tail_logs` give the id of a request at once, whose answer `get` waits for.

    What they raise is told in its own words.
    """

    def launch(self, task: Document, cluster: str, idle_minutes: int) -> str:
        """Make a cluster and run a task there.

        Args:
            task: as SkyPilot's YAML has it.
            cluster: what it is to be called.
            idle_minutes: how long it may do nothing before it is taken down.
        """
        ...

    def get(self, request: str) -> Any:
        """Wait for the answer to a request."""
        ...

    def queue(self, cluster: str) -> str:
        """Ask for the tasks of a cluster that is up: each with `job_id` and `status`."""
        ...

    def status(self, cluster: str) -> str:
        """Ask for a list of that cluster, or of none: with `status` and `handle`."""
        ...

    def down(self, cluster: str) -> str:
        """Take a cluster down."""
        ...

    def tail_logs(self, cluster: str, output: IO[str], *, follow: bool) -> None:
        """Write what the last task of a cluster wrote.

        Args:
            cluster: its name.
            output: where to.
            follow: go on until it has ended.
        """
        ...


class Sdk:
    """SkyPilot's own SDK.

    Raises:
        Unavailable: it is not installed.
    """

    def __init__(self) -> None:
        try:
            self._sky: Any = import_module("sky")
        except ImportError as error:
            raise Unavailable(
                f"SkyPilotJob needs SkyPilot's SDK ({error}): pip install 'roost[skypilot]', with what it needs for your clouds"
            ) from None

    def launch(self, task: Document, cluster: str, idle_minutes: int) -> str:
        """As of `SkyPilot`, as are all others."""
        made = self._sky.Task.from_yaml_config(task)
        return str(
            self._sky.launch(made, cluster_name=cluster, idle_minutes_to_autostop=idle_minutes, down=True)
        )  # fmt: skip

    def get(self, request: str) -> Any:
        """See there."""
        return self._sky.get(request)

    def queue(self, cluster: str) -> str:
        """See there."""
        return str(self._sky.queue(cluster))

    def status(self, cluster: str) -> str:
        """See there."""
        # Not what was known last: clusters are taken away, too.
        return str(self._sky.status(cluster_names=[cluster], refresh=self._sky.StatusRefreshMode.AUTO))

    def down(self, cluster: str) -> str:
        """See there."""
        return str(self._sky.down(cluster))

    def tail_logs(self, cluster: str, output: IO[str], *, follow: bool) -> None:
        """See there."""
        self._sky.tail_logs(cluster, None, follow, output_stream=output)


def asked(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """What a call gives.

    Raises:
        SilentServerError: the API server does not answer.
        JobError: SkyPilot refuses; in its words.
    """
    try:
        return call(*arguments, **named)
    except RoostError:
        raise
    except Exception as error:  # noqa: BLE001 - an SDK of many clouds raises whatever they do
        name = type(error).__name__
        said = f"{name}: {_COLOURS.sub('', str(error)).strip()}"
        if isinstance(error, OSError) or name in _SILENT:
            raise SilentServerError(f"SkyPilot's API server does not answer: {said}") from None
        raise JobError(f"SkyPilot refuses: {said}") from None


def field(answer: Any, name: str) -> Any:
    """A field of an answer: a mapping in some versions of SkyPilot, an object in others."""
    return answer[name] if isinstance(answer, dict) else getattr(answer, name)


def word(status: Any) -> str:
    """A status by its name."""
    return str(getattr(status, "value", status))
