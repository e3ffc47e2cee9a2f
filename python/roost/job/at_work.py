"""What is done for a job, whoever gives it hosts; and what each kind of job says of itself."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from roost.errors import CallTimeoutError, JobError, RoostError
from roost.job.knowing import has_run, hosts_of, is_ready, last_words
from roost.job.opening import attached
from roost.job.record import Part, default_folder, exclusively, new_record, read_record
from roost.job.spec import MeshSpec, check_job_name, specs_from
from roost.job.status import JobStatus, together
from roost.values import check_finite
from roost.waiting import Bell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.host_mesh import HostMesh
    from roost.job.knowing import Agent, Look
    from roost.job.record import Record
    from roost.job.status import HostStatus

__all__ = ["OVER", "JobAtWork"]

_logger = logging.getLogger("roost.job")

# How often the job's folder is looked at while agents are waited for.
_LOOK_S = 0.1
# How long a job that was told to end may take: schedulers ask politely first, for half a minute say, and clean up then.
_END_S = 180.0
OVER = ("ended", "absent")


class JobAtWork(ABC):
    """What is done for a job: see `Job`."""

    kind: ClassVar[str]
    """What the state file calls such a job."""
    meshes: dict[str, MeshSpec]
    """What was asked for, by name."""
    name: str
    """The job's name."""
    folder: str
    """Where it lives."""

    # How often whoever gives the hosts is asked; and while they are used: half of what passes before silence is a loss.
    _ask_s: ClassVar[float] = 1.0
    _keep_s: ClassVar[float] = 5.0

    def __init__(
        self, meshes: Mapping[str, int | MeshSpec], *, name: str = "roost",
        folder: str | os.PathLike[str] | None = None, sync: str | os.PathLike[str] | None = None, warn_s: float = 300.0,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.meshes = specs_from(meshes)
        self.name = check_job_name(name)
        self.folder = os.path.abspath(default_folder(name) if folder is None else os.fspath(folder))
        check_finite(type(self).__name__, "warn_s", warn_s)
        self._warn_s = warn_s
        self._sync = None if sync is None else os.path.abspath(sync)
        if self._sync is not None and not os.path.isdir(self._sync):
            raise ValueError(f"sync={sync!r} is no folder")
        self._settings: dict[str, Any] = {**settings, "sync": self._sync}
        self._bell = Bell()
        # Why hosts that this program has attached are lost, by their agents.
        self._losses: dict[Agent, str] = {}
        # Holds this program's right to be the job's driver.
        self._driving = ExitStack()
        self._looked: tuple[str, float, Look] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.meshes)}, name={self.name!r})"

    # What each kind says -------------------------------------------------------------------------------------------------
    @abstractmethod
    def _submit(self, record: Record, wanted: list[Part]) -> list[Part]:
        """Ask for hosts, each of these parts with an empty id; gives them with theirs. On a thread, as all of these."""

    @abstractmethod
    def _look(self, record: Record) -> Look:
        """Ask how it is."""

    @abstractmethod
    def _end(self, record: Record) -> None:
        """Have it end."""

    @abstractmethod
    def _shorten(self, record: Record, part: Part, hosts: int) -> Part:
        """Leave a part only its first hosts; with 0 it ends."""

    def _ids(self, record: Record) -> tuple[str, ...]:
        """What it is called where it runs."""
        return tuple(dict.fromkeys(part.id for part in record.parts))

    def _attach(self, name: str, hosts: list[HostStatus], key_file: str) -> HostMesh:
        """These hosts of a mesh, for this program."""
        return attached(name, hosts, key_file)

    # At work -------------------------------------------------------------------------------------------------------------
    def _spec(self) -> dict[str, Any]:
        return {"meshes": {name: spec.to_json() for name, spec in self.meshes.items()}, **self._settings}

    def _applied(self) -> Record:
        record = read_record(self.folder)
        if record is None:
            raise LookupError(f"no job was applied in {self.folder}: apply it first")
        self._check_kind(record)
        return record

    def _check_kind(self, record: Record) -> None:
        if record.kind != self.kind or record.name != self.name:
            raise JobError(
                f"{self.folder} is the folder of {record.name!r}, a {record.kind} job, and this is {self.name!r}, a {self.kind} job: "
                "give this one a name or folder= of its own"
            )

    async def _apply(self) -> JobStatus:
        with exclusively(self.folder, "apply"):
            before = read_record(self.folder)
            if before is not None:
                self._check_kind(before)
                status = await self._status_of(before)
                if status.state not in OVER:
                    self._check_spec(before, status)
                    return status
            record = new_record(self.folder, self.kind, self.name, self._spec())
            record.make_folders()
            wanted = [Part(name, 0, spec.hosts, "") for name, spec in self.meshes.items()]
            # It is known before there is anything to find again.
            record.write()
            try:
                record.parts = await asyncio.to_thread(self._submit, record, wanted)
            except RoostError as error:
                self._over(record, f"it was not taken: {error}", failed=True, has_run=False)
                raise
            record.write()
        return await self._status_of(record)

    def _over(self, record: Record, reason: str, *, failed: bool, has_run: bool = True, restarts: int = 0) -> None:
        """It has ended: that is kept, and its key is not. All but `record` are as of `JobStatus`."""
        record.ended = {"reason": reason, "failed": failed, "has_run": has_run, "restarts": restarts}
        record.write()
        with suppress(FileNotFoundError):
            os.unlink(record.key_file)

    def _check_spec(self, record: Record, status: JobStatus) -> None:
        ours = self._spec()
        other = sorted(key for key in ours.keys() | record.spec.keys() if ours.get(key) != record.spec.get(key))
        if other:
            shown = "; ".join(f"{key} is {record.spec.get(key)!r} there, {ours.get(key)!r} here" for key in other)
            raise JobError(
                f"another job {self.name!r} is {status.state} ({', '.join(status.ids)}): {shown}. Kill it first, resize() it, or "
                "give this one another name"
            )

    async def _status(self) -> JobStatus:
        record = read_record(self.folder)
        if record is None:
            return JobStatus(name=self.name, state="absent", reason="it was never applied")
        self._check_kind(record)
        return await self._status_of(record)

    async def _status_of(self, record: Record, *, at_most_s: float = 0.0) -> JobStatus:
        """How a job is.

        Args:
            record: the job.
            at_most_s: how old what the scheduler said may be.
        """
        if record.ended is not None or not record.parts:
            ended = record.ended or {"reason": "who applied it ended before it was taken", "failed": True}
            return JobStatus(name=record.name, state="ended", ids=self._ids(record), **ended)
        look = await self._asked(record, at_most_s)
        ran, restarts = has_run(record, look), max(look.restarts.values(), default=0)
        if look.state == "ended":
            self._over(record, look.reason, failed=look.failed, has_run=ran, restarts=restarts)
            return await self._status_of(record)
        hosts = hosts_of(record, look, self._losses, list(self.meshes))
        # Its agents may have told of themselves after it was asked for.
        is_up = any(one.state == "up" for one in hosts)
        return JobStatus(
            name=record.name, state="running" if is_up else look.state, reason=look.reason, ids=self._ids(record),
            time_left_s=look.time_left_s, restarts=restarts, has_run=ran or is_up, preempted=look.preempted, hosts=tuple(hosts),
        )  # fmt: skip

    async def _asked(self, record: Record, at_most_s: float) -> Look:
        key = f"{record.run} {record.parts}"
        if self._looked is not None:
            of, at, look = self._looked
            if of == key and time.monotonic() - at < at_most_s:
                return look
        look = await asyncio.to_thread(self._look, record)
        self._looked = key, time.monotonic(), look
        return look

    async def _ready(self, hosts: int | None, timeout_s: float | None) -> JobStatus:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        record = self._applied()
        told: set[str] = set()
        while True:
            status = await self._status_of(record, at_most_s=self._ask_s)
            if status.state in OVER:
                raise JobError(f"{status}\napply() asks for it anew{last_words(record)}")
            self._tell_troubles(status, told)
            try:
                done = is_ready(status, hosts, self.meshes)
            except JobError as error:
                raise JobError(f"{error}{last_words(record)}") from None
            if done:
                # What was said of it may be older than what its agents told.
                return await self._status_of(record)
            if until is not None and time.monotonic() > until:
                missing = together(one for one in status.hosts if one.state != "up")
                raise CallTimeoutError(
                    f"{len(status.up())} of {len(status.hosts)} hosts of {self.name} listen after {timeout_s:g} s. Missing: {missing}"
                )
            await asyncio.sleep(_LOOK_S)

    def _tell_troubles(self, status: JobStatus, told: set[str]) -> None:
        """Say what hosts wait for: it may be for ever."""
        ill = [one for one in status.hosts if one.state == "missing" and one.reason not in ("", status.reason)]
        news = [one for one in ill if str(one) not in told]
        if news:
            told.update(map(str, news))
            _logger.warning("job %s: %s", self.name, together(news))

    def _lose(self, host: HostStatus, reason: str) -> None:
        """A host that this program has attached is lost."""
        self._losses[host.address, host.agent] = reason
        self._bell.ring()

    def _said_of(self, mesh: str, rank: int) -> str:
        """What was said last of a host, and of the job where it is over."""
        if self._looked is None:
            return ""
        look = self._looked[2]
        of_job = look.reason if look.state == "ended" or look.preempted else ""
        place = mesh, rank
        return "; ".join(filter(None, (of_job, look.gone.get(place) or look.known.get(place))))

    def _is_gone(self, host: HostStatus) -> str:  # noqa: ARG002 - others know
        """Why a host that this program has attached is not there any more, for certain; empty where that is not known."""
        return ""

    def _troubles(self) -> list[str]:
        """What is in the way of this program to its hosts."""
        return []

    async def _is_over(self) -> bool:
        return (await self._status()).state in OVER

    async def _wait(self, timeout_s: float | None) -> JobStatus:
        async with asyncio.timeout(timeout_s):
            while (status := await self._status()).state not in OVER:  # noqa: ASYNC110 - schedulers are asked
                await asyncio.sleep(self._ask_s)
        return status

    async def _kill(self) -> JobStatus:
        record = read_record(self.folder)
        if record is None:
            return await self._status()
        self._check_kind(record)
        status = await self._status_of(record)
        if status.state in OVER:
            return status
        await asyncio.to_thread(self._end, record)
        try:
            ended = await self._wait(_END_S)
            self._over(record, f"killed: {ended.reason}", failed=False, has_run=ended.has_run, restarts=ended.restarts)
            return await self._status_of(record)
        except TimeoutError:
            raise JobError(f"it was told to end, and {_END_S:g} s later it has not: {await self._status()}") from None

    async def _resize(self, mesh: str, hosts: int) -> JobStatus:
        with exclusively(self.folder, "apply"):
            record = self._applied()
            status = await self._status_of(record)
            if status.state in OVER:
                raise JobError(f"a job that has ended cannot be resized: {status}")
            there = sum(part.hosts for part in record.parts if part.mesh == mesh)
            if hosts > there:
                wanted = [Part(mesh, there, hosts - there, "")]
                record.parts += await asyncio.to_thread(self._submit, record, wanted)
            elif hosts < there:
                record.parts = await asyncio.to_thread(self._shortened, record, mesh, hosts)
            spec = self.meshes[mesh]
            needed = None if spec.at_least is None else min(spec.at_least, hosts)
            self.meshes[mesh] = MeshSpec(hosts, spec.gpus, spec.cpus, spec.memory_mib, needed, spec.args)
            record.spec = self._spec()
            record.write()
        return await self._status_of(record)

    def _shortened(self, record: Record, mesh: str, hosts: int) -> list[Part]:
        parts = []
        for part in record.parts:
            keep = max(0, min(part.hosts, hosts - part.first))
            changed = part
            if part.mesh == mesh and keep < part.hosts:
                changed = self._shorten(record, part, keep)
            if changed.hosts:
                parts.append(changed)
        return parts

    def _log_path(self, record: Record, mesh: str, rank: int) -> str:
        if not record.parts:
            raise LookupError(f"{self.name} has no hosts: {(record.ended or {}).get('reason', 'it was not taken')}")
        if mesh == "driver":
            return record.driver_log
        for part in record.parts:
            if part.mesh == mesh and part.first <= rank < part.first + part.hosts:
                return record.log_file(part, rank - part.first)
        has = ", ".join(f"{name} (0 to {spec.hosts - 1})" for name, spec in self.meshes.items())
        raise LookupError(f"the job has no host {mesh}[{rank}]: it has {has}, and driver")
