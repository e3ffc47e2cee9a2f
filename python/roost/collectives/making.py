"""How a mesh's ranks become a group, and how a group is split."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from roost.addresses import LOOPBACK, address_towards, is_loopback, parse
from roost.collectives.group import Group, Member
from roost.collectives.groups import groups
from roost.collectives.meetings import Arrival, Met, Missing
from roost.desk import desk_of
from roost.errors import ActorDied, CallTimeoutError, CollectiveError, StoppedError, Unavailable
from roost.point import rank_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor_mesh import ActorMesh
    from roost.collectives.library import Joined, Library, Split
    from roost.failure import Failure
    from roost.reply import Reply
    from roost.runtime import Runtime
    from roost.shape import Shape

__all__ = ["Place", "make_group", "place_of", "split_group"]

L = TypeVar("L", bound="Joined")

# Between two tries to reach the first member while it starts again.
_AGAIN_S = 0.02
# How much longer than itself the first member is waited for.
_MARGIN_S = 1.0


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


async def _address(place: Place, runtime: Runtime) -> str:
    """The numeric address by which the hosts of the others reach this process.

    Raises:
        Unavailable: there is no way to any of them.
    """
    on = place.mesh._on
    # The way to another host says most; but this one's own number is right, too.
    others = sorted(dict(on._hosts), key=lambda host: host == runtime.host_id)
    if len(others) <= 1:
        return LOOPBACK
    # Hosts may have been handed to whoever spawned these procs; it is the driver that has attached them.
    reached = await desk_of(runtime, runtime.driver).reached_by.call_one(tuple(others))
    far = [parse(one).host for one in reached if one and not is_loopback(one)]
    for number in far:
        with suppress(OSError):
            return address_towards(number)
    if not far:
        # All are reached by addresses of the driver's own host.
        return LOOPBACK
    raise Unavailable(
        f"ranks on several hosts connect by their addresses, and there is no way from here to {', '.join(far)}"
    )


async def make_group(place: Place, runtime: Runtime, opened: Callable[[str], L], timeout_s: float) -> tuple[Group, L]:
    """Meet the others and connect with them.

    Args:
        place: who they are.
        runtime: this process's.
        opened: given the address by which others reach this process, the library; called on a thread that is not the loop's.
        timeout_s: how long it may take.

    Returns:
        The group, and its library, which has joined.

    Raises:
        CollectiveError: some did not come, or one died meanwhile.
        Unavailable: torch, or the library, is not there, or the other hosts are not to be reached.
        ValueError: the others want another library.
    """
    until = time.monotonic() + timeout_s
    runtime.members.note_procs(place.mesh._on)

    def come(address: str) -> tuple[L, Arrival]:
        library = opened(address)
        return library, Arrival(place.rank, runtime.proc, library.backend, library.card(is_first=place.rank == 0))

    # One after the other: of two that are made at once, the first is the first at all ranks.
    async with groups(runtime).coming:
        # The library is imported here, perhaps, which takes seconds.
        library, arrival = await asyncio.to_thread(come, await _address(place, runtime))
        meeting = _Meeting(place, runtime, arrival, until)
        asked = meeting.ask()
    met = await meeting.answer(asked)
    if any(one.backend != arrival.backend for one in met.members):
        wanted = ", ".join(f"{place.members[one.rank].name} {one.backend!r}" for one in met.members)
        raise ValueError(f"the ranks of a communicator have one backend, and these want: {wanted}")
    group = Group(runtime, (met.id,), place.title, place.members, place.rank, library)
    groups(runtime).add(group)
    await _join(group, [one.card for one in met.members], until)
    return group, library


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


async def split_group(parent: Group, split: Split, operation: int, timeout_s: float) -> tuple[Group, Library] | None:
    """Connect with those of the same colour, in the order of their keys.

    Args:
        parent: the group that is split.
        split: its library's half, once the operation has ended.
        operation: the number of that.
        timeout_s: how long it may take.

    Returns:
        None for one without a colour.

    Raises:
        CollectiveError: one died meanwhile.
    """
    # Elsewhere: it may lie on a GPU, which is busy.
    said = await asyncio.to_thread(split.said.tolist)
    colour = said[parent.rank][0]
    if colour < 0:
        return None
    ranks = [rank for _, rank in sorted((one[1], rank) for rank, one in enumerate(said) if one[0] == colour)]
    own = ranks.index(parent.rank)
    members = [parent.members[rank] for rank in ranks]
    group_id = (*parent.id, operation, colour)
    part = split.part()
    group = Group(parent.runtime, group_id, f"{parent.title} colour {colour}", members, own, part)
    groups(parent.runtime).add(group)
    parent.adopt(group)
    await _join(group, [tuple(said[rank][2:]) for rank in ranks], time.monotonic() + timeout_s)
    return group, part


async def _join(group: Group, cards: list[Any], until: float) -> None:
    """Connect on a thread; a death meanwhile ends that at once."""
    runtime = group.runtime
    left = max(0.0, until - time.monotonic())
    try:
        await asyncio.to_thread(group.library.join, cards, group.rank, group.title, left)
    except (RuntimeError, OSError) as error:
        await group.hear_why()
        groups(runtime).remove(group)
        group.break_off(f"its members could not be connected: {error}")
        raise group.error("the making") from error
    except BaseException:
        groups(runtime).remove(group)
        group.break_off("its making was cancelled")
        raise
    if group.broken is not None:
        raise group.error("the making")
