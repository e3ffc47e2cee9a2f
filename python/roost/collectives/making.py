"""How a mesh's ranks become a group, and how a group is split."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from roost import libraries
from roost.collectives.gloo import Gloo, connected_store, port_of, served_store
from roost.collectives.group import Group, Member
from roost.collectives.groups import groups
from roost.collectives.meetings import Arrival, Met, Missing
from roost.desk import desk_of
from roost.errors import ActorDied, CallTimeoutError, CollectiveError, StoppedError, Unavailable
from roost.point import rank_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor_mesh import ActorMesh
    from roost.failure import Failure
    from roost.reply import Reply
    from roost.runtime import Runtime
    from roost.shape import Shape

__all__ = ["Made", "Place", "make_group", "place_of", "split_group"]

_LOOPBACK = "127.0.0.1"
# Between two tries to reach the first member while it starts again.
_AGAIN_S = 0.02
# How much longer than itself the first member is waited for.
_MARGIN_S = 1.0
# How long an error waits for the news of the death that explains it.
_HOLD_S = 0.05


class Made(NamedTuple):
    """A group, and what it was made with and is split with."""

    group: Group
    store: Any
    server: Any
    """Of the store, in the first member's process: None in the others'."""


class Place:
    """Where in a mesh a group lies, and which of its ranks this actor is."""

    def __init__(self, mesh: ActorMesh, shape: Shape, rank: int) -> None:
        self.mesh = mesh
        self.shape = shape
        self.rank = rank
        procs, per = mesh._on._members(), len(mesh._per_proc)
        self.members = [
            Member(rank_name(mesh._name, mesh._whole.point(base)), procs[base // per]) for base in shape.ranks()
        ]
        self.title = rank_name(mesh._name, shape.sizes)

    @property
    def address(self) -> str:
        """Where this process listens for the others."""
        hosts = {host for host, _ in self.mesh._on._hosts}
        return _LOOPBACK if len(hosts) <= 1 else _address_of_this_host()


def place_of(mesh: ActorMesh, dimensions: tuple[str, ...], runtime: Runtime) -> Place:
    """The ranks that share all of this actor's coordinates but those in `dimensions`.

    Raises:
        RuntimeError: this code does not run in an actor of the mesh.
        ValueError: the mesh has no such dimension.
    """
    unknown = [name for name in dimensions if name not in mesh.sizes]
    if unknown:
        known = ", ".join(mesh.sizes) or "none"
        raise ValueError(f"{mesh._name} has no dimension {', '.join(map(repr, unknown))}; it has {known}")
    runner = runtime.handling_runner()
    bases = list(mesh._shape.ranks())
    if runner is None or runner.mesh._id != mesh._id or runner.point.rank not in bases:
        raise RuntimeError(
            f"each rank makes its own end of a communicator: await communicator() in an endpoint of {mesh!r}, "
            "where `context().mesh` is the whole mesh"
        )
    point = mesh._shape.point(bases.index(runner.point.rank))
    fixed = {name: at for name, at in point.items() if dimensions and name not in dimensions}
    shape = mesh._shape.slice(**fixed) if fixed else mesh._shape
    return Place(mesh, shape, list(shape.ranks()).index(runner.point.rank))


def _address_of_this_host() -> str:
    name = os.uname().nodename
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(
            f"ranks on several hosts connect by their addresses, and this host's name {name!r} has none: {error}"
        ) from error
    addresses = [str(one[4][0]) for one in found]
    usable = [one for one in addresses if not one.startswith(("127.", "::1"))]
    if not usable:
        raise Unavailable(
            f"ranks on several hosts connect by their addresses, and this host's name {name!r} means only "
            f"{', '.join(addresses)}: correct /etc/hosts"
        )
    return usable[0]


async def make_group(place: Place, runtime: Runtime, timeout_s: float) -> Made:
    """Meet the others and connect with them.

    Raises:
        CollectiveError: some did not come, or one died meanwhile.
        Unavailable: torch is not there, or this host has no address.
    """
    until = time.monotonic() + timeout_s
    runtime.members.note_procs(place.mesh._on)
    address = place.address
    is_first = place.rank == 0

    def listen() -> tuple[Gloo, tuple[Any, str]]:
        return Gloo(address), served_store(address) if is_first else (None, "")

    # One after the other: of two that are made at once, the first is the first at all ranks.
    async with groups(runtime).coming:
        # The library is imported here, perhaps, which takes seconds.
        gloo, (server, store) = await _elsewhere(runtime, listen)
        meeting = _Meeting(place, runtime, Arrival(place.rank, runtime.proc, gloo.port, store), until)
        asked = meeting.ask()
    met = await meeting.answer(asked)
    group = Group(runtime, (met.id,), place.title, place.members, place.rank, gloo)
    there = met.members[0].store
    gloo.reaches([port_of(there), *(one.port for one in met.members if one.rank != place.rank)])
    groups(runtime).add(group)

    def connect() -> Any:
        left = timedelta(seconds=max(0.0, until - time.monotonic()))
        client = connected_store(there, left)
        gloo.connect(libraries.distributed().PrefixStore("0", client), group.rank, len(group.members), left)
        return client

    return Made(group, await _connected(group, connect), server)


class _Meeting:
    """What a member waits for at the first of them."""

    def __init__(self, place: Place, runtime: Runtime, arrival: Arrival, until: float) -> None:
        self._place = place
        self._runtime = runtime
        self._arrival = arrival
        self._until = until

    def ask(self) -> Reply[Met | Missing]:
        """Say that this one has come."""
        place, left = self._place, max(0.0, self._until - time.monotonic())
        meet = desk_of(self._runtime, place.members[0].proc).meet.options(timeout=left + _MARGIN_S)
        asked: Reply[Met | Missing] = meet.call_one(
            (place.mesh._id, place.shape), len(place.members), self._arrival, left
        )
        return asked

    async def answer(self, asked: Reply[Met | Missing]) -> Met:
        """Who has come, once all have."""
        first, gone = self._place.members[0], self._runtime.members.gone
        while True:
            try:
                answer = await asked
            except ActorDied as death:
                if isinstance(death, StoppedError) or first.proc in gone or time.monotonic() > self._until:
                    raise self._error(
                        f"{first.name} died: {death.failure.summary}", [first.name], death.failure
                    ) from death
                # It may be starting again.
                await asyncio.sleep(_AGAIN_S)
                asked = self.ask()
            except CallTimeoutError as error:
                raise self._error(f"{first.name} does not answer", [first.name]) from error
            else:
                if isinstance(answer, Met):
                    return answer
                names = [self._place.members[rank].name for rank in answer.ranks]
                raise self._error(f"{', '.join(names)} did not come in time", names)

    def _error(self, reason: str, suspects: list[str], failure: Failure | None = None) -> CollectiveError:
        return CollectiveError(f"making a communicator of {self._place.title} failed: {reason}", failure, suspects)


async def split_group(made: Made, gloo: Gloo, said: list[list[int]], operation: int, timeout_s: float) -> Made | None:
    """Connect with those of the same colour, in the order of their keys.

    Args:
        made: the group that is split.
        gloo: what this member listens with.
        said: by each member: its colour or -1, its key, the port where it listens.
        operation: the number of the operation in which they did.
        timeout_s: how long it may take.

    Returns:
        None for one without a colour.

    Raises:
        CollectiveError: one died meanwhile.
    """
    parent = made.group
    colour = said[parent.rank][0]
    if colour < 0:
        return None
    ranks = sorted((key, rank) for rank, (other, key, _) in enumerate(said) if other == colour)
    members = [parent.members[rank] for _, rank in ranks]
    own = [rank for _, rank in ranks].index(parent.rank)
    group_id = (*parent.id, operation, colour)
    group = Group(parent.runtime, group_id, f"{parent.title} colour {colour}", members, own, gloo)
    gloo.reaches(said[rank][2] for _, rank in ranks if rank != parent.rank)
    groups(parent.runtime).add(group)
    parent.adopt(group)
    store = libraries.distributed().PrefixStore("/".join(map(str, group_id[1:])), made.store)

    def connect() -> None:
        gloo.connect(store, own, len(members), timedelta(seconds=timeout_s))

    await _connected(group, connect)
    return Made(group, made.store, made.server)


async def _connected(group: Group, connect: Callable[[], Any]) -> Any:
    """Connect on a thread; a death meanwhile ends that at once."""
    runtime = group.runtime
    try:
        made = await _elsewhere(runtime, connect)
    except (RuntimeError, OSError) as error:
        if group.broken is None:
            await asyncio.sleep(_HOLD_S)
        groups(runtime).remove(group)
        group.break_off(f"its members could not be connected: {error}")
        raise group.error("the making") from error
    except BaseException:
        groups(runtime).remove(group)
        group.break_off("its making was cancelled")
        raise
    if group.broken is not None:
        raise group.error("the making")
    return made


async def _elsewhere(runtime: Runtime, work: Callable[[], Any]) -> Any:
    return await runtime.loop.run_in_executor(None, work)
