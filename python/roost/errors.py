"""Roost's exceptions: one tree, each also the built-in that a reader expects."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from roost.failure import Failure
    from roost.point import Point

    _Group = ExceptionGroup[Exception]
else:
    _Group = ExceptionGroup

__all__ = [
    "ActorDied",
    "AuthenticationError",
    "BlockingWaitError",
    "CallTimeoutError",
    "CollectiveError",
    "DeadlockError",
    "HostLostError",
    "JobError",
    "MailboxFullError",
    "MeshError",
    "MessageTooLargeError",
    "PeerLostError",
    "ProtocolError",
    "RemoteError",
    "RoostError",
    "ServiceExistsError",
    "StoppedError",
    "Unavailable",
    "VersionMismatchError",
]


class RoostError(Exception):
    """The root of all errors that Roost raises."""


class ActorDied(RoostError, ConnectionError):  # noqa: N818  (the word users say)
    """The actor that was called, or its proc or host, ended.

    Args:
        message: What happened; left out, the failure says it.
        failure: The death that it is about; left out, one that says no more than the message.
        maybe_executed: Whether the endpoint may have started, and the call may have had its effect.
    """

    failure: Failure
    """The death that it is about."""
    maybe_executed: bool
    """Whether the call may have been executed; False when it surely was not."""

    def __init__(
        self, message: str | None = None, failure: Failure | None = None, *, maybe_executed: bool = False
    ) -> None:
        # Pickling calls the class with these args, then restores the rest from __dict__.
        super().__init__(*(() if message is None else (message,)))
        self.failure = _unknown(message) if failure is None else failure
        self.maybe_executed = maybe_executed

    def __str__(self) -> str:
        # Without a message the failure is read anew each time, since its consequences grow.
        text = str(self.args[0]) if self.args else str(self.failure) if self.failure.name else "the actor ended"
        first, newline, rest = text.partition("\n")
        executed = "; the call may have been executed" if self.maybe_executed else ""
        return f"{first}{executed}{newline}{rest}"

    def __repr__(self) -> str:
        first = str(self).partition("\n")[0]
        return f"{type(self).__name__}({first!r})"


class StoppedError(ActorDied):
    """The actor or mesh was stopped on purpose."""


class PeerLostError(ActorDied):
    """The actor's proc, or the way to it, was lost."""


class HostLostError(PeerLostError):
    """The actor's host was lost, or cannot be reached."""


class CallTimeoutError(RoostError, TimeoutError):
    """The deadline given by `options(timeout=…)` passed before the reply came."""


class DeadlockError(RoostError, RuntimeError):
    """A call waits, over others, for itself.

    Args:
        cycle: The endpoints that wait for each other, by rank name, in calling order; the last waits for the actor of the
            first.
    """

    cycle: tuple[str, ...]
    """The endpoints that wait for each other, in calling order; the last waits for the actor of the first."""

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(tuple(cycle))
        self.cycle = tuple(cycle)

    def __str__(self) -> str:
        if not self.cycle:
            return "a call waits for itself"
        chain = " → ".join(self.cycle)
        return f"calls wait for each other: {chain}; await outside the endpoint, or make it @endpoint(concurrent=True)"


class BlockingWaitError(RoostError, RuntimeError):
    """A blocking wait on the thread of a running event loop, which would stop it."""


class MeshError(RoostError, _Group):
    """What several ranks of a mesh raised.

    Args:
        message: What was being done.
        exceptions: What each failed rank raised.
        points: The place of each, in the same order; empty for errors that are not of ranks.
    """

    points: tuple[Point, ...]
    """The place of each exception, in the same order."""
    later: list[Exception]
    """What other ranks raised after this was raised; it grows until every rank is accounted for."""

    def __new__(cls, message: str, exceptions: Sequence[Exception], points: Sequence[Point] = ()) -> Self:  # noqa: ARG004
        """Make a group, which fixes its exceptions before `__init__`."""
        return super().__new__(cls, message, exceptions)

    def __init__(self, message: str, exceptions: Sequence[Exception], points: Sequence[Point] = ()) -> None:
        super().__init__(message, exceptions)
        if points and len(points) != len(exceptions):
            raise ValueError(f"{len(points)} points for {len(exceptions)} exceptions; give one for each, or none")
        self.points = tuple(points)
        self.later = []

    def items(self) -> Iterator[tuple[Point, Exception]]:
        """Each failed place with what it raised."""
        return zip(self.points, self.exceptions, strict=False)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The deaths among the exceptions, each once."""
        found: dict[int, Failure] = {}
        _collect_failures(self, found)
        return tuple(found.values())

    def derive(self, excs: Sequence[Exception], /) -> MeshError:  # type: ignore[override]  # of Exceptions only
        """A group of part of the exceptions, as `except*` and `split` make them; `later` stays shared."""
        points = {id(exc): point for point, exc in self.items()}
        kept = [points[id(exc)] for exc in excs if id(exc) in points]
        derived = MeshError(self.message, excs, kept if len(kept) == len(excs) else ())
        derived.later = self.later
        return derived

    def __str__(self) -> str:
        places = [str(point) or "the only rank" for point in self.points[:_NAMED_MAX]]
        more = len(self.points) - _NAMED_MAX
        if more > 0:
            places.append(f"{more} more")
        at = f" at {'; '.join(places)}" if places else ""
        first = self.exceptions[0]
        count = len(self.exceptions)
        return f"{self.message} ({count} error{'s' if count > 1 else ''}{at}); the first: {_line(first)}"

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...], dict[str, object]]:
        state: dict[str, object] = {name: value for name, value in self.__dict__.items() if name != "points"}
        return type(self), (self.message, self.exceptions, self.points), state | {"later": list(self.later)}


class RemoteError(RoostError):
    """An exception that could not travel, as text.

    Args:
        type: The exception's class, as `module.Qualname`.
        text: What it said.
        traceback: Its remote traceback.
    """

    type: str
    """The exception's class, as `module.Qualname`."""
    text: str
    """What it said."""
    traceback: str
    """Its remote traceback."""

    def __init__(self, type: str, text: str = "", traceback: str = "") -> None:  # noqa: A002  (the word users look for)
        super().__init__(type, text, traceback)
        self.type = type
        self.text = text
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.type}: {self.text}" if self.text else self.type


class MessageTooLargeError(RoostError, ValueError):
    """A message or reply that passes a limit of `roost.Config`, or the one for what cannot travel by shared memory.

    Args:
        size: Its bytes, shared memory too; those outside shared memory where that is what is limited.
        limit: The limit that it passes.
        setting: The limit's name in `roost.Config`; empty for what cannot travel by shared memory, whose limit is fixed.
        what: What was too large.
    """

    size: int
    """Its bytes, shared memory too; those outside shared memory where that is what is limited."""
    limit: int
    """The limit that it passes."""
    setting: str
    """The limit's name in `roost.Config`; empty for what cannot travel by shared memory."""
    what: str
    """What was too large."""

    def __init__(self, size: int, limit: int, setting: str, what: str = "message") -> None:
        super().__init__(size, limit, setting, what)
        self.size = size
        self.limit = limit
        self.setting = setting
        self.what = what

    def __str__(self) -> str:
        if not self.setting:
            return (
                f"{self.what} of {self.size} bytes that cannot travel by shared memory passes the limit of {self.limit};"
                " send it in parts, or as arrays, tensors or bytes of 256 KiB and more each, within segments_bytes_max"
            )
        return (
            f"{self.what} of {self.size} bytes passes the limit of {self.limit};"
            f" send it in parts, or raise the limit with roost.configure({self.setting}=…)"
        )


class MailboxFullError(RoostError):
    """Too much waits for an actor already, and nothing of this message was sent."""


class ServiceExistsError(RoostError):
    """A service of that name is there, of another class."""


class AuthenticationError(RoostError, PermissionError):
    """A peer did not prove that it may join the job."""


class VersionMismatchError(RoostError):
    """The two ends run versions of Roost or Python that do not work together."""


class ProtocolError(RoostError):
    """A peer sent what the protocol forbids."""


class JobError(RoostError, RuntimeError):
    """A job cannot do what it was asked to: it has ended, another one is there, or the scheduler refuses; in its words."""


class CollectiveError(RoostError):
    """A collective operation failed at some rank, or was given up because a rank died or did not come.

    Args:
        message: What happened.
        failure: The death that it is about, if it is about one.
        suspects: The names of the ranks that it was waiting for, as far as they are known.
    """

    failure: Failure | None
    """The death that it is about, if it is about one."""
    suspects: tuple[str, ...]
    """The names of the ranks that it was waiting for, as far as they are known: the dead one, or those that did not come."""

    def __init__(self, message: str, failure: Failure | None = None, suspects: Sequence[str] = ()) -> None:
        super().__init__(message, failure, tuple(suspects))
        self.failure = failure
        self.suspects = tuple(suspects)

    def __str__(self) -> str:
        return str(self.args[0])


class Unavailable(RoostError):  # noqa: N818  (what it says is a state, as in HTTP)
    """Something that this machine lacks: a library, a device, a kernel feature. The text says what was tried."""


_NAMED_MAX = 8


def _unknown(message: str | None) -> Failure:
    """A failure that says no more than its error."""
    from roost.failure import Failure
    from roost.point import Point

    return Failure(kind="lost", origin="roost", mesh="", name="", point=Point({}), reason=message or "")


def _line(exception: BaseException) -> str:
    text = str(exception).partition("\n")[0]
    return f"{type(exception).__name__}: {text}" if text else type(exception).__name__


def _collect_failures(exception: BaseException, found: dict[int, Failure]) -> None:
    if isinstance(exception, ActorDied):
        found.setdefault(id(exception.failure), exception.failure)
    inner: Sequence[BaseException] = getattr(exception, "exceptions", ())
    for each in inner:
        _collect_failures(each, found)
