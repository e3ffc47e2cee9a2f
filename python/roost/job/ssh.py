"""`SshJob`: hosts that are given, reached by OpenSSH's client."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from typing import IO, TYPE_CHECKING, ClassVar

from roost.addresses import joined
from roost.errors import JobError, Unavailable
from roost.job.agent import agent_command
from roost.job.logs import last_lines
from roost.job.processes import ProcessesJob
from roost.job.record import tell_of
from roost.job.spec import lists_of_texts, tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roost.job.knowing import Look
    from roost.job.record import Part, Record
    from roost.job.spec import MeshSpec

__all__ = ["SshJob"]

# Nobody is there to type a password; a connection that is cut is noticed from here within half a minute.
_OPTIONS = (
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=15",
    "-o",
    "ServerAliveInterval=10",
    "-o",
    "ServerAliveCountMax=3",
)
_LISTENING = re.compile(rb"^listening on (\S+) advertised as \S+$", re.MULTILINE)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@%\[\]-]*")
# What stands in a log, and what helps.
_ADVICE = (
    ("Host key verification failed", "connect once by hand, `ssh {host}`, or put its key into known_hosts"),
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "find out why; then `ssh-keygen -R` removes the old key from known_hosts",
    ),
    ("Permission denied", "`ssh -o BatchMode=yes {host} true` has to work: by a key, nobody types a password"),
    ("Could not resolve hostname", "correct hosts=, or give the name a HostName in ~/.ssh/config"),
    ("No module named roost", "install Roost for {python} there, or name with python= an interpreter that has it"),
    ("not found", "python= names {python}, which has to be there"),
    ("No such file or directory", "python={python} and cwd={cwd} have to be there"),
)
_LOG_LINES = 20


class SshJob(ProcessesJob):
    """Hosts that are given: each mesh takes the next of them, and an agent is started there by `ssh`.

    The connections are this machine's: they and with them the agents outlive the program, and end with `kill()`, which has to be called on
    this machine. An agent whose connection ends does so, too, with all that it started. Agents are reached from here, and from each other,
    by the name that `ssh` dials, and by TCP ports that the system chooses.

    Args:
        meshes: how many hosts, or a `MeshSpec`, by name; what a host is to have is not looked at.
        hosts: where they are, as `ssh` takes it: names, `user@name`, or what `~/.ssh/config` calls them. More than are needed may be
            given, for `resize()`.
        name: as of `Job`.
        folder: as of `Job`; the hosts need not share it.
        sync: as of `Job`.
        python: the interpreter there; this one's path when left out.
        prologue: lines of shell that come first: `["module load rocm"]`.
        env: what the agents' environment has besides.
        cwd: the working directory there; the home when left out.
        listen: what the agents listen on.
        ssh_args: more arguments of ssh: `["-F", "my_config"]`.

    Raises:
        ValueError: names or numbers that cannot be, or fewer hosts than are asked for.
    """

    kind: ClassVar[str] = "ssh"

    def __init__(
        self,
        meshes: Mapping[str, int | MeshSpec],
        *,
        hosts: Sequence[str],
        name: str = "roost",
        folder: str | os.PathLike[str] | None = None,
        sync: str | os.PathLike[str] | None = None,
        python: str | None = None,
        prologue: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        listen: str = "0.0.0.0:0",
        ssh_args: Sequence[str] = (),
    ) -> None:
        super().__init__(
            meshes, name=name, folder=folder, sync=sync, python=python or sys.executable, cwd=cwd, listen=listen,
            **tables("SshJob", env=env), **lists_of_texts("SshJob", hosts=hosts, prologue=prologue, ssh_args=ssh_args),
        )  # fmt: skip
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"{host!r} is no host for ssh: give a name, or user@name")
        if len(set(hosts)) != len(hosts):
            raise ValueError(f"hosts={list(hosts)}: name each host once")
        wanted = sum(spec.hosts for spec in self.meshes.values())
        if wanted > len(hosts):
            raise ValueError(f"{wanted} hosts are asked for, and {len(hosts)} are given in hosts=")

    def render(self) -> str:
        """The command that is started for each host."""
        hosts = iter(self._settings["hosts"])
        commands = [self._command(next(hosts), "NAME") for spec in self.meshes.values() for _ in range(spec.hosts)]
        return "\n".join([*map(shlex.join, commands), ""])

    def _command(self, host: str, dialled: str) -> list[str]:
        settings = self._settings
        agent = agent_command(
            settings["python"], settings["listen"], name=_name_of(host), more=["--advertise", dialled, "--key-stdin"]
        )
        lines = [
            *([] if settings["cwd"] is None else [f"cd {shlex.quote(settings['cwd'])} || exit"]),
            *(f"export {key}={shlex.quote(value)}" for key, value in settings["env"].items()),
            *settings["prologue"],
            f"exec {shlex.join(agent)}",
        ]
        # Whatever the login shell is there.
        return ["ssh", *_OPTIONS, *settings["ssh_args"], "--", host, f"exec /bin/sh -c {shlex.quote('; '.join(lines))}"]

    def _submit(self, record: Record, wanted: list[Part]) -> list[Part]:
        if shutil.which("ssh") is None:
            raise Unavailable("there is no ssh here: install OpenSSH's client")
        if sum(part.hosts for part in wanted) > len(self._free(record.parts)):
            raise JobError(
                f"no host is free: hosts= gives {len(self._settings['hosts'])}, and the job has {len(_taken(record.parts))}"
            )
        done: list[Part] = []
        for part in wanted:
            free = iter(self._free([*record.parts, *done]))
            ids = [self._started(record, part, place, next(free)) for place in range(part.hosts)]
            done.append(part._replace(id=",".join(ids)))
        return done

    def _free(self, parts: Sequence[Part]) -> list[str]:
        taken = _taken(parts)
        return [host for host in self._settings["hosts"] if host not in taken]

    def _start(self, record: Record, part: Part, place: int, log: IO[bytes], host: str) -> subprocess.Popen[bytes]:
        command = self._command(host, self._dialled(host))
        path = _fifo(record, part, place)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        # Of a host that was given back, whose place this one takes.
        for left in (path, os.path.join(record.hosts_folder(part, 0), str(place))):
            with suppress(FileNotFoundError):
                os.unlink(left)
        os.mkfifo(path, 0o600)
        # Open at both ends in the client itself, it lasts as long as that does.
        fifo = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with open(record.key_file, "rb") as key:
                os.write(fifo, key.read())
            return subprocess.Popen(command, stdin=fifo, stdout=log, stderr=log, start_new_session=True)
        finally:
            os.close(fifo)

    def _dialled(self, host: str) -> str:
        """The name or number that ssh dials for a host."""
        command = ["ssh", *self._settings["ssh_args"], "-G", "--", host]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise JobError(f"ssh refuses: {done.stderr.strip() or f'exit code {done.returncode}'}")
        return next(line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("hostname "))

    def _look(self, record: Record) -> Look:
        for part in record.parts:
            for place in range(part.hosts):
                self._announce(record, part, place)
        return super()._look(record)

    def _announce(self, record: Record, part: Part, place: int) -> None:
        """An agent elsewhere tells of itself in what it writes."""
        path = os.path.join(record.hosts_folder(part, 0), str(place))
        if os.path.exists(path):
            return
        with suppress(FileNotFoundError), open(record.log_file(part, place), "rb") as log:
            found = _LISTENING.search(log.read())
            if found is None:
                return
            host = part.id.split(",")[place].split("@", 2)[2]
            address = joined(self._dialled(host), found[1].decode().rpartition(":")[2])
            tell_of(record.hosts_folder(part, 0), place, address, _name_of(host))

    def _why(self, record: Record, part: Part, place: int, how: str) -> str:
        host = part.id.split(",")[place].split("@", 2)[2]
        lines = last_lines(record.log_file(part, place), _LOG_LINES)
        for words, advice in _ADVICE:
            said = next((line.strip() for line in lines if words in line), None)
            if said is not None:
                shown = advice.format(host=host, python=self._settings["python"], cwd=self._settings["cwd"])
                return f"{host}: {said}; {shown}"
        wrote = f"; it wrote last: {lines[-1].strip()}" if lines else ""
        return f"{host}: {how}{wrote}"

    def _ask_to_end(self, record: Record, part: Part, place: int) -> None:
        # Nobody reads it where the client has ended.
        with suppress(OSError):
            fifo = os.open(_fifo(record, part, place), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(fifo, b"end\n")
            os.close(fifo)


def _fifo(record: Record, part: Part, place: int) -> str:
    """The standard input of a client."""
    return os.path.join(record.run_folder, "connections", f"{part.label}.{place}")


def _taken(parts: Sequence[Part]) -> set[str]:
    return {one.split("@", 2)[2] for part in parts if part.id for one in part.id.split(",")}


def _name_of(host: str) -> str:
    return host.rpartition("@")[2]
