"""`run`, `this_host`, `this_proc`, `handle`: where a program begins."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from roost import config as _config
from roost import runtime as _runtime
from roost.config import Config
from roost.context import handling
from roost.endpoint import Actor
from roost.errors import ActorDied, MeshError
from roost.failure import Failure
from roost.mesh import ActorMesh, HostMesh, ProcMesh
from roost.shape import Shape

__all__ = ["handle", "run", "this_host", "this_proc"]

T = TypeVar("T")
A = TypeVar("A", bound=Actor)


def this_host() -> HostMesh:
    """The host that this process runs on: `this_host().spawn_procs({"gpus": 8})`."""
    return HostMesh()


def this_proc() -> ProcMesh:
    """The calling process as a mesh of one proc."""
    runtime = _runtime.current()
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

    SIGINT raises KeyboardInterrupt and SIGTERM SystemExit(143), after an orderly stop; off the main thread signals are left alone.

    Args:
        main: the program.
        config: limits to use.
        supervise: hears of failures that no mesh's own hook handled; True says that it handled one.

    Returns:
        What `main` returns.

    Raises:
        MeshError: a failure that nobody heard and nobody handled.
    """
    import uvloop

    if config is not None:
        _config.use(config)

    async def whole() -> T:
        runtime = _runtime.current()
        runtime.root_supervise = supervise
        task = asyncio.current_task()
        assert task is not None
        terminated = False

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        on_main = threading.current_thread() is threading.main_thread()
        if on_main:
            runtime.loop.add_signal_handler(signal.SIGTERM, terminate)
        try:
            result = await main
        except asyncio.CancelledError:
            if terminated:
                raise SystemExit(128 + signal.SIGTERM) from None
            raise
        finally:
            if on_main:
                runtime.loop.remove_signal_handler(signal.SIGTERM)
            unheard = runtime.hearing.take_unheard()
            await runtime.shut_down("the program ended")
        if unheard:
            raise MeshError(f"{len(unheard)} failures that nobody handled", [ActorDied(None, one) for one in unheard])
        return result

    return uvloop.run(whole())
