"""`run`, `this_host`, `this_proc`, `handle`: where a program begins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from roost import config as _config
from roost import process
from roost.actor import Actor
from roost.context import handling
from roost.interruptions import Interruptions
from roost.values import check_hook

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from roost.actor_mesh import ActorMesh
    from roost.config import Config
    from roost.failure import Failure
    from roost.host_mesh import HostMesh
    from roost.mesh import ProcMesh

__all__ = ["handle", "run", "this_host", "this_proc"]

T = TypeVar("T")
A = TypeVar("A", bound=Actor)


def this_host() -> HostMesh:
    """The host that this process runs on: `this_host().spawn_procs({"gpus": 8})`."""
    from roost.host_mesh import HostMesh  # with the first mesh: defining actors and `import roost` do without

    return HostMesh()


def this_proc() -> ProcMesh:
    """The calling process as a mesh of one proc."""
    from roost.mesh import ProcMesh
    from roost.shape import Shape

    runtime = process.current()
    whole = Shape({})
    return ProcMesh._make(runtime.proc, runtime.name, runtime.proc, whole, whole, (runtime.proc,))


def handle(actor: A) -> A:
    """This actor alone, as a mesh of one, to hand out; `context().mesh` is its whole mesh.

    Args:
        actor: `self`, inside an endpoint.
    """
    now = handling.get()
    if now is None or now.runner.instance is not actor:
        raise RuntimeError("handle(self) works inside the actor's own constructor, hooks and endpoints")
    mesh: ActorMesh = now.runner.mesh
    return mesh._view(mesh._shape.at(now.runner.rank))  # type: ignore[return-value]


def run(
    main: Coroutine[Any, Any, T],
    *,
    config: Config | None = None,
    supervise: Callable[[Failure], Awaitable[bool]] | None = None,
) -> T:
    """Run a program on uvloop, and stop everything of the job at its end.

    SIGINT raises KeyboardInterrupt and SIGTERM SystemExit(143), after an orderly stop; a second one kills what is left at once.
    A handler of the program's own for SIGINT stays. Off the main thread signals are left alone.

    Args:
        main: the program.
        config: limits to use in this program; those of `roost.configure()` hold again after it.
        supervise: hears of failures that no mesh's own hook handled; True says that it handled one.

    Returns:
        What `main` returns.

    Raises:
        MeshError: failures that nobody heard and nobody handled, together with the program's own error.
        RuntimeError: a loop runs already in this thread.
    """
    import uvloop

    try:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(  # noqa: TRY301 - the coroutine is closed below, whatever was wrong
                "roost.run() starts an event loop, and one runs in this thread already: await the program there"
            )
        check_hook(supervise)
        with _config.using(config), Interruptions() as interruptions:
            return uvloop.run(_whole(main, supervise, interruptions))
    except BaseException:
        main.close()
        raise


async def _whole(
    main: Coroutine[Any, Any, T],
    supervise: Callable[[Failure], Awaitable[bool]] | None,
    interruptions: Interruptions,
) -> T:
    from roost.hearing import raise_unheard  # with the runtime, which starts here

    runtime = process.current()
    runtime.root_supervise = supervise
    before = len(process.left_unheard)
    interruptions.begin(runtime)
    error: BaseException | None = None
    try:
        result = await main
    except BaseException as raised:  # noqa: BLE001 - it is raised again when everything has stopped
        error = raised
    await runtime.shut_down("the program ended")
    unheard = process.left_unheard[before:]
    del process.left_unheard[before:]
    if isinstance(error, asyncio.CancelledError):
        error = interruptions.ending() or error
    raise_unheard(error, unheard, "the program")
    if error is not None:
        raise error
    return result  # pyright: ignore[reportPossiblyUnboundVariable, reportReturnType]  # unbound only with an error, which was raised
