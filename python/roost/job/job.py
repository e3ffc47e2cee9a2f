"""`Job`: what users ask of a job, whoever gives it hosts."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from contextlib import suppress
from inspect import isabstract
from typing import TYPE_CHECKING

from roost.errors import JobError
from roost.job.at_work import OVER, JobAtWork
from roost.job.logs import FileLog, LogLines
from roost.job.opening import open_state
from roost.job.record import default_folder, exclusively, read_record
from roost.job.spec import MeshSpec, check_job_name
from roost.job.story import Story
from roost.replying import reply_of
from roost.values import check_finite, check_integer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Self

    from roost.job.opening import JobState
    from roost.job.status import JobEvent, JobStatus
    from roost.reply import Reply

__all__ = ["Job"]


class Job(JobAtWork):
    """Hosts for a program, by name: `await job.apply()` asks for them, `await job.state()` is them, `await job.kill()` gives them back.

    A job outlives the program. It is found again in its folder, which the job's hosts share: the state file `job.json`, and for each run
    the key of its hosts, where they listen, and their logs. Whatever waits gives a `Reply`: await it, or in a plain script take its
    `result()`.

    Args:
        meshes: how many hosts, or a `MeshSpec`, by name.
        name: the job's name; one of that name runs at a time in a folder.
        folder: where the job lives; `~/.roost/jobs/NAME` when left out.
        sync: a folder, such as ".", that the hosts are to have as it is here, at the same path, whenever a `state` is taken: for hosts that
            do not share it. Only what changed is sent; hidden files and Python's caches are left out, what is there besides stays.
        warn_s: how many seconds before the scheduler ends the job an event tells of it.

    Raises:
        ValueError: names or numbers that cannot be.
    """

    @classmethod
    def connect(cls, name: str, *, folder: str | os.PathLike[str] | None = None) -> Self:
        """The job of this name that an earlier program applied.

        Args:
            name: its name.
            folder: where it lives, if not in `~/.roost/jobs/NAME`.

        Raises:
            LookupError: there is none.
            JobError: it is of another kind, or of another version of Roost.
        """
        where = os.path.abspath(default_folder(check_job_name(name)) if folder is None else os.fspath(folder))
        record = read_record(where)
        if record is None:
            raise LookupError(f"no job was applied in {where}: apply it, or give the folder= that it lives in")
        kinds = {one.kind: one for one in Job._kinds() if not isabstract(one)}
        found = kinds.get(record.kind)
        if found is None or not issubclass(found, cls):
            raise JobError(f"the job in {where} is a {record.kind} job, and no {cls.__name__}")
        settings = {key: value for key, value in record.spec.items() if key != "meshes"}
        meshes = {key: MeshSpec(**fields) for key, fields in record.spec["meshes"].items()}
        return found(meshes, name=record.name, folder=where, **settings)

    def apply(self) -> Reply[JobStatus]:
        """Ask for the hosts, unless they have been asked for; returns once whoever gives them has taken it.

        Raises:
            JobError: by the reply: another job of this name runs, or the scheduler refuses; in its words.
            Unavailable: by the reply: there is no scheduler here.
        """
        return reply_of(self._apply())

    def status(self) -> Reply[JobStatus]:
        """How it is now."""
        return reply_of(self._status())

    def ready(self, hosts: int | None = None, *, timeout: float | None = None) -> Reply[JobStatus]:
        """Done when the agents of so many hosts listen.

        Args:
            hosts: how many of all meshes; when left out, each mesh as many as it needs, and all that are not lost.
            timeout: seconds; None waits as long as the scheduler takes.

        Raises:
            JobError: by the reply: it has ended, or too many hosts are lost; with the reason and the last lines of the log.
            CallTimeoutError: by the reply: the time is over; says which hosts are missing, and why.
        """
        if hosts is not None:
            check_integer("ready", "hosts", hosts, least=1)
        if timeout is not None:
            check_finite("ready", "timeout", timeout, above=0)
        return reply_of(self._ready(hosts, timeout))

    def state(self, *, timeout: float | None = None) -> Reply[JobState]:
        """The job's meshes of hosts, attached, by name: `async with await job.state() as hosts: hosts.trainers.spawn_procs(…)`.

        Args:
            timeout: as of `ready`; the hosts have 60 s of their own to let this program in.

        Raises:
            JobError: by the reply: as of `ready`; or another program drives the job now.
        """
        return reply_of(self._state(timeout))

    def wait(self, *, timeout: float | None = None) -> Reply[JobStatus]:
        """Done when it has ended, for whatever reason.

        Args:
            timeout: seconds; None waits for ever.
        """
        return reply_of(self._wait(timeout))

    def kill(self) -> Reply[JobStatus]:
        """End it, whoever applied it, and wait until it has ended. Idempotent."""
        return reply_of(self._kill())

    def resize(self, mesh: str, hosts: int) -> Reply[JobStatus]:
        """Change how many hosts a mesh has: more come behind those that are there, fewer end the last. Take the `state` anew then.

        Args:
            mesh: its name.
            hosts: how many it is to have.
        """
        if mesh not in self.meshes:
            raise LookupError(f"the job has no mesh {mesh!r}: it has {', '.join(self.meshes)}")
        check_integer("resize", "hosts", hosts, least=1, instead="kill() ends the whole job")
        return reply_of(self._resize(mesh, hosts))

    def logs(self, mesh: str, rank: int = 0, *, follow: bool = False) -> LogLines:
        """What a host's agent wrote, line by line: `for line in …`, or `async for`.

        Args:
            mesh: the mesh's name; "driver" for what the job's own script, or the driver of a batch job, wrote.
            rank: which of its hosts.
            follow: go on until the job has ended.

        Raises:
            LookupError: there is no such job or host.
        """
        record = self._applied()
        return LogLines(FileLog(self._log_path(record, mesh, rank)).read, self._is_over if follow else None)

    async def events(self) -> AsyncIterator[JobEvent]:
        """What becomes of it from now on, beginning with how it is; ends when the job has.

        It is looked at now and then, and what came and went in between is not told, but for this: where a job has had hosts since it was
        started last, `running` comes before `ended` or `requeued`.
        """
        story = Story(self._warn_s)
        while True:
            now = await self._status()
            for event in story.goes_on(now):
                yield event
            if now.state in OVER:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._bell.wait(), self._ask_s)

    @abstractmethod
    def render(self) -> str:
        """What would be submitted, for people; needs no scheduler."""

    @classmethod
    def _kinds(cls) -> list[type[Job]]:
        return [one for child in cls.__subclasses__() for one in (child, *child._kinds())]

    async def _state(self, timeout_s: float | None) -> JobState:
        status = await self._ready(None, timeout_s)
        record = self._applied()
        self._driving.close()
        self._driving.enter_context(exclusively(self.folder, "driver"))
        try:
            return await open_state(self, status, record.key_file)
        except BaseException:
            self._driving.close()
            raise
