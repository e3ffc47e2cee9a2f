"""Who has heard of a failure: callers, hooks, owners; what nobody heard is raised at the end."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from roost.errors import ActorDied
from roost.failure import Failure
from roost.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roost.owning import OwnedMesh
    from roost.runtime import Runtime

__all__ = ["Hearing", "Unheard"]

_logger = logging.getLogger("roost")


class Unheard:
    """A failure that somebody must hear of: a caller that got it, a hook that handled it, or else the end of the mesh."""

    __slots__ = ("_heard", "_replies", "failure")

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        self._heard = False
        # Replies that carry it and still live: whether their owner looked at the error is their own flag.
        self._replies: list[weakref.ref[Reply[Any]]] = []

    def carried_by(self, reply: Reply[Any]) -> None:
        """A reply was given this failure."""
        self._replies.append(weakref.ref(reply))

    def hear(self) -> None:
        """Somebody got it."""
        self._heard = True
        self._replies.clear()

    @property
    def heard(self) -> bool:
        """Whether anybody did."""
        if self._heard:
            return True
        for reference in self._replies:
            reply = reference()
            if reply is not None and reply.done() and not reply._log_traceback:  # type: ignore[attr-defined]
                self.hear()
                return True
        return False


class Hearing:
    """The failures that this process must hear of."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[int, Unheard] = {}
        self._originals: dict[int, BaseException] = {}
        # Errors of replies that were dropped in the driver, unseen.
        self.dropped: list[BaseException] = []

    def of(self, failure: Failure) -> Unheard:
        """Who has heard of a failure."""
        known = self._known.get(id(failure))
        if known is None:
            known = self._known[id(failure)] = Unheard(failure)
        return known

    def carried(self, failure: Failure | None, reply: Any) -> None:
        """A reply was given this failure: whoever takes it has heard of it."""
        if failure is not None and isinstance(reply, Reply):
            self.of(failure).carried_by(reply)

    def reply_dropped(self, error: BaseException, *, heard: bool) -> None:
        """A reply with an error was dropped; `heard` says whether anyone had looked."""
        failures = list(_failures_in(error))
        for failure in failures:
            if heard:
                self.of(failure).hear()
        if not heard and not failures and not self._runtime.closed:
            _logger.warning("a call failed and nobody awaited its reply: %r", error)
            if self._runtime.owner == self._runtime.proc:
                self.dropped.append(error)

    def came_from(self, failure: Failure, original: BaseException) -> None:
        """Keep the exception that an actor's failure began with."""
        self._originals[id(failure)] = original

    def original(self, failure: Failure) -> BaseException | None:
        """The exception that an actor's failure began with, when it came from a proc of ours."""
        return self._originals.get(id(failure))

    def escalate(self, mesh: OwnedMesh, unheard: Unheard) -> None:
        """A failure that no policy mends goes to the mesh's hook, else to the owner."""
        self._runtime.keep(self._escalate(mesh, unheard))

    async def _escalate(self, mesh: OwnedMesh, unheard: Unheard) -> None:
        hook = mesh.supervise
        runner = mesh.owner_runner
        if hook is None and runner is not None and hasattr(type(runner.instance), "__supervise__"):
            hook = runner.instance.__supervise__
        if hook is not None:
            try:
                if await hook(unheard.failure):
                    unheard.hear()
                    return
            except Exception as error:
                _logger.warning("the supervise hook of %s raised", mesh.name, exc_info=error)
        if unheard.heard:
            return
        root = self._runtime.root_supervise
        if runner is None and root is not None and await root(unheard.failure):
            unheard.hear()
            return
        if runner is not None:
            unheard.hear()
            runner.fail(ActorDied(None, unheard.failure), f"a failure in {mesh.name}, which it owns")
        else:
            _logger.warning("%s", unheard.failure)

    def unheard(self) -> list[Failure]:
        """Failures of this process's meshes that nobody has heard of."""
        found: dict[int, Failure] = {}
        for mesh in self._runtime.owned.values():
            for one in mesh.unheard or ():
                if not one.heard:
                    found[id(one.failure)] = one.failure
        return list(found.values())

    def take_unheard(self) -> list[Failure]:
        """The same, and from now on they count as heard."""
        found = self.unheard()
        for failure in found:
            self.of(failure).hear()
        return found


def _failures_in(error: BaseException) -> Iterable[Failure]:
    failure = getattr(error, "failure", None)
    if isinstance(failure, Failure):
        yield failure
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _failures_in(inner)
