"""Errors about what was stopped, each with a failure that says what and why."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from roost.errors import ActorDied, HostLostError, PeerLostError, StoppedError
from roost.failure import Failure
from roost.point import Point

if TYPE_CHECKING:
    from roost.failure import FailureKind, Origin

__all__ = ["death_error", "lost_error", "stopped_error"]


def death_error(failure: Failure, *, maybe_executed: bool = False) -> ActorDied:
    """The error for whoever calls, or waits for, what has ended so."""
    kind = ActorDied
    if failure.kind == "stopped":
        kind = StoppedError
    elif failure.kind == "lost":
        kind = HostLostError if failure.origin == "host" else PeerLostError
    return kind(None, failure, maybe_executed=maybe_executed)


def stopped_error(
    name: str, reason: str, *, mesh: str = "", point: Point | None = None, advice: str = ""
) -> StoppedError:
    """The error for whoever uses what was stopped.

    Args:
        name: What was stopped: a mesh, a rank, a channel.
        reason: Why.
        mesh: The mesh that it belongs to; itself when left out.
        point: Its place there.
        advice: What to do instead.
    """
    return StoppedError(f"{name} stopped: {reason}{advice}", _failure("stopped", "user", name, reason, mesh, point))


def lost_error(name: str, reason: str, *, mesh: str = "", point: Point | None = None) -> PeerLostError:
    """The error for whoever uses what cannot be reached."""
    return PeerLostError(f"{name} cannot be reached: {reason}", _failure("lost", "roost", name, reason, mesh, point))


def _failure(kind: FailureKind, origin: Origin, name: str, reason: str, mesh: str, point: Point | None) -> Failure:
    place = Point({}) if point is None else point
    host = os.uname().nodename
    return Failure(kind=kind, origin=origin, mesh=mesh or name, name=name, point=place, host=host, reason=reason)
