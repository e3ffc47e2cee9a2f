"""What failed, what is told of it, and the policies that say what happens then."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from roost.values import Frozen, check_finite, check_integer, check_items, check_one_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from roost.point import Point

__all__ = ["Bind", "DeadLetter", "Event", "Failure", "Probe", "Restart", "State"]

FailureKind: TypeAlias = Literal["error", "exit", "signal", "oom", "lost", "start", "stopped", "stalled", "unhealthy"]
Origin: TypeAlias = Literal["user", "process", "host", "roost"]
EventKind: TypeAlias = Literal[
    "started",
    "failed",
    "restarting",
    "recovered",
    "stopped",
    "stalled",
    "escalated",
    "waiting",
    "dead_letter",
    "gap",
]
StateName: TypeAlias = Literal["starting", "up", "restarting", "failed", "stopped"]

FAILURE_KINDS = ("error", "exit", "signal", "oom", "lost", "start", "stopped", "stalled", "unhealthy")
ORIGINS = ("user", "process", "host", "roost")
EVENT_KINDS = (
    "started",
    "failed",
    "restarting",
    "recovered",
    "stopped",
    "stalled",
    "escalated",
    "waiting",
    "dead_letter",
    "gap",
)
STATES = ("starting", "up", "restarting", "failed", "stopped")

_EMPTY: Mapping[str, float] = MappingProxyType({})
_STDERR_LINES_SHOWN = 20
_DEPTH_SHOWN = 8
_RESTATED = ("exit", "signal", "oom")
_RESTATING = ("exited with code ", "killed by signal ", "killed by the kernel's memory killer")


class Failure(Frozen, kw_only=True):
    """The end of one rank, proc or host that was not meant to end, and why.

    Everything is fixed when it is made but `consequences`, which grows while what followed is found out; a
    pickled failure is a snapshot of it.
    """

    kind: FailureKind
    """`error` a Python exception, `exit` a process's own exit, `signal` a signal, `oom` the kernel's memory killer,
    `lost` a host out of reach, `start` a process that did not start, `stopped` on purpose, `stalled` a loop or
    thread that made no progress, `unhealthy` by its own `__healthy__`."""
    origin: Origin
    """Who ended it: `user` code that raised or exited, the `process` (a signal, memory), the `host`, or `roost`."""
    mesh: str
    """The mesh's name."""
    name: str
    """The rank's name, such as `workers[gpus=3]`."""
    point: Point
    """The rank's place in its mesh."""
    actor_class: str | None = None
    """The actor's class as `module.Qualname`; None for a proc or a host."""
    host: str = ""
    """The name of the host on which it ran."""
    incarnation: int = 0
    """Which life of the rank this was, from 0."""
    reason: str = ""
    """What was given as the reason, in words."""
    exit_code: int | None = None
    """The process's exit code, where it exited and the code is known."""
    signal: int | None = None
    """The signal that ended the process."""
    stderr: str = ""
    """The last lines that the process wrote to its standard error."""
    traceback: str = ""
    """The remote traceback of a Python exception."""
    cause: Failure | None = None
    """The failure that this one followed from."""
    consequences: tuple[Failure, ...] = ()
    """What followed from it, as far as is known by now: the one field that grows."""
    reasons: tuple[Failure, ...] = ()
    """The earlier deaths that a restart policy mended before it gave up."""
    times: Mapping[str, float] = _EMPTY
    """When what happened, in seconds since the epoch: `died_at`, `detected_at` and others."""

    # Growth must change neither equality nor the hash, or a failure would be lost in a set.
    _names_compared: ClassVar[tuple[str, ...]] = (
        "kind",
        "origin",
        "mesh",
        "name",
        "point",
        "actor_class",
        "host",
        "incarnation",
        "reason",
        "exit_code",
        "signal",
        "stderr",
        "traceback",
        "cause",
        "reasons",
    )

    def __post_init__(self) -> None:
        check_one_of("Failure", "kind", self.kind, FAILURE_KINDS)
        check_one_of("Failure", "origin", self.origin, ORIGINS)
        check_integer("Failure", "incarnation", self.incarnation, least=0)
        self._convert("consequences", tuple(self.consequences))
        self._convert("reasons", tuple(self.reasons))
        self._convert("times", MappingProxyType(dict(self.times)))

    def _add_consequence(self, failure: Failure) -> None:
        """Record what followed; the runtime calls it on the owner's loop."""
        self._convert("consequences", (*self.consequences, failure))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "times": dict(self.times)}  # a mapping proxy does not pickle

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._convert("times", MappingProxyType(dict(self.times)))

    @property
    def summary(self) -> str:
        """One line: who ended and how."""
        life = f" (incarnation {self.incarnation})" if self.incarnation else ""
        return f"{self.name} {self._ending(f' on host {self.host}{life}' if self.host else life)}"

    def __str__(self) -> str:
        parts = [self.summary]
        if self.traceback:
            parts.append(_indented(self.traceback.rstrip()))
        if self.stderr:
            lines = self.stderr.rstrip().splitlines()[-_STDERR_LINES_SHOWN:]
            parts.append("last lines of its stderr:\n" + _indented("\n".join(lines)))
        if self.reasons:
            earlier = "\n".join(f"incarnation {past.incarnation}: {past._ending()}" for past in self.reasons)
            parts.append("before that, restarted after:\n" + _indented(earlier))
        cause, depth = self.cause, 0
        while cause is not None and depth < _DEPTH_SHOWN:
            parts.append(f"because {cause.summary}")
            cause, depth = cause.cause, depth + 1
        ended = [failure.name for failure in self.consequences if failure.kind != "error"]
        if ended:
            parts.append(f"which also ended {', '.join(ended[:_DEPTH_SHOWN])}{_more(ended)}")
        # Of a death, ranks that live on: their connections to it broke.
        raised = [f"{failure.name} {failure._ending()}" for failure in self.consequences if failure.kind == "error"]
        if raised:
            parts.append("after which:\n" + _indented("\n".join(raised[:_DEPTH_SHOWN])) + _more(raised))
        return "\n".join(parts)

    def __repr__(self) -> str:
        # Not by fields: consequences name this failure as their cause, which would never end.
        return (
            f"Failure(kind={self.kind!r}, name={self.name!r}, incarnation={self.incarnation}, reason={self.reason!r})"
        )

    def _ending(self, where: str = "") -> str:
        """How it ended; what was given as the reason may be long, so all else comes before it."""
        code = "an unknown code" if self.exit_code is None else f"code {self.exit_code}"
        ending = {
            "error": f"raised{where}" if self.origin == "user" else f"failed{where}",
            "exit": f"exited with {code}{where}",
            "signal": f"was killed by {signal_name(self.signal)}{where}",
            "oom": f"was killed{where} because memory ran out; give it more, or run fewer procs on a host",
            "lost": f"was lost{where}",
            "start": f"did not start{where}",
            "stopped": f"stopped{where}",
            "stalled": f"stalled{where}",
            "unhealthy": f"was ended as unhealthy{where}",
        }[self.kind]
        reason = self.reason or ("its host is out of reach" if self.kind == "lost" else "")
        if self.kind in _RESTATED and reason.startswith(_RESTATING):
            # The host's words for the same thing; what was given as the reason for a kill comes after them.
            reason = reason.partition(": ")[2]
        return f"{ending}: {reason}" if reason else ending

    def to_json(self) -> str:
        """The failure as a JSON object, with what it followed from and what followed."""
        import json

        return json.dumps(self._plain(0))

    def _plain(self, depth: int) -> dict[str, object]:
        cause = self.cause if depth < _DEPTH_SHOWN else None
        return {
            **self._plain_leaf(),
            "cause": cause and cause._plain(depth + 1),
            # A consequence names this failure as its cause: going back there would never end.
            "consequences": [failure._plain_leaf() for failure in self.consequences],
            "reasons": [failure._plain_leaf() for failure in self.reasons],
        }

    def _plain_leaf(self) -> dict[str, object]:
        nested = {"cause", "consequences", "reasons"}
        plain: dict[str, object] = {name: self.__dict__[name] for name in type(self)._field_names if name not in nested}
        plain.update(point=dict(self.point), times=dict(self.times))
        return plain


class Event(Frozen):
    """Something that happened to a mesh: see `mesh.events()`."""

    kind: EventKind
    """What happened."""
    mesh: str
    """The mesh's name."""
    name: str
    """The rank's name."""
    point: Point
    """The rank's place in its mesh."""
    incarnation: int
    """Which life of the rank, from 0."""
    at: datetime
    """When, with its time zone."""
    reason: str = ""
    """Why, in words."""
    failure: Failure | None = None
    """The failure that it is about."""

    def __post_init__(self) -> None:
        check_one_of("Event", "kind", self.kind, EVENT_KINDS)

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"{self.at.isoformat(timespec='milliseconds')} {self.name} {self.kind}{why}"


class DeadLetter(Frozen):
    """A broadcast that reached nobody: see `context().job.dead_letters`."""

    sender: str
    """The name of the actor that sent it, or of its process where that came back too late to say."""
    target: str
    """The name of the rank that it was for."""
    endpoint: str
    """The endpoint that it was for."""
    point: Point
    """The target's place in its mesh."""
    reason: str
    """Why it was not delivered."""
    failure: Failure | None
    """The target's failure, where it had one."""
    at: datetime
    """When, with its time zone."""

    def __str__(self) -> str:
        return f"broadcast {self.endpoint} from {self.sender} to {self.target} was not delivered: {self.reason}"


class State(Frozen):
    """How one rank is: see `mesh.states()`."""

    state: StateName
    """`starting`, `up`, `restarting`, `failed` or `stopped`."""
    reason: str = ""
    """Why it is failed or stopped."""
    incarnation: int = 0
    """Which life of the rank, from 0."""
    pid: int | None = None
    """Its process, while it has one."""
    failure: Failure | None = None
    """Its last failure."""
    running: tuple[tuple[str, datetime], ...] = ()
    """The endpoints of an actor that run, and since when they have left its mailbox."""
    queued: int = 0
    """Messages in the mailbox of an actor."""

    def __post_init__(self) -> None:
        check_one_of("State", "state", self.state, STATES)
        self._convert("running", tuple(self.running))


class Restart(Frozen):
    """The policy that starts what died again, in place.

    Raises:
        ValueError: A limit that makes no sense; the text says what to do.
    """

    limit: int = 3
    """How many restarts within `within_s` before the failure climbs to the owner."""
    within_s: float = 60.0
    """The time in which restarts are counted."""
    backoff_s: tuple[float, float] = (0.1, 5.0)
    """The first pause before a restart and the longest: each is twice the last, give or take 20 %."""
    scope: Literal["one", "all", "rest"] = "one"
    """What restarts: the `one` that died, `all` ranks, or it and the `rest` after it in rank order."""
    when: Literal["failed", "always"] = "failed"
    """`always` restarts after a normal end too."""
    on: Literal["same_host", "any_host"] = "same_host"
    """Where: `any_host` may move it when its host is gone."""
    while_down: Literal["fail", "wait"] = "fail"
    """What callers get meanwhile: `fail` at once, or `wait` for the next incarnation."""

    def __post_init__(self) -> None:
        check_integer("Restart", "limit", self.limit, least=1, instead="leave restart= out to never restart")
        check_finite("Restart", "within_s", self.within_s, above=0, instead="give the seconds in which restarts count")
        pauses = check_items("Restart", "backoff_s", self.backoff_s, "(0.1, 30)")
        if len(pauses) != len(("first", "longest")):
            raise ValueError(
                f"Restart backoff_s={self.backoff_s!r} must be two numbers: the first pause and the longest"
            )
        for pause in pauses:
            check_finite("Restart", "backoff_s", pause, instead="0 restarts without a pause")
        if pauses[0] > pauses[1]:
            raise ValueError(f"Restart backoff_s={pauses}: the first pause is longer than the longest; swap them")
        self._convert("backoff_s", pauses)
        check_one_of("Restart", "scope", self.scope, ("one", "all", "rest"))
        check_one_of("Restart", "when", self.when, ("failed", "always"))
        check_one_of("Restart", "on", self.on, ("same_host", "any_host"))
        check_one_of("Restart", "while_down", self.while_down, ("fail", "wait"))

    def _as_builtins(self) -> tuple[int, float, float, float, str, str, str, str]:
        """As the agent and `roost._roost.History` take it."""
        first, longest = self.backoff_s
        return self.limit, self.within_s, first, longest, self.scope, self.when, self.while_down, self.on


class Probe(Frozen):
    """How often `async def __healthy__(self) -> bool` is asked, and when silence counts as death.

    Raises:
        ValueError: A limit that makes no sense; the text says what to do.
    """

    period_s: float
    """Seconds between two questions; an answer later than the next question is a miss."""
    failures_max: int = 3
    """Misses in a row that are borne; one more fails the actor."""
    grace_s: float = 5.0
    """Seconds that an actor has to say yes for the first time before misses count, and, once it has failed, to end before its
    proc is killed."""

    def __post_init__(self) -> None:
        check_finite("Probe", "period_s", self.period_s, above=0, instead="leave probe= out to never ask")
        check_integer("Probe", "failures_max", self.failures_max, least=0, instead="0 fails at the first miss")
        check_finite("Probe", "grace_s", self.grace_s, instead="0 kills the proc at once")


class Bind(Frozen):
    """The CPUs and the memory node that a proc is bound to before it starts.

    Raises:
        ValueError: A number that names no CPU or node; the text says what to do.
    """

    cpus: Sequence[int] = ()
    """The CPUs that it may run on; empty for all."""
    numa_node: int | None = None
    """The memory node that it allocates from; None for any."""
    near_gpu: bool = False
    """On the memory nodes that the GPUs which it sees are at, by their PCI addresses; with neither of the others."""

    def __post_init__(self) -> None:
        cpus = check_items("Bind", "cpus", self.cpus, "[0, 1]")
        for cpu in cpus:
            check_integer("Bind", "cpus", cpu, least=0, instead="CPUs are numbered from 0, as lscpu shows them")
        if len(set(cpus)) != len(cpus):
            raise ValueError(f"Bind cpus={cpus} names a CPU twice; name each once")
        self._convert("cpus", cpus)
        if self.numa_node is not None:
            check_integer("Bind", "numa_node", self.numa_node, least=0, instead="leave it out for any node")
        if self.near_gpu and (cpus or self.numa_node is not None):
            raise ValueError("Bind near_gpu=True finds the CPUs by itself; leave out cpus and numa_node")


def signal_name(number: int | None) -> str:
    """A signal as people know it."""
    if number is None:
        return "a signal"
    import signal

    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def _more(named: Sequence[str]) -> str:
    left = len(named) - _DEPTH_SHOWN
    return f" and {left} more" if left > 0 else ""


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
