"""`Failures`: what goes wrong with the replicas of a job, on purpose: now, on a schedule, or at random from a seed."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from roost import process
from roost.errors import ActorDied
from roost.ft.suffering import network_here
from roost.values import check_finite, check_integer, check_one_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from roost.ft.job import FaultTolerantJob
    from roost.reply import Reply

__all__ = ["FailureKind", "Failures", "Injected"]

FailureKind: TypeAlias = Literal[
    "kill", "whole replica", "segfault", "exception", "collective error", "hang", "hang with the GIL", "freeze", "slow",
    "quorum service", "stores", "host agent", "network cut",
]  # fmt: skip
"""What can go wrong: the process is killed; all processes of the replica are, at once; it reads from nowhere; its step raises; its
collective fails; its training thread stands still; its whole interpreter does; its whole process does (SIGSTOP); one of its steps takes
longer; the quorum service is killed; the stores of groups are; the agent of its host is; its host is cut off from all others for a while
(its agent runs as root in a network namespace of its own, with `nft`)."""

_logger = logging.getLogger("roost.ft")

_OF_HOSTS = ("host agent", "network cut")
KINDS: tuple[FailureKind, ...] = tuple(kind for kind in get_args(FailureKind) if kind not in _OF_HOSTS)
"""Those that any job can have."""
_SERVICES = ("quorum service", "stores")
# These end the replica that they happen to.
_FATAL = ("kill", "whole replica", "segfault", "exception", "hang", "hang with the GIL", "freeze", "host agent")


@dataclass(frozen=True, slots=True)
class Injected:
    """One failure that was brought about."""

    at: float
    """When, in seconds since the epoch."""
    kind: FailureKind
    replica: int | None
    """To whom; None for a service."""


class Failures:
    """Brings failures about: `async with Failures(job, every_s=3, seed=1) as failures`, around `await job.run()`.

    Without `every_s` nothing happens by itself, and `failures.inject("kill", replica=1)` does one.

    Args:
        job: inside its `async with`.
        every_s: the mean time between two, each up to half as much sooner or later.
        kinds: which; when left out all but those of other hosts.
        seed: of who and what.
        live_least: how many replicas that are up are left by those that end one; a failure that cannot keep to that waits.
        slow_s: by how much a slow step is longer.
        cut_s: for how long a host is cut off.

    Raises:
        ValueError: a kind that is not known, or a time that is none.
    """

    def __init__(
        self,
        job: FaultTolerantJob[Any],
        *,
        every_s: float | None = None,
        kinds: Sequence[FailureKind] = KINDS,
        seed: int = 0,
        live_least: int = 1,
        slow_s: float = 0.5,
        cut_s: float = 5.0,
    ) -> None:
        for kind in kinds:
            check_one_of("Failures", "kinds", kind, get_args(FailureKind))
        if every_s is not None:
            check_finite("Failures", "every_s", every_s, above=0)
        check_finite("Failures", "slow_s", slow_s, above=0)
        check_finite("Failures", "cut_s", cut_s, above=0)
        check_integer("Failures", "live_least", live_least, least=1)
        self._job = job
        self._every_s = every_s
        self._kinds = tuple(kinds)
        self._random = random.Random(seed)  # noqa: S311 - who fails is no secret
        self._live_least = live_least
        self._slow_s, self._cut_s = slow_s, cut_s
        self._task: asyncio.Task[None] | None = None
        self._suffering: set[asyncio.Task[None]] = set()
        self.injected: list[Injected] = []

    async def __aenter__(self) -> Self:
        if self._every_s is not None:
            self._task = asyncio.create_task(self._go_on(self._every_s))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        # Who is to fail is waited for as one that will: it must not be left out.
        await asyncio.gather(*self._suffering, return_exceptions=True)

    def inject(self, kind: FailureKind, *, replica: int = 0, proc: int = 0) -> None:
        """Bring one about, now.

        Args:
            kind: what.
            replica: to whom; a service has none.
            proc: to which of its procs.

        Raises:
            ValueError: a kind that is not known.
        """
        check_one_of("Failures.inject", "kind", kind, get_args(FailureKind))
        is_service = kind in _SERVICES
        self.injected.append(Injected(time.time(), kind, None if is_service else replica))
        if kind in _FATAL:
            self._job._doom(replica)
        if is_service:
            procs = self._job.services[kind]
            process.current().control.kill(list(procs._members()), "injected")
        elif kind in ("kill", "whole replica"):
            whole = self._job.procs.slice(replicas=replica)
            procs = whole.slice(procs=proc) if kind == "kill" else whole
            process.current().control.kill(list(procs._members()), "injected")
        else:
            companion = self._job.companions.slice(replicas=replica, procs=proc)
            if kind == "network cut":
                told = companion.cut_off.call_one(self._cut_s, network_here())
            else:
                told = companion.suffer.call_one(kind, self._slow_s)
            suffered = asyncio.create_task(_suffer(kind, told))
            self._suffering.add(suffered)
            suffered.add_done_callback(self._suffering.discard)

    async def _go_on(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s * (0.5 + self._random.random()))
            kind = self._random.choice(self._kinds)
            replica = await self._victim(spares=self._live_least if kind in _FATAL else 0)
            self.inject(kind, replica=replica)

    async def _victim(self, spares: int) -> int:
        """A replica that is up and trains, once enough others are."""
        while True:
            trained = self._job.trained
            if len(trained) > spares:
                return self._random.choice(sorted(trained))
            await asyncio.sleep(0.02)


async def _suffer(kind: FailureKind, told: Reply[None]) -> None:
    """The answer may be the end of who was asked."""
    try:
        await told
    except ActorDied:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on without
        _logger.warning("a failure of the kind %r was not brought about: %s", kind, error)
