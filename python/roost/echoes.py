"""Errors that may be the echo of a peer's death: told after it, and listed below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roost._exceptions import RemoteTraceback, one_line
from roost.errors import ActorDied, RemoteError
from roost.failure import Failure
from roost.gathered import GatheredReply

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from roost.hooks import Sink
    from roost.runtime import Runtime

__all__ = ["Echoes", "may_echo"]

# How far an error's causes are looked at, and how many echoes a failure lists: a mesh may have thousands of ranks.
_CAUSES_MAX = 8
_LISTED_MAX = 64


class Echoes:
    """Errors that wait for the death that may explain them: one for each process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._held: dict[Sink, dict[int, tuple[BaseException, TimerHandle]]] = {}

    def hold(self, sink: Sink, rank: int, error: BaseException) -> None:
        """A rank raised this: a death that explains it is told first, when it comes in time."""
        if _death_told_to(sink) is not None:
            self._tell(sink, rank, error)
            return
        timer = self._runtime.loop.call_later(self._runtime.config.echo_hold_s, self._overdue, sink, rank)
        self._held.setdefault(sink, {})[rank] = error, timer

    def release(self, sink: Sink) -> None:
        """Whoever waits was told of a death: what was held back for it follows."""
        for rank, (error, timer) in self._held.pop(sink, {}).items():
            timer.cancel()
            self._tell(sink, rank, error)

    def _overdue(self, sink: Sink, rank: int) -> None:
        held = self._held[sink]
        error, _ = held.pop(rank)
        if not held:
            del self._held[sink]
        self._tell(sink, rank, error)

    def _tell(self, sink: Sink, rank: int, error: BaseException) -> None:
        death = _death_told_to(sink)
        if death is not None and isinstance(sink, GatheredReply) and len(death.consequences) < _LISTED_MAX:
            mesh, name, point = sink.place(rank)
            cause = error.__cause__
            death._add_consequence(
                Failure(
                    kind="error", origin="user", mesh=mesh, name=name, point=point, host=death.host,
                    reason=one_line(error), traceback=cause.text if isinstance(cause, RemoteTraceback) else "", cause=death,
                )
            )  # fmt: skip
        sink.fail_ranks([(rank, error)])


def _death_told_to(sink: Sink) -> Failure | None:
    """The death that a call to a mesh failed of first."""
    first = sink.first_error if isinstance(sink, GatheredReply) else None
    return first.failure if isinstance(first, ActorDied) else None


def may_echo(error: BaseException) -> bool:
    """Whether an endpoint's error may come of another rank's death: of a connection, or out of `torch.distributed`."""
    link: BaseException | None = error
    try:
        for _ in range(_CAUSES_MAX):
            if link is None or isinstance(link, ActorDied):
                return False  # a death is never held back
            if isinstance(link, (OSError, EOFError)) and not isinstance(link, TimeoutError):
                return True
            if _is_torch_distributed(link):
                return True
            link = link.__cause__ or link.__context__
    except Exception:  # noqa: BLE001 - a user's class may raise for any attribute
        return False
    return False


def _is_torch_distributed(error: BaseException) -> bool:
    if isinstance(error, RemoteTraceback):
        return "/torch/distributed/" in error.text
    name = error.type if isinstance(error, RemoteError) else type(error).__module__
    return name.startswith("torch.distributed")
