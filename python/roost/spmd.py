"""`roost.spmd`: scripts that were written for torchrun, as they are, on a mesh of procs."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import TYPE_CHECKING

from roost import process
from roost.addresses import LOOPBACK, address_towards, is_loopback, parse
from roost.desk import desk_of
from roost.endpoint import endpoint
from roost.errors import ActorDied, MeshError
from roost.executing import Shell
from roost.replying import reply_of
from roost.value_mesh import ValueMesh
from roost.values import check_integer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roost.mesh import ProcMesh
    from roost.reply import Reply

__all__ = ["run"]


def run(
    procs: ProcMesh, script: str | os.PathLike[str], args: Sequence[str] = (), *, restarts: int = 0,
    env: Mapping[str, str] | None = None, master_addr: str | None = None,
) -> Reply[ValueMesh[int]]:  # fmt: skip
    """Run a script beside each of these procs, in a process of its own and the environment that torchrun would give it.

    When one rank fails, because it exits with another code than 0, is killed, or its proc dies, all are ended, as torchrun does:
    what they had together is broken. They start anew, with a new MASTER_PORT, `restarts` times. Their output goes where that of
    the procs goes, and they end when the reply is cancelled.

    Args:
        procs: where; the ranks are theirs. With `gpus_per_proc` a script sees its own devices alone, and LOCAL_RANK names none of
            them: leave it out for scripts that choose by LOCAL_RANK.
        script: its path, on this host and theirs.
        args: what it finds in `sys.argv` behind its name.
        restarts: how often they start anew.
        env: environment variables besides.
        master_addr: MASTER_ADDR, where the address by which the driver reaches the first rank's host is not the one.

    Returns:
        The exit codes; of one that a signal ended, the signal's number below zero: -15 of those that were ended for another's sake.

    Raises:
        FileNotFoundError: there is no such script.
        ActorDied: by the reply: a rank's proc died, and there was no restart left or its policy did not bring it back; `MeshError` of
            several.
    """
    path = os.path.abspath(script)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"spmd.run: there is no script {path}")
    if isinstance(args, str):
        raise TypeError(f"spmd.run: args={args!r}: give a list of texts")
    check_integer("spmd.run", "restarts", restarts, least=0)
    return reply_of(_Run(procs, [path, *args], restarts, dict(env or {}), master_addr).run())


class _Scripts(Shell):
    """Runs scripts."""

    @endpoint
    async def place(self) -> tuple[int, int]:
        """The host's id, and a port that is free there."""
        with socket.create_server(("", 0)) as probe:
            return process.current().host_id, int(probe.getsockname()[1])

    @endpoint
    async def address_towards(self, other: str) -> str:
        """This host's address on its way to another one's."""
        return address_towards(other)

    @endpoint(concurrent=True)
    async def script(self, command: list[str], env: dict[str, str]) -> int:
        """Run one with this proc's interpreter."""
        return await self.run([sys.executable, *command], env, None)


class _Run:
    """One call of `run` at work."""

    def __init__(
        self, procs: ProcMesh, command: list[str], restarts: int, env: dict[str, str], master: str | None
    ) -> None:
        self._procs = procs
        self._command = command
        self._restarts = restarts
        self._env = {"PYTHONUNBUFFERED": "1", **env}
        self._master = master

    async def run(self) -> ValueMesh[int]:
        """Run, again where one failed."""
        scripts = self._procs.spawn("scripts", _Scripts)
        try:
            life = 0
            while any(codes := await self._live(scripts, life)) and life < self._restarts:
                life += 1
                # Procs that died come back where their policy says so.
                await scripts.ready()
        finally:
            await scripts.stop("its script is over")
        deaths = [code for code in codes if isinstance(code, ActorDied)]
        if len(deaths) == 1:
            raise deaths[0]
        if deaths:
            raise MeshError(f"{len(deaths)} procs of {self._command[0]} died", deaths)
        return ValueMesh(self._procs.sizes, [code for code in codes if isinstance(code, int)])

    async def _live(self, scripts: _Scripts, life: int) -> list[int | ActorDied]:
        """One life of all ranks, until the first failure: their codes, or the deaths of their procs."""
        places = list(await scripts.place.call())
        hosts = list(dict.fromkeys(host for host, _ in places))
        environments = self._environments(places, hosts, await self._address(scripts, hosts), life)
        calls = [
            one.script.call_one(self._command, environment)
            for one, environment in zip(scripts, environments, strict=True)
        ]
        waiting: set[asyncio.Future[int]] = set(calls)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting and any(map(_outcome, done)):
                await scripts.end.call().outcomes()
                await asyncio.wait(waiting)
                break
        return [_outcome(one) for one in calls]

    async def _address(self, scripts: _Scripts, hosts: list[int]) -> str:
        """The address by which all ranks reach the host of the first."""
        if self._master or len(hosts) == 1:
            return self._master or LOOPBACK
        runtime = process.current()
        first, *others = await desk_of(runtime, runtime.driver).reached_by.call_one(tuple(hosts))
        far = [one for one in others if not is_loopback(one)]
        if is_loopback(first) and far:
            # It is the driver's own host: others know it by another number.
            return await next(iter(scripts)).address_towards.call_one(parse(far[0]).host)
        # Who is reached by a Unix socket is on the driver's host, and the others are too.
        return parse(first).host or LOOPBACK

    def _environments(
        self, places: list[tuple[int, int]], hosts: list[int], master: str, life: int
    ) -> list[dict[str, str]]:
        """Torchrun's variables, by rank."""
        shared = {
            **self._env, "MASTER_ADDR": master, "MASTER_PORT": places[0][1], "WORLD_SIZE": len(places),
            "ROLE_WORLD_SIZE": len(places), "ROLE_NAME": "default", "GROUP_WORLD_SIZE": len(hosts), "TORCHELASTIC_RESTART_COUNT": life,
            "TORCHELASTIC_MAX_RESTARTS": self._restarts, "TORCHELASTIC_RUN_ID": process.current().job_id.hex(),
        }  # fmt: skip
        found = []
        for rank, (host, _) in enumerate(places):
            beside = [other for other, (its, _) in enumerate(places) if its == host]
            own = {
                "RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": beside.index(rank), "LOCAL_WORLD_SIZE": len(beside),
                "GROUP_RANK": hosts.index(host),
            }  # fmt: skip
            found.append({name: str(value) for name, value in {**shared, **own}.items()})
        return found


def _outcome(call: asyncio.Future[int]) -> int | ActorDied:
    """A script's exit code, or the death of its proc.

    Raises:
        Exception: it could not be started.
    """
    error = call.exception()
    return error if isinstance(error, ActorDied) else call.result()
