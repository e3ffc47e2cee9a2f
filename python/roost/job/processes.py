"""`ProcessJob`: agents on this machine, each a host of its own; and what all jobs share whose hosts are processes here."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from abc import abstractmethod
from contextlib import suppress
from typing import IO, TYPE_CHECKING, ClassVar

from roost.job.agent import agent_command
from roost.job.job import Job
from roost.job.knowing import Look
from roost.job.spec import tables
from roost.process_hosts import reap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.job.record import Part, Record
    from roost.job.spec import MeshSpec

__all__ = ["ProcessJob", "ProcessesJob"]

# How long an agent has to end what it started once it was told to, and how often that is looked at.
_END_S = 15.0
_LOOK_S = 0.02

# Agents that this process started: who started a process has to take in its end.
_children: dict[int, subprocess.Popen[bytes]] = {}


class ProcessesJob(Job):
    """A job each of whose hosts is a process of this machine that lives as long as its agent, and outlives the program."""

    _ask_s: ClassVar[float] = 0.1

    @abstractmethod
    def _start(self, record: Record, part: Part, place: int, log: IO[bytes], host: str) -> subprocess.Popen[bytes]:
        """The process of a host at a place of a part."""

    def _why(self, record: Record, part: Part, place: int, how: str) -> str:  # noqa: ARG002 - others do
        """Why a host's process has ended, from how it did."""
        return how

    def _ids(self, record: Record) -> tuple[str, ...]:
        return tuple(one.partition("@")[0] for part in record.parts for one in part.id.split(","))

    def _submit(self, record: Record, wanted: list[Part]) -> list[Part]:
        return [
            part._replace(id=",".join(self._started(record, part, at) for at in range(part.hosts))) for part in wanted
        ]

    def _started(self, record: Record, part: Part, place: int, host: str = "") -> str:
        """Start a host's process; gives by what it is known later."""
        # Anew: what a host that was given back has written here is not this one's.
        with open(record.log_file(part, place), "wb") as log:
            process = self._start(record, part, place, log, host)
        _children[process.pid] = process
        return f"{process.pid}@{_started_at(process.pid)}@{host}"

    def _look(self, record: Record) -> Look:
        gone: dict[tuple[str, int], str] = {}
        hosts = 0
        ends = set[str]()
        for part in record.parts:
            for place, one in enumerate(part.id.split(",")):
                hosts += 1
                if not _is_alive(one):
                    ends.add(how := _how_it_ended(one))
                    gone[part.mesh, part.first + place] = self._why(record, part, place, how)
        if len(gone) == hosts:
            return Look("ended", "; ".join(sorted(set(gone.values()))), failed=ends != {_IN_ORDER})
        return Look("running", gone=gone)

    def _ask_to_end(self, record: Record, part: Part, place: int) -> None:  # noqa: ARG002 - others do
        """Have a host's process end in order."""
        _signal(part.id.split(",")[place], signal.SIGTERM)

    def _end(self, record: Record) -> None:
        self._end_all(record, [(part, place) for part in record.parts for place in range(part.hosts)])
        # How each ended is no news when it was told to.
        self._over(record, "its agents have ended", failed=False)

    def _shorten(self, record: Record, part: Part, hosts: int) -> Part:
        self._end_all(record, [(part, place) for place in range(hosts, part.hosts)])
        return part._replace(hosts=hosts, id=",".join(part.id.split(",")[:hosts]))

    def _end_all(self, record: Record, places: list[tuple[Part, int]]) -> None:
        ids = [part.id.split(",")[place] for part, place in places]
        for part, place in places:
            self._ask_to_end(record, part, place)
        _wait_for_end(ids)
        for one in ids:
            _signal(one, signal.SIGKILL)
        _wait_for_end(ids)
        reap({pid for one in ids if (pid := int(one.partition("@")[0])) in _children})


class ProcessJob(ProcessesJob):
    """A job whose hosts are agents on this machine: to write and try out a program that is to run on many.

    They outlive the program, as an allocation does, and end with `kill()`.

    Args:
        meshes: how many hosts, or a `MeshSpec`, by name; what a host is to have is not looked at.
        name: as of `Job`.
        folder: as of `Job`.
        sync: as of `Job`.
        env: what the agents' environment has besides this process's.
        python: the agents' interpreter; this process's when left out.
    """

    kind: ClassVar[str] = "process"

    def __init__(
        self, meshes: Mapping[str, int | MeshSpec], *, name: str = "roost",
        folder: str | os.PathLike[str] | None = None, sync: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None, python: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            meshes,
            name=name,
            folder=folder,
            sync=sync,
            python=python or sys.executable,
            **tables("ProcessJob", env=env),
        )

    def render(self) -> str:
        """The command that is started for each host."""
        lines = []
        for name, spec in self.meshes.items():
            command = self._command("RUN/key", f"RUN/hosts/{name}-0/0/RANK", f"{name}RANK")
            lines.append(f"{spec.hosts} × {shlex.join(command)}")
        return "\n".join(lines) + "\n"

    def _command(self, key_file: str, announce: str, name: str) -> list[str]:
        return agent_command(
            self._settings["python"], "127.0.0.1:0", key_file=key_file, announce=announce, name=name
        )  # fmt: skip

    def _start(self, record: Record, part: Part, place: int, log: IO[bytes], host: str) -> subprocess.Popen[bytes]:  # noqa: ARG002 - as of all
        announce = os.path.join(record.hosts_folder(part, 0), str(place))
        command = self._command(record.key_file, announce, f"{part.mesh}{part.first + place}")
        # In a session of its own: a terminal's Ctrl-C is not meant for it.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | self._settings["env"],
        )  # fmt: skip


_IN_ORDER = "its agent ended in order"


def _started_at(pid: int) -> str:
    """When a process started: with that its number is no other's."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "0"
    # One that has ended may be kept by who started it.
    return "0" if fields[0] in "ZX" else fields[19]


def _is_alive(one: str) -> bool:
    pid, started, _ = one.split("@", 2)
    child = _children.get(int(pid))
    if child is not None:
        return child.poll() is None
    return started != "0" and _started_at(int(pid)) == started


def _how_it_ended(one: str) -> str:
    child = _children.get(int(one.partition("@")[0]))
    code = None if child is None else child.poll()
    if code is None:
        return "its agent has ended"
    if code == 0:
        return _IN_ORDER
    return f"its agent was killed by signal {-code}" if code < 0 else f"its agent exited with code {code}"


def _signal(one: str, number: signal.Signals) -> None:
    if _is_alive(one):
        with suppress(ProcessLookupError):
            os.kill(int(one.partition("@")[0]), number)


def _wait_for_end(ids: list[str]) -> None:
    until = time.monotonic() + _END_S
    while any(map(_is_alive, ids)) and time.monotonic() < until:
        time.sleep(_LOOK_S)
