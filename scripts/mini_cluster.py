"""What this folder's small clusters have in common: a folder that holds all of one, a network of its own, daemons by name, commands.

With `start DIR --while PID` a cluster ends with that process, however that ends: a test run that is killed leaves none behind.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
SCRIPT = Path(sys.argv[0]).resolve()


def fail(text: str) -> NoReturn:
    """Ends with one sentence."""
    print(f"{SCRIPT.stem}: {text}", file=sys.stderr)
    sys.exit(1)


def not_found(programs: Iterable[str]) -> list[str]:
    """Those of these programs that are not there."""
    return [name for name in programs if shutil.which(name, path=PATH) is None]


class MiniCluster(ABC):
    """What lies in a folder; a kind of cluster adds what its daemons and nodes are.

    Args:
        folder: the folder.
    """

    letters: ClassVar[str]
    """What the names of its network devices begin with, three of them."""
    folders: ClassVar[tuple[str, ...]]
    """What it keeps, besides `run` and `log`."""
    daemons: ClassVar[tuple[str, ...]]
    """By the names under which they are spawned; a cluster runs as long as the first. Nodes are spawned as `node-NAME`."""
    nodes: ClassVar[int]
    """How many it has where nobody says."""
    daemons_end_by: ClassVar[signal.Signals]
    nodes_end_by: ClassVar[signal.Signals]

    def __init__(self, folder: str) -> None:
        self.dir = Path(folder).resolve()
        # Clusters in several folders do not meet. Devices' names have at most 15 letters.
        self.tag = zlib.crc32(str(self.dir).encode())
        self.bridge = f"{self.letters}{self.tag % 0xFFFF:04x}"
        self.subnet = f"10.{64 + self.tag % 128}.{self.tag // 128 % 256}"
        self.environment = {**os.environ, "PATH": PATH}

    @staticmethod
    @abstractmethod
    def lacking() -> list[str]:
        """The programs that are not there."""

    @staticmethod
    @abstractmethod
    def prepare() -> None:
        """Makes what is lacking."""

    @abstractmethod
    def begin(self, count: int) -> None:
        """Starts daemons and so many nodes; returns when they can be used. Folder and network are there."""

    @abstractmethod
    def boot(self, node: str) -> None:
        """Starts a node whose power was cut."""

    @abstractmethod
    def kill(self, node: str) -> None:
        """Ends a node and all that runs there, at once."""

    @abstractmethod
    def used_by(self, command: list[str]) -> tuple[list[str], dict[str, str]]:
        """A command from where the cluster is used, and what has to be in its environment."""

    def start(self, nodes: int, owner: int | None = None) -> None:
        """Starts it, whole or not at all.

        Args:
            nodes: how many it has.
            owner: the process with which it ends; None for no such.
        """
        if self.pid(self.daemons[0]):
            fail(f"a cluster runs in {self.dir} already")
        for name in ("run", "log", *self.folders):
            shutil.rmtree(self.dir / name, ignore_errors=True)
            (self.dir / name).mkdir(parents=True)
        try:
            if owner is not None:
                self.spawn(
                    "guard", sys.executable, __file__, str(owner), sys.executable, str(SCRIPT), "stop", str(self.dir)
                )
            self.command("ip", "link", "add", self.bridge, "type", "bridge")
            self.command("ip", "addr", "add", f"{self.subnet}.1/24", "dev", self.bridge)
            self.command("ip", "link", "set", self.bridge, "up")
            self.begin(nodes)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends everything."""
        # It may be the guard that does so.
        if self.pid("guard") != os.getpid():
            self.end(["guard"], signal.SIGKILL)
        self.end([path.stem for path in (self.dir / "run").glob("node-*.pid")], self.nodes_end_by)
        self.end(self.daemons, self.daemons_end_by)
        self.command("ip", "link", "del", self.bridge, check=False)

    @classmethod
    def run_with(cls, nodes: int, command: list[str]) -> NoReturn:
        """Runs a command that uses a cluster which lasts as long; ends as it ends."""
        script = [sys.executable, str(SCRIPT)]
        # What ends options is kept, too.
        command = command[command[:1] == ["--"] :]
        with tempfile.TemporaryDirectory(prefix=f"{SCRIPT.stem}-") as folder:
            try:
                # By processes of their own, whose end makes orphans of the daemons.
                starting = [*script, "start", folder, "--nodes", str(nodes), "--while", str(os.getpid())]
                subprocess.run(starting, check=True)
                whole, environment = cls(folder).used_by(command)
                told = {**os.environ, **environment, SCRIPT.stem.upper(): folder}
                with subprocess.Popen(whole, env=told) as running:
                    # A terminal's Ctrl-C reaches the command, too.
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                    signal.signal(signal.SIGTERM, lambda *_: running.terminate())
                    code = running.wait()
            finally:
                subprocess.run([*script, "stop", folder], check=True)
        sys.exit(code)

    def command(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs one to its end."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if check and done.returncode:
            fail(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
        return done

    def spawn(self, name: str, *command: str) -> None:
        """Starts a daemon in a session of its own."""
        with (self.dir / "log" / f"{name}.log").open("ab") as log:
            daemon = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        (self.dir / "run" / f"{name}.pid").write_text(str(daemon.pid))

    def pid(self, name: str) -> int | None:
        """That of a daemon or node, while it lives."""
        try:
            pid = int((self.dir / "run" / f"{name}.pid").read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            return None
        # Where nobody waits for orphans, the dead stay.
        return None if state in "ZX" else pid

    def end(self, names: Sequence[str], number: signal.Signals) -> None:
        """Ends daemons or nodes by a signal; returns when they are gone."""
        for name in names:
            pid = self.pid(name)
            if pid:
                os.kill(pid, number)
        for name in names:
            self.wait_for(f"{name} has ended", lambda name=name: self.pid(name) is None, 15)
            (self.dir / "run" / f"{name}.pid").unlink(missing_ok=True)

    def wait_for(self, what: str, is_so: Callable[[], object], within_s: float) -> None:
        """Looks until it is."""
        until = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > until:
                fail(f"{what}: not within {within_s:g} s; the logs are in {self.dir}/log")
            time.sleep(0.05)


def commands_of(kind: type[MiniCluster], about: str) -> tuple[argparse.ArgumentParser, Any]:
    """The command line of a kind of cluster, and where it may add commands: each is a method with the arguments' names."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="what")
    commands.add_parser("prepare")
    for what in ("start", "kill", "boot", "stop"):
        command = commands.add_parser(what)
        command.add_argument("dir")
        if what == "start":
            command.add_argument("--nodes", type=int, default=kind.nodes)
            command.add_argument("--while", dest="owner", type=int, metavar="PID")
        elif what != "stop":
            command.add_argument("node")
    lasting = commands.add_parser("with")
    lasting.set_defaults(what="run_with")
    lasting.add_argument("--nodes", type=int, default=kind.nodes)
    lasting.add_argument("command", nargs=argparse.REMAINDER)
    return parser, commands


def obey(kind: type[MiniCluster], parser: argparse.ArgumentParser, remedy: str) -> None:
    """Does what the command line says.

    Args:
        kind: the kind of cluster.
        parser: of `commands_of`.
        remedy: what `prepare` does.
    """
    asked = vars(parser.parse_args())
    what, folder = asked.pop("what"), asked.pop("dir", None)
    if what == "prepare":
        kind.prepare()
        return
    if os.getuid() != 0:
        fail("namespaces need root")
    if kind.lacking():
        fail(f"{', '.join(kind.lacking())} not found: `scripts/{SCRIPT.name} prepare` {remedy}")
    getattr(kind if folder is None else kind(folder), what)(**asked)


def guard(pid: str, *then: str) -> None:
    """Becomes a command when a process has ended."""
    try:
        ending = os.pidfd_open(int(pid))
    except ProcessLookupError:
        pass
    else:
        select.select([ending], [], [])
    os.execvp(then[0], then)


if __name__ == "__main__":
    guard(*sys.argv[1:])
