"""`ProcessJob`: agents on this machine, each a host of its own."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from roost.job.agent import agent_command
from roost.job.job import Job
from roost.job.knowing import Look
from roost.process_hosts import reap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.job.record import Part, Record
    from roost.job.spec import MeshSpec

__all__ = ["ProcessJob"]

# How long an agent has to end what it started once it was told to, and how often that is looked at.
_END_S = 15.0
_LOOK_S = 0.02

# Agents that this process started: who started a process has to take in its end.
_children: dict[int, subprocess.Popen[bytes]] = {}


class ProcessJob(Job):
    """A job whose hosts are agents on this machine: to write and try out a program that is to run on many.

    They outlive the program, as an allocation does, and end with `kill()`.

    Args:
        meshes: how many hosts, or a `MeshSpec`, by name; what a host is to have is not looked at.
        name: as of `Job`.
        folder: as of `Job`.
        env: what the agents' environment has besides this process's.
        python: the agents' interpreter; this process's when left out.
    """

    kind: ClassVar[str] = "process"
    _ask_s: ClassVar[float] = 0.1

    def __init__(
        self, meshes: Mapping[str, int | MeshSpec], *, name: str = "roost",
        folder: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None, python: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(meshes, name=name, folder=folder, env=dict(env or {}), python=python or sys.executable)

    def render(self) -> str:
        """The command that is started for each host."""
        python = self._settings["python"]
        lines = []
        for name, spec in self.meshes.items():
            command = agent_command(python, "127.0.0.1:0", "RUN/key", f"RUN/hosts/{name}-0/0/RANK", f"{name}RANK")
            lines.append(f"{spec.hosts} × {shlex.join(command)}")
        return "\n".join(lines) + "\n"

    def _submit(self, record: Record, wanted: list[Part]) -> list[Part]:
        done: list[Part] = []
        for part in wanted:
            pids = [self._start(record, part, place) for place in range(part.hosts)]
            done.append(part._replace(id=",".join(f"{pid}@{_started_at(pid)}" for pid in pids)))
        return done

    def _start(self, record: Record, part: Part, place: int) -> int:
        announce = os.path.join(record.hosts_folder(part, 0), str(place))
        name = f"{part.mesh}{part.first + place}"
        command = agent_command(self._settings["python"], "127.0.0.1:0", record.key_file, announce, name)
        with open(record.log_file(part, place), "ab") as log:
            # In a session of its own: a terminal's Ctrl-C is not meant for it.
            agent = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | self._settings["env"],
            )  # fmt: skip
        _children[agent.pid] = agent
        return agent.pid

    def _look(self, record: Record) -> Look:
        gone: dict[tuple[str, int], str] = {}
        hosts = 0
        for part in record.parts:
            for place, one in enumerate(part.id.split(",")):
                hosts += 1
                if not _is_alive(one):
                    gone[part.mesh, part.first + place] = _how_it_ended(one)
        if len(gone) == hosts:
            ends = set(gone.values())
            return Look("ended", "; ".join(sorted(ends)), failed=ends != {_IN_ORDER})
        return Look("running", gone=gone)

    def _end(self, record: Record) -> None:
        _end_all([one for part in record.parts for one in part.id.split(",")])

    def _shorten(self, record: Record, part: Part, hosts: int) -> Part:  # noqa: ARG002 - as of all jobs
        ids = part.id.split(",")
        _end_all(ids[hosts:])
        return part._replace(hosts=hosts, id=",".join(ids[:hosts]))


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
    pid, _, started = one.partition("@")
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


def _end_all(ids: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in filter(_is_alive, ids):
            with suppress(ProcessLookupError):
                os.kill(int(one.partition("@")[0]), number)
        until = time.monotonic() + _END_S
        while any(map(_is_alive, ids)) and time.monotonic() < until:
            time.sleep(_LOOK_S)
    reap({pid for one in ids if (pid := int(one.partition("@")[0])) in _children})
