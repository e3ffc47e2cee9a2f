"""How a job is, put together of what whoever gives the hosts says, what agents told of themselves, and what this program lost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from roost.errors import JobError
from roost.job.logs import last_lines
from roost.job.record import announced
from roost.job.status import HostStatus, together

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.job.record import Announced, Part, Record
    from roost.job.spec import MeshSpec
    from roost.job.status import JobStatus

__all__ = ["Agent", "Look", "has_run", "hosts_of", "is_ready", "last_words"]

_LINES_IN_ERRORS, _LOGS_IN_ERRORS = 5, 2


Agent: TypeAlias = tuple[str, str]
"""Where one listens, and what tells it from others that have listened there."""


class Look(NamedTuple):
    """What whoever gives the hosts says of a job."""

    state: Literal["pending", "running", "ended"]
    reason: str = ""
    failed: bool = False
    time_left_s: float | None = None
    preempted: bool = False
    restarts: Mapping[str, int] = {}
    """By a part's id, how often it was started again; those that are left out never were."""
    has_run: bool = False
    """Of what does not run now, whether it has had hosts since it was started last, as far as whoever gives them knows."""
    gone: Mapping[tuple[str, int], str] = {}
    """By mesh and rank, why a host will not come, or not come back."""
    known: Mapping[tuple[str, int], str] = {}
    """By mesh and rank, how a host is as far as is known: told when this program has lost it."""
    waiting: Mapping[tuple[str, int], str] = {}
    """By mesh and rank, why a host is not there yet, where that is not what keeps the whole job waiting."""
    there: Mapping[tuple[str, int], Announced] | None = None
    """By mesh and rank, the agents that listen; None where they tell of themselves in the job's folder."""


def has_run(record: Record, look: Look) -> bool:
    """Whether a job has had hosts since it was started last: whoever gives them says so, or an agent has told of itself.

    Args:
        record: the job.
        look: what was said of it.
    """
    folders = (record.hosts_folder(part, look.restarts.get(part.id, 0)) for part in record.parts)
    return look.state == "running" or look.has_run or any(map(os.path.isdir, folders))


def hosts_of(record: Record, look: Look, losses: Mapping[Agent, str], order: list[str]) -> list[HostStatus]:
    """Each host of a job.

    Args:
        record: the job.
        look: what was said of it.
        losses: by an agent, why this program has lost it.
        order: the names of the meshes.
    """
    found = []
    for part in record.parts:
        if look.there is None:
            there = announced(record.hosts_folder(part, look.restarts.get(part.id, 0)))
        else:
            there = {rank - part.first: told for (mesh, rank), told in look.there.items() if mesh == part.mesh}
        found += [_host(part, place, there.get(place), look, losses) for place in range(part.hosts)]
    return sorted(found, key=lambda one: (order.index(one.mesh), one.rank))


def _host(part: Part, place: int, told: Announced | None, look: Look, losses: Mapping[Agent, str]) -> HostStatus:
    rank = part.first + place
    gone = look.gone.get((part.mesh, rank))
    if told is None:
        reason = gone or look.waiting.get((part.mesh, rank)) or look.reason
        return HostStatus(mesh=part.mesh, rank=rank, state="missing" if gone is None else "lost", reason=reason)
    mine = losses.get((told.address, told.agent), "")
    said = [mine, gone or ""]
    if any(said):
        said.append(look.known.get((part.mesh, rank), ""))
    # What this program knew when it lost the host may be in its reason already.
    why = "; ".join(one for one in said if one and (one is mine or one not in mine))
    state: Literal["lost", "up"] = "lost" if why else "up"
    return HostStatus(
        mesh=part.mesh, rank=rank, state=state, host=told.name, address=told.address, agent=told.agent, reason=why
    )


def is_ready(status: JobStatus, hosts: int | None, meshes: Mapping[str, MeshSpec]) -> bool:
    """Whether so many hosts are up; with None, each mesh has those that it needs, and all that are not lost.

    Raises:
        JobError: too many are lost.
    """
    if hosts is not None:
        return len(status.up()) >= hosts
    for name, spec in meshes.items():
        own = [one for one in status.hosts if one.mesh == name]
        lost = [one for one in own if one.state == "lost"]
        left = len(own) - len(lost)
        if left < spec.needed:
            raise JobError(f"{name} needs {spec.needed} hosts of {status.name}, and {left} are left: {together(lost)}")
        if left > len(status.up(name)):
            return False
    return True


def last_words(record: Record) -> str:
    """The last lines of the logs, for errors."""
    paths = [record.log_file(part, place) for part in record.parts for place in range(part.hosts)]
    shown = []
    for path in [record.driver_log, *paths]:
        lines = last_lines(path, _LINES_IN_ERRORS)
        if lines:
            shown.append("\n".join([f"\nthe last lines of {path}:", *lines]))
    return "".join(shown[:_LOGS_IN_ERRORS])
