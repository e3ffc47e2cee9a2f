"""`Lives`: has each replica train to the end, through all its lives, and gives up those that cannot be started again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from roost import process
from roost.errors import ActorDied, RoostError, StoppedError

if TYPE_CHECKING:
    from roost.failure import Failure
    from roost.ft.books import Books
    from roost.ft.training import Plan
    from roost.mesh import ProcMesh

__all__ = ["Lives"]

_logger = logging.getLogger("roost.ft")


class Lives:
    """The replicas of a run.

    Args:
        procs: theirs, with the dimensions `replicas` and `procs`.
        trainers: the actors in them.
        plan: what each is told.
        books: what is told of failures.
    """

    def __init__(self, procs: ProcMesh, trainers: Any, plan: Plan, books: Books) -> None:
        self._mesh = procs
        self._trainers = trainers
        self._plan = plan
        self._books = books
        self._replicas, self._procs = procs.sizes["replicas"], procs.sizes["procs"]
        # How many have not ended and are not given up.
        self._training = self._replicas
        # Those that are given up: told whether they are brought back, or that the run is over.
        self._given_up: dict[int, asyncio.Future[bool]] = {}

    @property
    def given_up(self) -> frozenset[int]:
        """The replicas that do not come back by themselves."""
        return frozenset(self._given_up)

    async def run(self) -> tuple[int | None, ...]:
        """Train to the end: how many steps count for each replica, None for those that were given up.

        Raises:
            RoostError: training cannot go on.
        """
        tasks = [asyncio.create_task(self._keep(replica)) for replica in range(self._replicas)]
        try:
            outcomes = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        errors = [one for one in outcomes if isinstance(one, RoostError)]
        if errors:
            raise errors[0]
        return tuple(one for one in outcomes if not isinstance(one, RoostError))

    async def bring_back(self) -> tuple[int, ...]:
        """Start the replicas again that were given up; which those are.

        Raises:
            RoostError: one of them cannot be started.
        """
        back: list[int] = []
        for replica, again in list(self._given_up.items()):
            mesh = self._mesh.slice(replicas=replica)
            await mesh.restart("it is brought back")
            await mesh.ready()
            if not again.done():
                del self._given_up[replica]
                self._training += 1
                again.set_result(True)
                back.append(replica)
        return tuple(back)

    async def _keep(self, replica: int) -> int | RoostError | None:
        try:
            return await self._live(replica)
        finally:
            self._stops_training()

    def _stops_training(self) -> None:
        """One has ended, or is given up: with the last the run is over."""
        self._training -= 1
        if not self._training:
            for again in self._given_up.values():
                if not again.done():
                    again.set_result(False)

    async def _live(self, replica: int) -> int | RoostError | None:
        """Have a replica train through all its lives: how many steps count, or None when it is given up to the end."""
        life = 0
        while True:
            first_step_s = self._plan.timeouts.first_step_after(self._books.longest_first_s)
            calls = [
                self._trainers.slice(replicas=replica, procs=proc).ft_train.call_one(self._plan, life, first_step_s)
                for proc in range(self._procs)
            ]
            try:
                steps: list[int | None] = await asyncio.gather(*calls)
            except StoppedError:
                raise
            except ActorDied as death:
                life += 1
                if not await self._start_again(replica, calls, death.failure, life):
                    return None
            except RoostError as error:
                return error
            else:
                return steps[0]

    async def _start_again(self, replica: int, calls: list[Any], failure: Failure, life: int) -> bool:
        """Restart what is left of a replica with what died; False when it is given up, and stays so to the end."""
        mesh = self._mesh.slice(replicas=replica)
        failed = [proc for proc, call in enumerate(calls) if call.done() and call.exception() is not None]
        incident = self._books.failed(replica, tuple(failed), failure, life)
        left = [mesh.slice(procs=proc) for proc in range(self._procs) if proc not in failed]
        if left:
            # Their training threads would take no notice of a stop. Their policy brings them back.
            members = [member for one in left for member in one._members()]
            process.current().control.kill(members, f"a proc of replica {replica} failed")
            await asyncio.gather(*calls, return_exceptions=True)
        try:
            await mesh.ready()
        except RoostError as error:
            _logger.warning("replica %d is given up: %s", replica, error)
            incident.phases.setdefault("detected", 0.0)
            again: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._given_up[replica] = again
            await self._plan.service.lose.call_one(replica, "is given up by its restart policy")
            self._stops_training()
            return await again
        return True
