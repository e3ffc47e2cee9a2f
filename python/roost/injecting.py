"""`Injectors`: the faults of `roost.testing.Faults`, where they happen: in front of and behind the endpoints of one process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.context import handling

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost._roost import Message
    from roost.endpoint_info import EndpointInfo
    from roost.hosted import HostedMesh
    from roost.runtime import Runtime

__all__ = ["Fault", "Injectors"]


class Fault(NamedTuple):
    """What is to happen to some messages."""

    what: str
    """`kill`, `fail`, `hang`, `freeze`, `delay` or `drop`."""
    endpoint: str
    """The endpoint's name."""
    ranks: tuple[int, ...]
    """The ranks in the whole mesh; each counts its own messages."""
    message: int
    """The first message that it happens to, counted from 1, from when it was injected."""
    times: int | None
    """To how many messages in a row; None for all that follow."""
    after: bool
    """Once the endpoint has run, before its answer leaves; else before it starts."""
    value: Any
    """Seconds, the error, or the signal."""


class _Armed:
    """A fault that waits for its messages."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._seen = dict.fromkeys(fault.ranks, 0)

    def is_due(self, rank: int) -> bool:
        """Count a message; whether the fault happens to it."""
        if rank not in self._seen:
            return False
        self._seen[rank] += 1
        first, times = self.fault.message, self.fault.times
        return self._seen[rank] >= first and (times is None or self._seen[rank] < first + times)


class Injectors:
    """All faults of one process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_mesh: dict[int, _Injector] = {}

    def inject(self, mesh: int, fault: Fault | None) -> None:
        """Arm a fault, or take all of a mesh's away."""
        if fault is None:
            injector = self._by_mesh.pop(mesh, None)
            if injector is not None:
                injector.remove()
            return
        hosted = self._runtime.hosting.meshes.get(mesh)
        if hosted is None or hosted.is_over:
            raise RuntimeError(f"{self._runtime.name} has no live actors of that mesh")
        if mesh not in self._by_mesh:
            self._by_mesh[mesh] = _Injector(self._runtime, hosted)
        self._by_mesh[mesh].arm(fault)


class _Injector:
    """The faults of one mesh in this process: they stand in the place of its endpoints."""

    def __init__(self, runtime: Runtime, hosted: HostedMesh) -> None:
        self._runtime = runtime
        self._hosted = hosted
        self._armed: list[_Armed] = []
        # Concurrent `def` endpoints count on several threads.
        self._lock = threading.Lock()
        self._removed = asyncio.Event()
        wrapped = {name: self._wrap(info) for name, info in hosted.endpoints.items()}
        runtime.node.set_endpoints(hosted.id, wrapped)

    def arm(self, fault: Fault) -> None:
        """One more."""
        if fault.what == "freeze" and self._is_local():
            raise ValueError(
                f"freeze() stops a whole process, and {self._runtime.name} lives in the test's own: "
                "use hang(), or procs of this_host().spawn_procs()"
            )
        self._armed.append(_Armed(fault))

    def remove(self) -> None:
        """The endpoints are themselves again; what hangs goes on."""
        self._armed.clear()
        self._removed.set()
        self._runtime.node.set_endpoints(self._hosted.id, self._hosted.endpoints)

    def _is_local(self) -> bool:
        return hasattr(self._runtime.control, "die")

    # Endpoints ---------------------------------------------------------------------------------------------------------
    def _wrap(self, info: EndpointInfo) -> EndpointInfo:
        if info.kind == "stream":
            return info.with_function(self._stream(info))
        return info.with_function(self._async(info) if info.is_async else self._sync(info))

    def _due(self, info: EndpointInfo) -> Fault | None:
        """What happens to the message that is handled now: the fault that was injected last, where several are due."""
        rank = handling.get().runner.rank  # type: ignore[union-attr]
        with self._lock:
            due = [armed.fault for armed in self._armed if armed.fault.endpoint == info.name and armed.is_due(rank)]
        return due[-1] if due else None

    def _async(self, info: EndpointInfo) -> Callable[..., Any]:
        function = info.function

        async def run(*args: Any, **kwargs: Any) -> Any:
            fault = self._due(info)
            if fault is not None and not fault.after and await self._happen(fault):
                return None
            value = await function(*args, **kwargs)
            if fault is not None and fault.after:
                await self._happen(fault)
            return value

        return run

    def _sync(self, info: EndpointInfo) -> Callable[..., Any]:
        function = info.function

        def happen(fault: Fault) -> bool:
            return asyncio.run_coroutine_threadsafe(self._happen(fault), self._runtime.loop).result()

        def run(*args: Any, **kwargs: Any) -> Any:
            fault = self._due(info)
            if fault is not None and not fault.after and happen(fault):
                return None
            value = function(*args, **kwargs)
            if fault is not None and fault.after:
                happen(fault)
            return value

        return run

    def _stream(self, info: EndpointInfo) -> Callable[..., Any]:
        function = info.function

        async def run(*args: Any, **kwargs: Any) -> Any:
            fault = self._due(info)
            if fault is not None and not fault.after and await self._happen(fault):
                return
            async with aclosing(function(*args, **kwargs)) as values:
                async for value in values:
                    yield value
            if fault is not None and fault.after:
                await self._happen(fault)

        return run

    # What happens ------------------------------------------------------------------------------------------------------
    async def _happen(self, fault: Fault) -> bool:
        """Do it; whether the message is not to be handled any more."""
        message: Message = handling.get()  # type: ignore[assignment]
        match fault.what:
            case "kill":
                await self._kill(fault.value)
            case "fail":
                raise fault.value.with_traceback(None)
            case "hang":
                await self._removed.wait()
            case "freeze":
                _freeze(fault.value)
            case "delay":
                await asyncio.sleep(fault.value)
            case _:
                message.drop()
                return True
        return False

    async def _kill(self, signal: int) -> None:
        if self._is_local():
            self._runtime.control.die(signal, "by a fault of the test")  # type: ignore[attr-defined]
        else:
            os.kill(os.getpid(), signal)
        # A signal that the process ignores ends nothing.
        await self._removed.wait()


def _freeze(seconds: float) -> None:
    """Have this whole process stopped for a while. It cannot wake itself up, so another does."""
    script = 'kill -STOP "$1"; sleep "$2"; kill -CONT "$1"'
    with subprocess.Popen(["/bin/sh", "-c", script, "freeze", str(os.getpid()), f"{seconds:.3f}"]) as other:
        other.wait()
