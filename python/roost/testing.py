"""For your own tests: procs inside the test's process, faults at chosen messages, a clock that the test moves.

See `docs/testing.md`. Nothing of this is imported by `import roost`, and it costs nothing where it is not used.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from roost import process
from roost.actor_mesh import ActorMesh
from roost.fake_clock import FakeClock, clock
from roost.faults import Faults
from roost.local_host import LocalHost
from roost.mesh import Mesh, ProcMesh
from roost.running import this_host
from roost.spawning import spawn_procs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from roost.actor import Actor
    from roost.failure import Failure, Restart
    from roost.ft.failures import Failures

__all__ = ["Failures", "FakeClock", "Faults", "clock", "in_process", "kill", "local_mesh"]


def local_mesh(
    sizes: Mapping[str, int] | None = None,
    *,
    name: str | None = None,
    restart: Restart | None = None,
    setup: Callable[[], object] | None = None,
    supervise: Callable[[Failure], Awaitable[bool]] | None = None,
) -> ProcMesh:
    """Procs that live in this very process, on its event loop.

    `async with local_mesh({"gpus": 4}) as procs` is used as `this_host().spawn_procs({"gpus": 4})` is.
    They start in a millisecond; a debugger's breakpoint, `monkeypatch` and `print` reach into their actors. Everything else is as
    with processes, and done by the same code: messages are pickled and cross a socket, calls have the same errors, a proc that ends gives
    `ActorDied` with a `Failure`, policies restart it, hooks hear of it. What procs need a process for is not there: see
    `docs/testing.md`.

    Args:
        sizes: names and sizes of the mesh's dimensions; none for a single proc.
        name: the mesh's name in errors and events; "procs" when left out.
        restart: the restart policy.
        setup: runs in each proc before any actor; may be async.
        supervise: an async function of a failure that says True when it handled it.

    Raises:
        RuntimeError: no event loop runs in this thread.
    """
    with in_process():
        return spawn_procs(
            process.current(), this_host(), sizes, name=name, restart=restart, setup=setup, supervise=supervise
        )


@contextmanager
def in_process() -> Iterator[None]:
    """Have all procs that are spawned inside the `with` live in this process, as those of `local_mesh`.

    So a program's own `this_host().spawn_procs(…)` is tested unchanged. What only a process can have is left out: `env`, `preload`,
    `bind`, `start`, `gpus_per_proc`, `spares` and `logs` do nothing.

    Raises:
        RuntimeError: no event loop runs in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "local procs live on the event loop of the test: use in_process() and local_mesh() where that runs, in an `async def` "
            "test or an async fixture"
        ) from None
    host = LocalHost.of(process.current())
    host.takes_all += 1
    try:
        yield
    finally:
        host.takes_all -= 1


def kill(mesh: Mesh | Actor, reason: str = "by the test") -> None:
    """End the procs of a mesh or a slice at once, as SIGKILL does; local ones too. What follows is their policy's to decide.

    Args:
        mesh: procs, or actors, whose procs are ended.
        reason: what the failure gives as the reason.

    Raises:
        TypeError: it is no mesh.
        ValueError: it lives in this very process.
    """
    runtime = process.current()
    if isinstance(mesh, ActorMesh):
        per, members = len(mesh._per_proc), mesh._on._members()
        procs = list(dict.fromkeys(members[rank // per] for rank in mesh._shape.ranks()))
    elif isinstance(mesh, ProcMesh):
        procs = list(mesh._members())
    else:
        raise TypeError(f"kill({mesh!r}): give a mesh of procs or of actors, or a slice of one")
    if runtime.driver in procs:
        raise ValueError("kill() would end the test: this mesh lives in the driver's own process")
    runtime.control.kill(procs, reason)


def __getattr__(name: str) -> Any:
    # What is for training brings it with it.
    if name == "Failures":
        from roost.ft.failures import Failures

        return Failures
    raise AttributeError(f"module 'roost.testing' has no attribute {name!r}")
