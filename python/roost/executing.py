"""`procs.exec`: a command beside each proc."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from roost.actor import Actor
from roost.endpoint import endpoint
from roost.replying import reply_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roost.mesh import ProcMesh
    from roost.reply import Reply
    from roost.value_mesh import ValueMesh

__all__ = ["Shell", "execute"]

# How long a command has to end that was asked to.
_GRACE_S = 5.0


class Shell(Actor):
    """Runs commands, each in a session of its own; they end with its proc."""

    def __init__(self) -> None:
        self._children: set[asyncio.subprocess.Process] = set()

    @endpoint(concurrent=True)
    async def run(self, command: list[str], env: dict[str, str], cwd: str | None) -> int:
        """Run one to its end; what it writes goes where the proc's output goes."""
        child = await asyncio.create_subprocess_exec(
            *command, cwd=cwd, env=os.environ | env, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        self._children.add(child)
        try:
            return await child.wait()
        finally:
            self._children.discard(child)
            if child.returncode is None:
                # Nobody waits for it any more.
                _signal(child, signal.SIGKILL)
                await child.wait()

    @endpoint(concurrent=True)
    async def end(self) -> None:
        """End all that run: SIGTERM, then SIGKILL."""
        children = list(self._children)
        for child in children:
            _signal(child, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await asyncio.gather(*(child.wait() for child in children))
        for child in children:
            _signal(child, signal.SIGKILL)


def _signal(child: asyncio.subprocess.Process, number: int) -> None:
    """To a command, and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def execute(
    procs: ProcMesh, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None
) -> Reply[ValueMesh[int]]:
    """See `ProcMesh.exec`."""
    wanted = _checked(command)

    async def work() -> ValueMesh[int]:
        shells = procs.spawn("exec", Shell)
        try:
            return await shells.run.call(wanted, dict(env or {}), cwd)
        finally:
            await shells.stop("its command is over")

    return reply_of(work())


def _checked(command: object) -> list[str]:
    """A program and its arguments, as given; a text alone would be taken letter by letter."""
    words = list(command) if isinstance(command, Iterable) and not isinstance(command, str | bytes) else []
    if not words or not all(isinstance(word, str | bytes | os.PathLike) for word in words):
        raise TypeError(
            f'exec({command!r}): give a list, such as ["nvidia-smi", "-L"]; for a shell ["bash", "-c", "…"]'
        )
    return words
