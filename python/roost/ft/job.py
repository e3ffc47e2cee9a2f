"""`FaultTolerantJob`: replicas that train together, die one by one, and are brought back while the others go on."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from roost import process
from roost.errors import ActorDied, RoostError, StoppedError
from roost.failure import Restart
from roost.ft import libraries
from roost.ft.books import Books, Report
from roost.ft.companion import Companion
from roost.ft.coordinator import Coordinator
from roost.ft.ledger import Ledger, forget_books, keep_books
from roost.ft.stores import Stores
from roost.ft.sync import EveryStep
from roost.ft.timeouts import Timeouts
from roost.ft.trainer import Trainer
from roost.ft.training import Plan
from roost.running import this_host, this_proc
from roost.values import check_integer

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from roost.failure import Failure
    from roost.ft.sync import Sync
    from roost.host_mesh import HostMesh
    from roost.mesh import ProcMesh, SpawnOptions

__all__ = ["FaultTolerantJob"]

B = TypeVar("B")

_logger = logging.getLogger("roost.ft")

_LOOPBACK = "127.0.0.1"
_QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR", "RUST_LOG": "warn"}
"""Libraries complain of groups and stores that were ended on purpose."""
_PRELOAD = ("torch", "torch._dynamo", "torch.distributed", "torch.optim")
_SERVICE = Restart(limit=1000, within_s=60, backoff_s=(0.0, 0.1), while_down="wait")
_TRAINERS = Restart(limit=10, within_s=60, backoff_s=(0.0, 1.0))


class FaultTolerantJob(Generic[B]):
    """Trains replicas of a model, and goes on while any of them fails.

    `async with job: report = await job.run()`. Each replica is one proc, or several that restart together. Its quorum service and
    its stores have procs of their own, which may die too.

    Args:
        trainer: a subclass of `Trainer`, or a `functools.partial` of one.
        replicas: how many there are.
        procs: how many procs each has.
        min_replicas: with fewer that live, the others wait.
        steps: when training ends; None for the end of the data.
        data: items, each handed out once to one replica; None when `step` finds its own.
        sync: how replicas keep together.
        hosts: where they run.
        gpus_per_proc: how many devices each proc sees.
        preload: what the template imports beside torch and the trainer's module.
        env: as for `spawn_procs`.
        restart: how often a replica is brought back; ten times a minute when left out.
        spares: warm procs that wait to take a dead one's place.
        detect_within_s: how long a replica that stands still may go unnoticed; all time-outs follow from it.
        quorum: "roost", decided by supervision.

    Raises:
        ValueError: values that cannot work together.
        Unavailable: torch, or for LocalSGD and DiLoCo torchft, is not there.
    """

    def __init__(
        self,
        trainer: Callable[[], Trainer[B]],
        *,
        replicas: int,
        procs: int = 1,
        min_replicas: int = 1,
        steps: int | None = None,
        data: Iterable[B] | None = None,
        sync: Sync | None = None,
        hosts: HostMesh | None = None,
        gpus_per_proc: int | None = None,
        preload: Sequence[str] = (),
        env: Any = None,
        restart: Restart | None = None,
        spares: int = 0,
        detect_within_s: float = 10.0,
        quorum: Literal["roost"] = "roost",
    ) -> None:
        check_integer("FaultTolerantJob", "replicas", replicas, least=1)
        check_integer("FaultTolerantJob", "procs", procs, least=1)
        check_integer("FaultTolerantJob", "min_replicas", min_replicas, least=1)
        if steps is not None:
            check_integer("FaultTolerantJob", "steps", steps, least=1)
        if min_replicas > replicas:
            raise ValueError(f"min_replicas={min_replicas} of {replicas} replicas: training could never begin")
        if steps is None and data is None:
            raise ValueError("FaultTolerantJob needs steps= or data=, or it never ends")
        if quorum != "roost":  # pyright: ignore[reportUnnecessaryComparison]  # users without a type checker
            raise ValueError(f'quorum={quorum!r}: only "roost" is built')
        self._cls, self._args, self._kwargs = _of_trainer(trainer)
        self._replicas, self._procs, self._min_replicas = replicas, procs, min_replicas
        self._steps, self._has_data = steps, data is not None
        self._sync: Sync = EveryStep() if sync is None else sync
        libraries.check_torch()
        if not isinstance(self._sync, EveryStep):
            libraries.check_torchft()
        self._timeouts = Timeouts(detect_within_s)
        self._hosts = hosts
        self._spawn: dict[str, Any] = {
            "gpus_per_proc": gpus_per_proc, "env": env, "spares": spares,
            "restart": _TRAINERS if restart is None else restart, "preload": self._preload(preload),
        }  # fmt: skip
        self._books = Books(data, procs)
        self._stack = AsyncExitStack()
        self._proc_mesh: ProcMesh | None = None
        self._plan: Plan | None = None
        self._trainers: Any = None
        self._services: dict[str, ProcMesh] = {}
        # Whether some of its trainers may be in their training loops.
        self._has_run = self._is_running = False

    @property
    def trainers(self) -> Any:
        """The actors, with the dimensions `replicas` and `procs`."""
        if self._trainers is None:
            raise RuntimeError("FaultTolerantJob.trainers: they are there inside `async with job`")
        return self._trainers

    @property
    def procs(self) -> ProcMesh:
        """The procs, with the same dimensions."""
        if self._proc_mesh is None:
            raise RuntimeError("FaultTolerantJob.procs: they are there inside `async with job`")
        return self._proc_mesh

    @property
    def companions(self) -> Companion:
        """The second actor of each proc, with the same dimensions."""
        assert self._plan is not None, "inside `async with job`"
        return self._plan.companions

    @property
    def services(self) -> dict[str, ProcMesh]:
        """The procs of the quorum service and of the stores, by these names."""
        return self._services

    @property
    def trained(self) -> frozenset[int]:
        """The replicas that have the state and are up, as far as is known here."""
        return self._books.trained

    @property
    def progress(self) -> int:
        """How many steps count by now."""
        return self._books.progress

    def _doom(self, replica: int) -> None:
        """What a replica is made to fail by is on its way."""
        self._books.doom(replica)

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        try:
            await self._start()
        except BaseException as error:
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        if self._is_running and self._plan is not None:
            why = "the job was stopped"
            self._plan.companions.quit.broadcast(why)
            self._plan.coordinator.finish.broadcast(why)
        await self._stack.__aexit__(kind, error, traceback)

    async def run(self) -> Report:
        """Train to the end.

        Raises:
            RoostError: training cannot go on: no replica is left that has the state, or fewer than `min_replicas`.
        """
        if self._has_run:
            raise RuntimeError("FaultTolerantJob.run() again: make another job")
        self._has_run = self._is_running = True
        tasks = [asyncio.create_task(self._keep(replica)) for replica in range(self._replicas)]
        try:
            outcomes = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        self._is_running = False
        errors = [one for one in outcomes if isinstance(one, RoostError)]
        if errors:
            raise errors[0]
        return self._books.report(tuple(one for one in outcomes if not isinstance(one, RoostError)))

    async def _start(self) -> None:
        enter = self._stack.enter_async_context
        for name, value in _QUIET.items():
            # Of the template, which has this process's environment as it is now, and imports these libraries.
            os.environ.setdefault(name, value)
        address = self._address()
        host = this_host()
        number = keep_books(self._books)
        self._stack.callback(forget_books, number)
        ledger = await enter(this_proc().spawn("ft-ledger", Ledger, number))
        stores_home = await enter(host.spawn_procs(name="ft-stores", restart=_SERVICE, preload=self._spawn["preload"]))
        quorum_home = await enter(host.spawn_procs(name="ft-quorum", restart=_SERVICE))
        self._services = {"quorum service": quorum_home, "stores": stores_home}
        sizes = {"replicas": self._replicas, "procs": self._procs}
        hosts = self._hosts or host
        procs = await enter(hosts.spawn_procs(sizes, name="trainers", supervise=_handled, **self._spawn))
        self._proc_mesh = procs
        companions = await self._watched(procs).spawn("ft-companions", Companion, self._timeouts)
        stores = await self._watched(stores_home).spawn("ft-stores", Stores, address)
        coordinator = await self._watched(quorum_home).spawn(
            "ft-coordinator", Coordinator, companions, stores, ledger, self._replicas, self._procs, self._min_replicas
        )
        self._trainers = await procs.spawn(self._cls.__name__, self._cls, *self._args, **self._kwargs)
        self._plan = Plan(
            coordinator, companions, ledger, self._sync, self._timeouts, address, self._steps, self._has_data
        )
        _logger.info("%d replicas of %d procs, %s; %s", self._replicas, self._procs, self._sync, self._timeouts)

    def _address(self) -> str:
        if self._hosts is not None and self._hosts.sizes:
            raise ValueError("FaultTolerantJob hosts=: more than this host is not built yet")
        return _LOOPBACK

    async def _keep(self, replica: int) -> int | RoostError | None:
        """Have a replica train to the end, through all its lives: how many steps count, or None when it is given up."""
        assert self._plan is not None, "run() inside `async with job`"
        life = 0
        while True:
            calls = [
                self._trainers.slice(replicas=replica, procs=proc).ft_train.call_one(self._plan, life)
                for proc in range(self._procs)
            ]
            try:
                steps: list[int | None] = await asyncio.gather(*calls)
            except StoppedError:
                raise
            except ActorDied as death:
                life += 1
                if not await self._bring_back(replica, calls, death.failure, life):
                    return None
            except RoostError as error:
                return error
            else:
                return steps[0]

    async def _bring_back(self, replica: int, calls: list[Any], failure: Failure, life: int) -> bool:
        """Restart what is left of a replica with what died; False when its policy gives it up."""
        assert self._plan is not None
        mesh = self.procs.slice(replicas=replica)
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
            await self._plan.coordinator.lose.call_one(replica, "is given up by its restart policy")
            return False
        return True

    def _watched(self, procs: ProcMesh) -> SpawnOptions:
        """Procs whose actors are probed: one that does not answer is gone, and its process is to go too."""

        async def end(failure: Failure) -> bool:
            process.current().control.kill(list(procs.slice(**failure.point)._members()), failure.reason)
            return True

        return procs.options(probe=self._timeouts.probe, supervise=end)

    def _preload(self, more: Sequence[str]) -> tuple[str, ...]:
        names = [*_PRELOAD]
        if not isinstance(self._sync, EveryStep):
            names.append("torchft.local_sgd")
        names.extend(["roost.ft.training", "roost.ft.trainer"])
        if self._cls.__module__ not in ("__main__", "__mp_main__"):
            names.append(self._cls.__module__)
        return tuple(dict.fromkeys([*names, *more]))


async def _handled(_: Failure) -> bool:
    """What its policy does not mend is a replica that is given up; `run` goes on without it."""
    return True


def _of_trainer(trainer: Any) -> tuple[type[Trainer[Any]], tuple[Any, ...], dict[str, Any]]:
    cls, args, kwargs = trainer, (), {}
    if isinstance(trainer, partial):
        cls, args, kwargs = trainer.func, trainer.args, trainer.keywords
    if not (isinstance(cls, type) and issubclass(cls, Trainer)):
        raise TypeError(
            f"FaultTolerantJob trainer={trainer!r}: give a subclass of Trainer, or a functools.partial of one"
        )
    return cls, args, kwargs
