"""Who has heard of a failure: callers, hooks, owners; what nobody heard is raised at the end."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from roost.context import handling
from roost.errors import MeshError, RoostError, StoppedError
from roost.failure import Failure
from roost.stops import death_error
from roost.unheard import Unheard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from roost.owning import OwnedMesh
    from roost.point import Point
    from roost.runner import Runner
    from roost.runtime import Runtime
    from roost.unheard import Carrier

__all__ = ["Hearing", "failures_in", "raise_unheard"]

_logger = logging.getLogger("roost")

# Failures that are remembered, so that all who hear of one get the same object: the newest, and more of those that somebody
# has to hear of yet.
_REMEMBERED_MAX = 64
_FAILURES_MAX = 10_000
# How long a failure may be unheard before a warning tells of it: whoever awaits one hears of it a few turns of the loop later.
_WARNING_S = 1.0


class Hearing:
    """The failures that this process must hear of."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By the failure itself: what was told twice is one object, see `met` and `Members.death_of`.
        self._known: dict[int, Unheard] = {}
        # Failures of actors, by mesh, rank and moment: an incarnation is told of anew when its process was started again.
        self._met: dict[tuple[int, int, float], Unheard] = {}
        # Errors of replies that were dropped in the driver, unseen.
        self.dropped: list[BaseException] = []

    def of(self, failure: Failure) -> Unheard:
        """Who has heard of a failure. What was lost with a host is one with it: whoever hears of any of it has heard."""
        cause = failure.cause
        if failure.kind == "lost" and cause is not None and self._runtime.hosts.is_loss(cause):
            failure = cause
        known = self._known.get(id(failure))
        if known is None:
            known = self._known[id(failure)] = Unheard(failure)
            _bound(self._known)
        return known

    def met(self, mesh: int, rank: int, failure: Failure, original: bytes | None) -> Unheard:
        """The failure of an actor: callers and its owner are told of it on different ways, and get one object."""
        key = (mesh, rank, failure.times.get("died_at", 0.0))
        known = self._met.get(key)
        if known is None:
            known = self._met[key] = self.of(failure)
            _bound(self._met)
        elif failure.reasons and not known.failure.reasons:
            known.failure._convert("reasons", failure.reasons)
        known.learn(original)
        return known

    def original(self, failure: Failure) -> BaseException | None:
        """The exception that an actor's failure began with."""
        known = self._known.get(id(failure))
        return None if known is None else known.original()

    def carried(self, failure: Failure | None, carrier: Carrier) -> None:
        """Somebody will be told of this failure: who looks at it has heard of it."""
        if failure is not None:
            self.of(failure).carried_by(carrier)

    def got(self, error: BaseException) -> None:
        """Somebody got this error."""
        for failure in failures_in(error):
            self.of(failure).hear()

    def missed(self, error: BaseException) -> None:
        """What carried this error is gone, and nobody had looked."""
        for failure in failures_in(error):
            known = self._known.get(id(failure))
            # Not now: what carried it is about to go, and still there.
            if known is not None and known.undecided is not None and not self._runtime.loop.is_closed():
                self._runtime.loop.call_soon_threadsafe(known.decide)

    def reply_dropped(self, error: BaseException, *, heard: bool) -> None:
        """A reply with an error was dropped; `heard` says whether anyone had looked."""
        if heard:
            self.got(error)
        elif next(failures_in(error), None) is not None:
            self.missed(error)
        elif not self._runtime.closed and not _is_own_stop(error):
            _logger.warning("a call failed and nobody awaited its reply: %r", error)
            if self._runtime.is_driver:
                self.dropped.append(error)

    # Climbing ----------------------------------------------------------------------------------------------------------
    def escalate(self, mesh: OwnedMesh, rank: int, unheard: Unheard) -> None:
        """A failure that no policy mends goes to the mesh's hook, else to the owner: to each once, however many meshes it is of."""
        unheard.climbs = True
        if not unheard.is_new_to(_hook(mesh, mesh.owner_runner) or mesh.owner_runner):
            return
        scope = Context()
        if mesh.owner_runner is not None:
            scope.run(handling.set, mesh.owner_runner)
        unheard.climbing = self._runtime.keep(self._escalate(mesh, rank, unheard), scope)

    async def _escalate(self, mesh: OwnedMesh, rank: int, unheard: Unheard) -> None:
        if not await self._ask(_hook(mesh, mesh.owner_runner), unheard, f"the supervise hook of {mesh.name}"):
            self._decide(mesh, rank, unheard)

    def _decide(self, mesh: OwnedMesh, rank: int, unheard: Unheard, *, last: bool = False) -> None:
        """No hook of the mesh's has handled it: has a caller heard of it, may one, or does it climb?

        At the last in the driver it climbs, to the hook of `roost.run`; what nobody handles then its caller raises.
        """
        failure, owner = unheard.failure, mesh.owner_runner
        if unheard.heard or self._has_heard_cause(failure):
            unheard.hear()
        elif unheard.may_be_heard and not (last and owner is None):
            unheard.undecided = partial(self._decide, mesh, rank, unheard)
            self._runtime.loop.call_later(_WARNING_S, _warn_of, unheard)
        else:
            mesh.tell("escalated", rank, failure.reason, failure)
            if owner is None:
                unheard.climbing = self._runtime.keep(self._ask_root(unheard), Context())
                return
            unheard.hear()
            if not owner.fail(
                death_error(failure), f"its mesh {mesh.name}, of which {failure.summary}{unheard.refused}"
            ):
                _logger.warning("nobody will handle this failure, since its owner is ending already: %s", failure)

    async def _ask_root(self, unheard: Unheard) -> None:
        if not await self._ask(self._runtime.root_supervise, unheard, "the supervise hook of roost.run"):
            self._runtime.loop.call_later(_WARNING_S, _warn_of, unheard)

    async def _ask(self, hook: Callable[[Failure], Any] | None, unheard: Unheard, name: str) -> bool:
        """Whether a hook handles it."""
        if hook is None:
            return False
        try:
            answer = await hook(unheard.failure)
            handled = bool(answer)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Of something that it awaited: it has handled nothing.
            _logger.warning("%s was cancelled while it heard of %s", name, unheard.failure.summary, exc_info=error)
            return False
        except Exception as error:
            _logger.warning("%s raised while it heard of %s", name, unheard.failure.summary, exc_info=error)
            return False
        if handled:
            unheard.hear()
        else:
            said = answer if answer is None or answer is False else f"a {type(answer).__name__} that is not true"
            unheard.refused = f"; {name} returned {said}: return True where it is handled"
        return handled

    def _has_heard_cause(self, failure: Failure) -> bool:
        """Whether who would hear of a consequence has heard of the death itself."""
        cause = failure.cause
        return cause is not None and self.of(cause).heard

    async def settled(self, unheard: Iterable[Unheard] | None = None) -> None:
        """Wait until hooks have had their say about these failures, or about all of this process's: for the grace at most."""
        if unheard is None:
            unheard = [one for mesh in self._runtime.owned.values() for one in mesh.unheard]
        # What was dropped at the very end is decided in the next turn, and may climb.
        await asyncio.sleep(0)
        unheard = list(unheard)
        for one in unheard:
            one.decide(last=True)
        with suppress(TimeoutError):  # a hook that does not end has not handled anything
            async with asyncio.timeout(self._runtime.config.grace_s):
                while climbing := [
                    one.climbing for one in unheard if one.climbing is not None and not one.climbing.done()
                ]:
                    await asyncio.wait(climbing)

    def unheard(self) -> list[Failure]:
        """Failures of the driver's meshes that nobody has heard of."""
        found: dict[int, Failure] = {}
        for mesh in self._runtime.owned.values():
            for one in mesh.unheard or ():
                if not one.heard and mesh.owner_runner is None:
                    found[id(one.failure)] = one.failure
        return list(found.values())

    def take_unheard(self) -> list[Exception]:
        """What nobody has heard of, as errors to raise: from now on it counts as heard."""
        found = self.unheard()
        for failure in found:
            self.of(failure).hear()
        dropped, self.dropped = self.dropped, []
        return [
            *(death_error(failure) for failure in found),
            *(one for one in dropped if isinstance(one, Exception)),
        ]


def _warn_of(unheard: Unheard) -> None:
    if not unheard.heard:
        _logger.warning("nobody has heard of a failure yet: %s", unheard.failure)


def raise_unheard(
    error: BaseException | None, unheard: Sequence[Exception], whose: str, points: Sequence[Point] = ()
) -> None:
    """Raise what nobody has heard of, together with the error that ends a block or a program; that alone is left to its raiser."""
    if not unheard:
        return
    count = "a failure" if len(unheard) == 1 else f"{len(unheard)} failures"
    if error is None:
        raise MeshError(f"{count} in {whose} that nobody handled", unheard, points)
    if isinstance(error, Exception):
        raise MeshError(f"an error, and {count} in {whose} that nobody handled", [error, *unheard])
    for one in unheard:
        error.add_note(f"besides, nobody handled: {one}")


def _hook(mesh: OwnedMesh, owner: Runner | None) -> Callable[[Failure], Any] | None:
    if mesh.supervise is not None:
        return mesh.supervise
    hook: Callable[[Failure], Any] | None = None if owner is None else getattr(owner.instance, "__supervise__", None)
    return hook


def _bound(known: dict[Any, Unheard]) -> None:
    """Forget the oldest, when there are too many; those that somebody has to hear of only when they are far too many."""
    if len(known) > _REMEMBERED_MAX:
        oldest, one = next(iter(known.items()))
        is_mended = not one.climbs and not one.may_be_heard
        if one.heard or is_mended or len(known) > _FAILURES_MAX:
            del known[oldest]
        else:
            # Looked at again after the others.
            known[oldest] = known.pop(oldest)


def _is_own_stop(error: BaseException) -> bool:
    """Whether all of it is what this process ended itself."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_own_stop(inner) for inner in error.exceptions)
    return isinstance(error, StoppedError)


def failures_in(error: BaseException) -> Iterator[Failure]:
    """The deaths that an error tells of."""
    # Of a user's own exception nothing is asked: what it does with names that it does not know is its own affair.
    failure = getattr(error, "failure", None) if isinstance(error, RoostError) else None
    if isinstance(failure, Failure):
        yield failure
    if isinstance(error, BaseExceptionGroup):
        for inner in (*error.exceptions, *(error.later if isinstance(error, MeshError) else ())):
            yield from failures_in(inner)
