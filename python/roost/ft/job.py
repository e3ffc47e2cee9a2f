"""`FaultTolerantJob`: replicas that train together, die one by one, and are brought back while the others go on."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from roost import libraries
from roost.failure import Restart
from roost.ft.books import Books, Report
from roost.ft.companion import Companion
from roost.ft.ledger import Ledger, forget_books, keep_books
from roost.ft.lives import Lives
from roost.ft.places import home_of, per_host, spawn_replicas
from roost.ft.service import Counts, housed, served, watched
from roost.ft.sync import DiLoCo, EveryStep, LocalSGD
from roost.ft.timeouts import Timeouts
from roost.ft.trainer import Trainer
from roost.ft.training import Plan
from roost.running import this_host, this_proc
from roost.values import check_integer, check_modules, check_one_of

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from roost.failure import Failure
    from roost.ft.incidents import Incident
    from roost.ft.sync import Sync
    from roost.host_mesh import HostMesh
    from roost.mesh import ProcMesh

__all__ = ["FaultTolerantJob"]

B = TypeVar("B")

_POLICIES = (
    "batches: each replica learns from one item a step, so that with fewer replicas a step learns from less",
    "batches: a step learns from as many items with fewer replicas, each of which then learns from more",
)

_logger = logging.getLogger("roost.ft")

_PRELOAD = ("roost.ft.quiet", "torch", "torch._dynamo", "torch.distributed", "torch.optim")
_TRAINERS = Restart(limit=10, within_s=60, backoff_s=(0.0, 1.0), on="any_host")


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
        data: items, each handed out once to one replica, one a step; a `GlobalBatch` of them has the size of all replicas' batches
            together stay the same when replicas come and go. None when `step` finds its own.
        sync: how replicas keep together.
        hosts: where they run, as many on each as on any other.
        gpus_per_proc: how many devices each proc sees.
        preload: what the template imports beside torch and the trainer's module.
        env: as for `spawn_procs`.
        restart: how often a replica is brought back, and whether on other hosts; ten times a minute and on any host when left out.
        spares: warm procs on each host that wait to take a dead one's place.
        spare_hosts: how many of the hosts, the last ones, stand by, warm, to take what a lost one had.
        detect_within_s: how long a replica that stands still may go unnoticed; all time-outs follow from it.
        donors: from how many replicas a recovered one takes its state at once, where there are as many. Each copies its state for it,
            and when one dies meanwhile the others go on.
        quorum: who trains together: "roost", decided by supervision, or "torchft", by torchft's own lighthouse and managers, which
            are supervised.

    Raises:
        ValueError: values that cannot work together.
        Unavailable: torch, or for LocalSGD, DiLoCo and torchft's quorum torchft, is not there.
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
        spare_hosts: int = 0,
        detect_within_s: float = 10.0,
        donors: int = 1,
        quorum: Literal["roost", "torchft"] = "roost",
    ) -> None:
        check_integer("FaultTolerantJob", "replicas", replicas, least=1)
        check_integer("FaultTolerantJob", "procs", procs, least=1)
        check_integer("FaultTolerantJob", "min_replicas", min_replicas, least=1)
        if steps is not None:
            check_integer("FaultTolerantJob", "steps", steps, least=1)
        check_integer("FaultTolerantJob", "spare_hosts", spare_hosts, least=0)
        check_integer("FaultTolerantJob", "donors", donors, least=1)
        if hosts is not None and not hasattr(hosts, "spawn_procs"):
            raise TypeError(f"FaultTolerantJob hosts={hosts!r}: give a mesh of hosts, as roost.attach() gives")
        if sync is not None:
            _check_sync(sync)
        per_host(1 if hosts is None else len(hosts), spare_hosts, replicas, procs)
        if min_replicas > replicas:
            raise ValueError(f"min_replicas={min_replicas} of {replicas} replicas: training could never begin")
        if steps is None and data is None:
            raise ValueError("FaultTolerantJob needs steps= or data=, or it never ends")
        check_one_of("FaultTolerantJob", "quorum", quorum, ("roost", "torchft"))
        if donors > 1 and quorum == "torchft":
            raise ValueError(f'FaultTolerantJob donors={donors}: with quorum="torchft" a state comes from one')
        self._cls, self._args, self._kwargs = _of_trainer(trainer)
        self._counts = Counts(replicas, procs, min_replicas, donors)
        self._steps = steps
        self._sync: Sync = EveryStep() if sync is None else sync
        self._quorum: Literal["roost", "torchft"] = quorum
        libraries.check_torch()
        if self._wants_torchft:
            libraries.check_torchft()
        self._timeouts = Timeouts(detect_within_s)
        self._hosts, self._spare_hosts = hosts, spare_hosts
        self._spawn: dict[str, Any] = {
            "gpus_per_proc": gpus_per_proc, "env": env, "spares": spares,
            "restart": _TRAINERS if restart is None else restart, "preload": self._preload(preload),
        }  # fmt: skip
        self._books = books = Books(data, procs)
        if books.batch_size is not None and books.batch_size < replicas:
            raise ValueError(
                f"GlobalBatch size={books.batch_size} for {replicas} replicas: each has to learn from one item at least"
            )
        if isinstance(self._sync, EveryStep) and self._sync.backwards is None and books.batch_size is None:
            raise ValueError("EveryStep(backwards=None) is once for each item of a share: give data=GlobalBatch(...)")
        self._stack = AsyncExitStack()
        self._proc_mesh: ProcMesh | None = None
        self._plan: Plan | None = None
        self._trainers: Any = None
        self._services: dict[str, ProcMesh] = {}
        self._lives: Lives | None = None
        # Whether some of its trainers may be in their training loops.
        self._is_running = False

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
    def given_up(self) -> frozenset[int]:
        """The replicas that their restart policy does not bring back; `bring_back` does."""
        return frozenset() if self._lives is None else self._lives.given_up

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The failures of replicas so far."""
        return tuple(self._books.incidents)

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
            self._plan.service.finish.broadcast(why)
        await self._stack.__aexit__(kind, error, traceback)

    async def run(self) -> Report:
        """Train to the end.

        Raises:
            RoostError: training cannot go on: no replica is left that has the state, or fewer than `min_replicas`.
        """
        if self._lives is not None:
            raise RuntimeError("FaultTolerantJob.run() again: make another job")
        assert self._plan is not None, "run() inside `async with job`"
        self._lives = Lives(self.procs, self._trainers, self._plan, self._books)
        self._is_running = True
        ended = await self._lives.run()
        self._is_running = False
        return self._books.report(ended)

    async def bring_back(self) -> tuple[int, ...]:
        """Start the replicas again that were given up, because a host is there again, say; which those are.

        They go where the job has hosts: those that a program attaches meanwhile, too. Without such replicas nothing is done.

        Raises:
            RoostError: one of them cannot be started.
        """
        return () if self._lives is None else await self._lives.bring_back()

    async def _start(self) -> None:
        enter = self._stack.enter_async_context
        hosts = this_host() if self._hosts is None else self._hosts
        if hosts.sizes:
            await hosts.ready()
        home = home_of(hosts)
        number = keep_books(self._books)
        self._stack.callback(forget_books, number)
        ledger = await enter(this_proc().spawn("ft-ledger", Ledger, number))
        self._services = await housed(self._stack, self._quorum, self._spawn["preload"])
        procs = await spawn_replicas(
            hosts, self._spare_hosts, self._counts.replicas, self._counts.procs, supervise=_handled, **self._spawn
        )
        self._proc_mesh = await enter(procs)
        companions = await watched(procs, self._timeouts).spawn("ft-companions", Companion, self._timeouts)
        service = await served(self._services, self._quorum, companions, ledger, home, self._timeouts, self._counts)
        self._trainers = await procs.spawn(self._cls.__name__, self._cls, *self._args, **self._kwargs)
        self._plan = Plan(
            self._quorum, service, companions, ledger, self._sync, self._timeouts, home, self._counts, self._steps,
            self._books.has_data, self._books.batch_size,
        )  # fmt: skip
        counts = self._counts
        _logger.info("%d replicas of %d procs, %s; %s", counts.replicas, counts.procs, self._sync, self._timeouts)
        if self._books.has_data:
            _logger.info("%s", _POLICIES[self._books.batch_size is not None])

    @property
    def _wants_torchft(self) -> bool:
        return self._quorum == "torchft" or not isinstance(self._sync, EveryStep)

    def _preload(self, more: Sequence[str]) -> tuple[str, ...]:
        names = [*_PRELOAD]
        if self._wants_torchft:
            names.append("torchft.local_sgd")
        names.extend(["roost.ft.training", "roost.ft.trainer"])
        if self._cls.__module__ not in ("__main__", "__mp_main__"):
            names.append(self._cls.__module__)
        return tuple(dict.fromkeys([*names, *check_modules(more)]))


def _check_sync(sync: object) -> None:
    if not isinstance(sync, EveryStep | LocalSGD | DiLoCo):
        raise TypeError(f"FaultTolerantJob sync={sync!r}: give an EveryStep, a LocalSGD or a DiLoCo of roost.ft")


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
