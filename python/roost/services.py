"""Named services: `get_or_spawn`, `lookup`, `remove`. The driver keeps their names, for all processes of the job."""

from __future__ import annotations

import asyncio
import typing
from contextvars import Context
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from roost import process
from roost._exceptions import add_note
from roost.actor import Actor
from roost.actor_class import check_actor_class
from roost.constructing import pack_arguments
from roost.context import handling
from roost.desk import desk_of
from roost.errors import ActorDied, MeshError, ServiceExistsError
from roost.owning import ENDED
from roost.running import this_host
from roost.spawning import spawn_packed, spawn_procs
from roost.stops import stopped_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor_mesh import ActorMesh
    from roost.desk import Desk
    from roost.mesh import ProcMesh
    from roost.owning import OwnedMesh
    from roost.reply import Reply

__all__ = ["Request", "Services", "get_or_spawn", "lookup", "remove"]

A = TypeVar("A")
P = ParamSpec("P")

# How many names a `LookupError` lists.
_NAMES_MAX = 20


# What users call -----------------------------------------------------------------------------------------------------
def get_or_spawn(name: str, actor: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> Reply[A]:
    """The service of this name, once it is up; the first to ask has it spawned, in a proc of its own that the job owns.

    Any actor and the driver may ask, from any proc. Inside a constructor or `__start__` the reply does not wait until
    the service is up, so services may ask for each other while they start. `procs.options(…).get_or_spawn(…)` places
    it on those procs.

    Args:
        name: the service's name in the job.
        actor: the actor class.
        *args: the constructor's arguments; whoever comes later gives his in vain.
        **kwargs: the same.

    Raises:
        ServiceExistsError: by the reply: there is one of another class.
        ActorDied: by the reply: it has ended, with the reason, of which the caller has now heard; `remove` makes room.
    """
    return ask(name, actor, args, kwargs, None, {})


def lookup(name: str, actor: Callable[..., A], /) -> Reply[A]:
    """The service of this name, once it is up; never spawns one.

    Args:
        name: the service's name in the job.
        actor: its class.

    Raises:
        LookupError: by the reply: there is none.
        ServiceExistsError: by the reply: there is one of another class.
        ActorDied: by the reply: it has ended, with the reason.
    """
    return _find(_checked(name, "lookup"), _class_of(actor, f"lookup({name!r}, {actor!r})"), None)


def remove(name: str) -> Reply[None]:
    """Stop a service, dead or alive, and make room for a new one; done when nothing is left of the old.

    Args:
        name: the service's name in the job.

    Raises:
        LookupError: by the reply: there is none.
    """
    runtime = process.current()
    reply: Reply[None] = desk_of(runtime, runtime.driver).remove.call_one(_checked(name, "remove"))
    return reply


def ask(
    name: str,
    actor: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    procs: ProcMesh | None,
    options: dict[str, Any],
) -> Reply[Any]:
    """Ask the driver for a service, which it spawns when there is none."""
    kind = _class_of(actor, f"get_or_spawn({_checked(name, 'get_or_spawn')!r}, {actor!r})")
    check_actor_class(kind, name, args, kwargs)
    if procs is not None:
        procs._runtime()  # it refuses those of a job that has ended
    return _find(name, kind, Request(pack_arguments(args, kwargs), procs, options))


def _find(name: str, kind: type, request: Request | None) -> Reply[Any]:
    runtime = process.current()
    now = handling.get()
    # Who is being made answers nobody; two that wait for each other so would do it for ever.
    until_up = now is None or now.runner.is_up
    reply: Reply[Any] = desk_of(runtime, runtime.driver).find.call_one(name, kind, request, until_up)
    return reply


def _checked(name: object, verb: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{verb}({name!r}, …): the first argument is the service's name, a str")
    if not name:
        raise ValueError(f"{verb}({name!r}, …): a service needs a name to be found by; give one that is not empty")
    return name


def _class_of(actor: Any, what: str) -> type:
    kind = typing.get_origin(actor) or actor
    if not isinstance(kind, type) or not issubclass(kind, Actor):
        raise TypeError(f"{what}: the second argument is the service's class, one that derives from roost.Actor")
    return kind


# The driver's side ---------------------------------------------------------------------------------------------------
class Request(NamedTuple):
    """How a service is to be spawned when there is none."""

    arguments: bytes
    procs: ProcMesh | None
    options: dict[str, Any]


class _Service:
    """One name that is taken."""

    __slots__ = ("actor", "actors", "leaving", "mesh", "proc")

    def __init__(self, actor: type, mesh: ActorMesh, own: ProcMesh | None) -> None:
        self.actor = actor
        self.mesh = mesh
        # Held here: the runtime forgets meshes that ended long ago, and a name lasts until it is removed.
        self.actors: OwnedMesh = mesh._record()
        # Of the proc that was spawned for it alone.
        self.proc: OwnedMesh | None = None if own is None else own._record()
        # Its end, while it is being removed.
        self.leaving: asyncio.Task[None] | None = None

    @property
    def whole(self) -> OwnedMesh:
        """All that ends with it."""
        return self.actors if self.proc is None else self.proc

    @property
    def has_ended(self) -> bool:
        """Whether any rank has."""
        return any(self.actors.state(rank) in ENDED for rank in range(len(self.mesh)))

    def hear(self) -> None:
        """Whoever asks for it, or clears it away, has heard of its failures."""
        for one in self.whole.all_unheard():
            one.hear()

    def death(self, error: ActorDied | MeshError) -> ActorDied:
        """What to tell whoever asks for it."""
        self.hear()
        first, *others = error.exceptions if isinstance(error, MeshError) else (error,)
        assert isinstance(first, ActorDied)
        if self.proc is not None and self.proc.state(0) == "failed":
            first = self.proc.death_error(0)
        for other in others:
            add_note(first, f"besides: {other}")
        add_note(first, f"roost.remove({self.mesh._name!r}) makes room for a new service of that name")
        return first


class Services:
    """The job's services by name; in the driver."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._runtime = process.current()
        self._known: dict[str, _Service] = {}

    async def find(self, name: str, actor: type, request: Request | None, *, until_up: bool) -> ActorMesh:
        """The service of this name; spawned when there is none and it is asked for."""
        while True:
            service = self._known.get(name)
            if service is None or service.leaving is not None:
                if request is None:
                    raise self._unknown(name)
                if service is not None and service.leaving is not None:
                    # What it used is not free yet.
                    await asyncio.shield(service.leaving)
                    continue
                service = self._known[name] = self._spawn(name, actor, request)
            elif service.actor is not actor:
                raise ServiceExistsError(
                    f"the service {name!r} is a {_name_of(service.actor)}, not a {_name_of(actor)}: ask for it by its own "
                    f"class, or give yours another name"
                )
            if not until_up and not service.has_ended:
                return service.mesh
            try:
                return await self._desk.until(service.actors.ready(service.mesh))
            except (ActorDied, MeshError) as error:
                if service.leaving is None:
                    raise service.death(error) from error.__cause__

    def _spawn(self, name: str, actor: type, request: Request) -> _Service:
        runtime = self._runtime
        if runtime.workers.ending:
            raise stopped_error(f"service {name}", "the job ends, and nothing starts in it any more")
        # Outside this endpoint, so that no actor owns it.
        job = Context()
        own = None if request.procs is not None else job.run(spawn_procs, runtime, this_host(), name=name)
        procs = request.procs if own is None else own
        assert procs is not None
        try:
            mesh = job.run(spawn_packed, runtime, procs, name, actor, request.arguments, request.options)
        except BaseException:
            if own is not None:
                own.stop(f"service {name} could not be spawned on it")
            raise
        return _Service(actor, mesh, own)

    async def remove(self, name: str) -> None:
        """Stop a service and forget its name."""
        service = self._known.get(name)
        if service is None:
            raise self._unknown(name)
        if service.leaving is None:
            service.leaving = self._runtime.keep(self._leave(name, service))
        await asyncio.shield(service.leaving)

    async def _leave(self, name: str, service: _Service) -> None:
        try:
            await service.whole.stop(service.whole.whole, f"service {name} was removed")
        finally:
            service.hear()
            del self._known[name]

    def _unknown(self, name: str) -> LookupError:
        names = sorted(name for name, service in self._known.items() if service.leaving is None)
        there = ", ".join(map(repr, names[:_NAMES_MAX])) or "none"
        more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
        return LookupError(f"the job has no service {name!r}; there is {there}{more}; get_or_spawn() makes one")


def _name_of(actor: type) -> str:
    return f"{actor.__module__}.{actor.__qualname__}"
