"""`Faults`: what goes wrong in a test, at chosen messages."""

from __future__ import annotations

import asyncio
import signal as signals
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from roost import process
from roost.actor_mesh import ActorMesh
from roost.desk import desk_of
from roost.errors import ActorDied
from roost.injecting import Fault
from roost.values import check_finite, check_integer

if TYPE_CHECKING:
    from typing import Self

    from roost.actor import Actor
    from roost.endpoint import EndpointMethod
    from roost.shape import Selection

__all__ = ["Faults"]


class Faults:
    """Faults of one mesh of actors, each at a message that is chosen by its number: `async with Faults(trainers) as faults`.

    A fault waits for messages to one endpoint, `Trainer.step` or its name, of the ranks that the keywords select as in
    `mesh.slice`; without any, of every rank. Each rank counts its own messages from when the fault was injected, in the order in
    which it handles them: so the same program meets it at the same place each time. `message=3` is the third of them, `times=2` means it
    and the next, `times=None` it and all that follow.

    It happens before the endpoint starts, or with `after=True` when it has run and before its answer leaves. A fault lives in
    one incarnation of its proc: the next one is without. At the end of the `async with` all that is left is taken away, and
    what hangs goes on. Where several are due, the one that was injected last happens.

    It works on procs that are processes and on those of `local_mesh`, whoever owns them; nothing of it costs anything before it
    is used.

    Args:
        mesh: actors, or a slice of them.

    Raises:
        TypeError: it is no mesh of actors.
        ValueError: they live in this very process (`this_proc()`), which a fault would end too.
    """

    def __init__(self, mesh: Actor | ActorMesh) -> None:
        if not isinstance(mesh, ActorMesh):
            raise TypeError(f"Faults({mesh!r}): give a mesh of actors, as procs.spawn(…) returns it")
        runtime = process.current()
        if runtime.proc in mesh._on._members():
            raise ValueError(
                f"{mesh._name} lives in the calling process itself, which a fault would hit too: "
                "spawn it on procs of roost.testing.local_mesh() or this_host().spawn_procs()"
            )
        self._mesh = mesh
        self._runtime = runtime
        # Procs that have faults.
        self._procs: set[int] = set()
        self._is_open = False

    async def __aenter__(self) -> Self:
        if self._mesh._id in self._runtime.owned:
            await self._mesh.ready()
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        await asyncio.gather(*(self._take_away(proc) for proc in self._procs))

    async def _take_away(self, proc: int) -> None:
        with suppress(ActorDied):
            await desk_of(self._runtime, proc).inject.call_one(self._mesh._id, None)

    async def kill(
        self, at: str | EndpointMethod[..., Any, Any], *, signal: int = signals.SIGKILL, message: int = 1,
        times: int | None = 1, after: bool = False, **place: Selection,
    ) -> None:  # fmt: skip
        """End the rank's process by a signal.

        Args:
            at: the endpoint.
            signal: the signal; a local proc ends by any.
            message: the first message that it happens to, from 1.
            times: to how many in a row; None for all that follow.
            after: once the endpoint has run.
            **place: the ranks, as for `mesh.slice`.
        """
        check_integer("Faults.kill", "signal", int(signal), least=1, instead="give one of the signal module")
        await self._inject("kill", at, message, times, after, int(signal), place)

    async def fail(
        self, at: str | EndpointMethod[..., Any, Any], error: BaseException, *, message: int = 1,
        times: int | None = 1, after: bool = False, **place: Selection,
    ) -> None:  # fmt: skip
        """Raise an error in the endpoint's place.

        Args:
            at: the endpoint.
            error: what is raised; it has to pickle.
            message: the first message that it happens to, from 1.
            times: to how many in a row; None for all that follow.
            after: once the endpoint has run.
            **place: the ranks, as for `mesh.slice`.
        """
        if not isinstance(error, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a type checker
            raise TypeError(f"Faults.fail error={error!r}: give an exception to raise, such as ValueError('x')")
        await self._inject("fail", at, message, times, after, error, place)

    async def hang(
        self, at: str | EndpointMethod[..., Any, Any], *, message: int = 1,
        times: int | None = 1, after: bool = False, **place: Selection,
    ) -> None:  # fmt: skip
        """Let the endpoint stand still until it is cancelled or the `async with` ends; its process goes on.

        Args:
            at: the endpoint.
            message: the first message that it happens to, from 1.
            times: to how many in a row; None for all that follow.
            after: once the endpoint has run.
            **place: the ranks, as for `mesh.slice`.
        """
        await self._inject("hang", at, message, times, after, None, place)

    async def freeze(
        self, at: str | EndpointMethod[..., Any, Any], seconds: float, *, message: int = 1,
        times: int | None = 1, after: bool = False, **place: Selection,
    ) -> None:  # fmt: skip
        """Stop the rank's whole process by SIGSTOP, and let it go on after a while. Not for local procs.

        Args:
            at: the endpoint.
            seconds: how long.
            message: the first message that it happens to, from 1.
            times: to how many in a row; None for all that follow.
            after: once the endpoint has run.
            **place: the ranks, as for `mesh.slice`.
        """
        check_finite("Faults.freeze", "seconds", seconds, above=0)
        await self._inject("freeze", at, message, times, after, seconds, place)

    async def delay(
        self, at: str | EndpointMethod[..., Any, Any], seconds: float, *, message: int = 1,
        times: int | None = 1, after: bool = False, **place: Selection,
    ) -> None:  # fmt: skip
        """Let the message, or with `after=True` its answer, wait; by the fake clock where the procs are local and there is one.

        Args:
            at: the endpoint.
            seconds: how long.
            message: the first message that it happens to, from 1.
            times: to how many in a row; None for all that follow.
            after: once the endpoint has run.
            **place: the ranks, as for `mesh.slice`.
        """
        check_finite("Faults.delay", "seconds", seconds, above=0)
        await self._inject("delay", at, message, times, after, seconds, place)

    async def drop(
        self, at: str | EndpointMethod[..., Any, Any], *, message: int = 1,
        times: int | None = 1, after: bool = False, **place: Selection,
    ) -> None:  # fmt: skip
        """Lose the message: the endpoint does not run, and a caller hears nothing. With `after=True` its answer is lost.

        Roost itself loses nothing silently; this is for what a program does about a peer that never answers.

        Args:
            at: the endpoint.
            message: the first message that it happens to, from 1.
            times: to how many in a row; None for all that follow.
            after: once the endpoint has run.
            **place: the ranks, as for `mesh.slice`.
        """
        await self._inject("drop", at, message, times, after, None, place)

    async def _inject(
        self, what: str, at: object, message: int, times: int | None, after: bool, value: Any, place: dict[str, Any]
    ) -> None:
        if not self._is_open:
            raise RuntimeError("faults are injected inside `async with Faults(mesh) as faults:`")
        check_integer(f"Faults.{what}", "message", message, least=1, instead="the first message is 1")
        if times is not None:
            check_integer(f"Faults.{what}", "times", times, least=1, instead="None means all that follow")
        endpoint = self._mesh._bound(at)._info.name
        shape = self._mesh.slice(**place)._shape
        per, members = len(self._mesh._per_proc), self._mesh._on._members()
        by_proc: dict[int, list[int]] = {}
        for rank in shape.ranks():
            by_proc.setdefault(members[rank // per], []).append(rank)
        self._procs.update(by_proc)
        await asyncio.gather(
            *(
                desk_of(self._runtime, proc).inject.call_one(
                    self._mesh._id, Fault(what, endpoint, tuple(ranks), message, times, after, value)
                )
                for proc, ranks in by_proc.items()
            )
        )
