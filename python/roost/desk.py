"""`Desk`: where processes of a job ask one of them about what it alone knows: meshes that it owns, services of the job.

It is an actor that every process may have, made when it is first asked; what is asked are ordinary calls.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from roost import process
from roost.actor import Actor
from roost.actor_mesh import ActorMesh
from roost.constructing import Constructors, Plan
from roost.context import handling
from roost.endpoint import endpoint
from roost.hosted import HostedMesh
from roost.ids import DESK
from roost.mesh import ProcMesh
from roost.shape import SCALAR

if TYPE_CHECKING:
    from roost._roost import Targets
    from roost.collectives.group import GroupId
    from roost.collectives.groups import Groups
    from roost.collectives.meetings import Arrival, Meetings, Met, Missing
    from roost.collectives.operations import Between
    from roost.collectives.suspects import Standing
    from roost.failure import State
    from roost.injecting import Fault, Injectors
    from roost.reply import Reply
    from roost.runtime import Runtime
    from roost.services import Request, Services
    from roost.shape import Shape
    from roost.value_mesh import ValueMesh

__all__ = ["Desk", "desk_of", "host_desk"]

R = TypeVar("R")


class Desk(Actor):
    """What one process answers."""

    def __init__(self) -> None:
        self.runtime = process.current()
        # By the caller's proc: what it waits for.
        self._waits: dict[int, set[Reply[Any]]] = {}
        self.runtime.members.departures.append(self._gone)

    @functools.cached_property
    def _services(self) -> Services:
        from roost.services import Services

        return Services(self)

    @functools.cached_property
    def _injectors(self) -> Injectors:
        from roost.injecting import Injectors  # only tests have them

        return Injectors(self.runtime)

    @functools.cached_property
    def _meetings(self) -> Meetings:
        from roost.collectives.meetings import Meetings

        return Meetings(self)

    @functools.cached_property
    def _groups(self) -> Groups:
        from roost.collectives.groups import groups

        return groups(self.runtime)

    @endpoint(concurrent=True)
    async def find(self, name: str, actor: type, request: Request | None, until_up: bool) -> ActorMesh:
        """The service of this name; in the driver."""
        return await self._services.find(name, actor, request, until_up=until_up)

    @endpoint(concurrent=True)
    async def remove(self, name: str) -> None:
        """Stop a service and make room for another; in the driver."""
        await self._services.remove(name)

    @endpoint(concurrent=True)
    async def ended(self, mesh: int, shape: Shape) -> ValueMesh[State] | None:
        """How these ranks of a mesh of this process ended, once they have; None when it is forgotten."""
        record = self.runtime.owned.get(mesh)
        if record is not None:
            return await self.until(record.wait(shape))
        if mesh == self.runtime.proc:
            # This process itself: its end is the answer.
            await self.runtime.loop.create_future()
        return None

    @endpoint(concurrent=True)
    async def inject(self, mesh: int, fault: Fault | None) -> None:
        """Have a fault wait for messages to a mesh of this process; None takes all of that mesh's away again."""
        self._injectors.inject(mesh, fault)

    @endpoint(concurrent=True)
    async def reached_by(self, hosts: tuple[int, ...]) -> tuple[str, ...]:
        """What each of these hosts is reached by from here; empty for this process's own. In the driver, which has attached them."""
        return tuple(map(self.runtime.hosts.reached_by, hosts))

    @endpoint(concurrent=True)
    async def meet(self, key: tuple[Any, ...], size: int, arrival: Arrival, timeout_s: float) -> Met | Missing:
        """Wait for the members of a group, whose first lives here."""
        return await self._meetings.meet(key, size, arrival, timeout_s)

    @endpoint(concurrent=True)
    async def progress(self, group: GroupId, rank: int, between: Between, number: int) -> Standing | None:
        """How far a member of a group is, that lives here, and whether it is still in an operation."""
        return self._groups.progress(group, rank, between, number)

    @endpoint(concurrent=True)
    async def give_up(self, group: GroupId, rank: int, reason: str, suspects: tuple[str, ...]) -> None:
        """Have a member of a group, that lives here, give up."""
        self._groups.give_up(group, rank, reason, suspects)

    async def until(self, reply: Reply[R]) -> R:
        """Wait for what a caller waits for, as long as its process lives."""
        sender = handling.get().sender  # type: ignore[union-attr]
        waits = self._waits.setdefault(sender, set())
        waits.add(reply)
        try:
            return await reply
        finally:
            waits.discard(reply)
            if not waits and self._waits.get(sender) is waits:
                del self._waits[sender]

    def _gone(self, proc: int) -> None:
        for reply in self._waits.pop(proc, ()):
            reply.cancel()


class _DeskMesh(ActorMesh):
    """The desk of a process of which only the id is known."""

    __slots__ = ()

    def _places(self) -> Targets:
        # Not noted by its name, as other meshes are: every process has one.
        return self._targets_of(self._shape)


def desk_of(runtime: Runtime, proc: int) -> Any:
    """The desk of a process."""
    if proc == runtime.proc:
        runtime.on_loop(runtime.hosting.open_desk)
    return _DeskMesh._make(DESK, "desk", proc, _alone(proc), SCALAR, None, Desk, False)


def host_desk(runtime: Runtime) -> HostedMesh:
    """Have this process's own desk."""
    plan = Plan(_alone(runtime.proc), runtime.proc, Desk, SCALAR, None, None, False)
    hosted = HostedMesh(runtime, plan, Constructors(DESK, runtime.proc, 0, 1, "desk", b""))
    hosted.start()
    return hosted


def _alone(proc: int) -> ProcMesh:
    return ProcMesh._make(proc, "desk", proc, SCALAR, SCALAR, (proc,))
