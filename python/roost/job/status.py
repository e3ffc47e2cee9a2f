"""How a job is: `JobStatus`, `HostStatus`; and what becomes of it: `JobEvent`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from roost.values import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

__all__ = ["HostStatus", "JobEvent", "JobEventKind", "JobStatus", "together"]

JobStateName: TypeAlias = Literal["absent", "pending", "running", "ended"]
HostStateName: TypeAlias = Literal["missing", "up", "lost"]
JobEventKind: TypeAlias = Literal[
    "pending", "running", "host_waiting", "host_up", "host_lost", "time_left", "preempted", "requeued", "ended"
]


class HostStatus(Frozen, kw_only=True):
    """How one host of a job is."""

    mesh: str
    """The mesh's name."""
    rank: int
    """Its place there, from 0."""
    state: HostStateName
    """`missing` its agent has not told of itself yet, `up` it has, `lost` it will not come back by itself."""
    host: str = ""
    """What the host calls itself; empty while that is not known."""
    address: str = ""
    """Where its agent listens; empty while that is not known."""
    agent: str = ""
    """What tells its agent from others that have listened there before."""
    reason: str = ""
    """Why it is not up, in the scheduler's words where it has some."""

    def __str__(self) -> str:
        return together([self])


def together(hosts: Iterable[HostStatus]) -> str:
    """How hosts are, and of which it is the same: `trainers[0-3,7] missing (Resources)`."""
    ranks: dict[tuple[str, str, str, str], list[int]] = {}
    for one in hosts:
        ranks.setdefault((one.mesh, one.state, one.host, one.reason), []).append(one.rank)
    shown = []
    for (mesh, *how, reason), alike in ranks.items():
        shown.append(" ".join(filter(None, (f"{mesh}[{_ranges(alike)}]", *how, reason and f"({reason})"))))
    return "; ".join(shown)


def _ranges(ranks: list[int]) -> str:
    ends: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if ends and ends[-1][1] == rank - 1:
            ends[-1] = ends[-1][0], rank
        else:
            ends.append((rank, rank))
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ends)


class JobStatus(Frozen, kw_only=True):
    """How a job is."""

    name: str
    """The job's name."""
    state: JobStateName
    """`absent` never applied, or forgotten; `pending` waits for hosts; `running` has them; `ended` for whatever reason."""
    reason: str = ""
    """Why it is as it is, in the scheduler's own words."""
    failed: bool = False
    """Whether it ended otherwise than in order."""
    ids: tuple[str, ...] = ()
    """What the scheduler calls it."""
    hosts: tuple[HostStatus, ...] = ()
    """Each host, by mesh and rank."""
    time_left_s: float | None = None
    """Seconds until the scheduler ends it; None where it has no limit."""
    restarts: int = 0
    """How often the scheduler has started it again."""
    has_run: bool = False
    """Whether it has had hosts since it was started last."""
    preempted: bool = False
    """Whether the scheduler is about to give its hosts to others."""

    def __str__(self) -> str:
        ids = f" ({', '.join(self.ids)})" if self.ids else ""
        ended = " failed" if self.failed else ""
        reason = f": {self.reason}" if self.reason else ""
        lines = [f"{self.name}{ids}: {self.state}{ended}{reason}"]
        if self.time_left_s is not None:
            lines.append(f"  {self.time_left_s:.0f} s left")
        return "\n".join([*lines, *(f"  {host}" for host in self.hosts)])

    def to_json(self) -> dict[str, Any]:
        """It all as a JSON document."""
        plain = {name: getattr(self, name) for name in JobStatus._field_names}
        hosts = [{name: getattr(one, name) for name in HostStatus._field_names} for one in self.hosts]
        return {**plain, "ids": list(self.ids), "hosts": hosts}

    def up(self, mesh: str | None = None) -> list[HostStatus]:
        """The hosts of a mesh, or of all, that are up."""
        return [one for one in self.hosts if one.state == "up" and mesh in (None, one.mesh)]


class JobEvent(Frozen, kw_only=True):
    """Something that became of a job."""

    kind: JobEventKind
    """`pending` or `running`, `host_waiting` (for what its reason says), `host_up`, `host_lost` (another one may come in its place),
    `time_left` (its end is near), `preempted` (the same, for the sake of others), `requeued`, `ended`."""
    at: datetime
    """When it was seen."""
    mesh: str = ""
    """The mesh whose host it is about; empty where it is about the job."""
    rank: int | None = None
    """That host's rank."""
    host: str = ""
    """That host's name."""
    reason: str = ""
    """Why, in the scheduler's words where it has some."""

    def __str__(self) -> str:
        where = f" {self.mesh}[{self.rank}] {self.host}".rstrip() if self.mesh else ""
        return f"{self.kind}{where}{self.reason and ': '}{self.reason}"
