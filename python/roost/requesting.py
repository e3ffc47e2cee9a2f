"""What a mesh of procs was asked for, checked at once, and from it what each proc is started with, at each of its starts."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roost import serialize
from roost.failure import Bind
from roost.ids import new_id
from roost.point import Point, rank_name
from roost.values import check_integer

if TYPE_CHECKING:
    from roost.runtime import Runtime
    from roost.shape import Shape

__all__ = ["Env", "Request"]

_logger = logging.getLogger("roost")

# Read by the interpreter, the loader or a preloaded library when the process starts: a forked proc comes too late for them.
_START_ONLY = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_")

Env = Mapping[str, str | None] | Callable[[Point, int], Mapping[str, str | None]]


class Request:
    """What each proc of a mesh is started with."""

    mesh: int
    procs: tuple[int, ...]

    def __init__(
        self, runtime: Runtime, name: str, whole: Shape, env: Any, preload: tuple[str, ...], bind: Any, start: Any,
        gpus_per_proc: int | None, setup: Any,
    ) -> None:  # fmt: skip
        for what, function in (("env", env), ("bind", bind), ("start", start)):
            if callable(function):
                _check_takes(what, function, ("point", "incarnation"))
        if gpus_per_proc is not None:
            check_integer("spawn_procs", "gpus_per_proc", gpus_per_proc, least=0, instead="0 shows a proc no device")
        self.runtime = runtime
        self.name = name
        self.whole = whole
        self.env = env
        self.preload = preload
        self.bind = bind
        self.start = start
        self.gpus_per_proc = gpus_per_proc
        self.setup = None if setup is None else serialize.dumps_alone(_checked_setup(setup))
        self.environ = dict(os.environ)
        self.sys_path = list(sys.path)
        self.argv = list(sys.argv)
        self.cwd = _working_directory()
        self.commands: dict[int, list[str]] = {}

    def label(self, rank: int) -> str:
        """The name of a rank."""
        return rank_name(self.name, self.whole.point(rank))

    def template(self) -> tuple[list[str], list[str], dict[str, str]]:
        """What the template that forks these procs imports, and where and with which environment it does."""
        return list(self.preload), self.sys_path, self.environ

    def of_proc(self, proc: int, incarnation: int) -> tuple[bytes, dict[str, str] | None, list[str] | None]:
        """What the next incarnation of a proc is started with, when that is a function."""
        return self.of(self.procs.index(proc), incarnation)

    def of(self, rank: int, incarnation: int) -> tuple[bytes, dict[str, str] | None, list[str] | None]:
        """(spec, whole environment for a cold start or None, command or None)."""
        point = self.whole.point(rank)

        def at(value: Any) -> Any:
            return value(point, incarnation) if callable(value) else value

        environ, cold = self._environ(at(self.env), self.label(rank))
        if self.gpus_per_proc is not None:
            first = rank * self.gpus_per_proc
            devices = ",".join(str(first + index) for index in range(self.gpus_per_proc))
            environ.update(HIP_VISIBLE_DEVICES=devices, CUDA_VISIBLE_DEVICES=devices)
        start = at(self.start)
        command = _command(start)
        cold = cold or start != "template"
        if command is not None:
            self.commands[rank] = command
        bind = at(self.bind)
        spec = {
            **self._shared(self.procs[rank], environ, bind), "mesh": self.mesh, "name": self.label(rank),
            "mesh_name": self.name, "sizes": dict(self.whole.sizes), "rank": rank, "setup": self.setup, "actors": [],
        }  # fmt: skip
        return pickle.dumps(spec, 5), environ if cold else None, command

    def of_spare(self, number: int) -> tuple[int, str, bytes, dict[str, str] | None, list[str] | None]:
        """The same for a spare, behind its id and its name: what depends on a rank it gets with that."""
        label = f"{self.name} spare {number}"
        environ, cold = self._environ(None if callable(self.env) else self.env, label)
        command = _command(self.start)
        cold = cold or self.start != "template"
        differs = callable(self.env) or callable(self.bind) or self.gpus_per_proc is not None
        if cold and differs:
            raise ValueError(
                f"{label} would have to be executed with the environment of a rank that is not known yet: spares of ranks that "
                "differ (gpus_per_proc=, or env= or bind= as functions) need the template, so no start= and no variable that "
                "is read when a process starts"
            )
        proc = new_id()
        spec = {
            **self._shared(proc, environ, None if callable(self.bind) else self.bind), "name": label, "rank": None,
            # It may depend on what the rank has for itself, and is run with that then.
            "setup": None if differs else self.setup,
        }  # fmt: skip
        return proc, label, pickle.dumps(spec, 5), environ if cold else None, command

    def _environ(self, changes: Any, whose: str) -> tuple[dict[str, str], bool]:
        """The environment with these changes, and whether it has to be there from the first instruction on."""
        environ = dict(self.environ)
        cold = False
        if changes is not None and not isinstance(changes, Mapping):
            raise TypeError(
                f"env={changes!r} for {whose}: give a mapping of names to values, or a function that returns one"
            )
        for key, value in (changes or {}).items():
            if not isinstance(key, str) or not isinstance(value, str | None):
                raise TypeError(f"env: {key!r}: {value!r} for {whose}; names and values are strings, None removes one")
            cold = cold or (key.startswith(_START_ONLY) and environ.get(key) != value)
            if value is None:
                environ.pop(key, None)
            else:
                environ[key] = value
        return environ, cold

    def _shared(self, proc: int, environ: dict[str, str], bind: object) -> dict[str, Any]:
        """What ranks and spares are told alike."""
        return {
            "job": self.runtime.job_id, "proc": proc, "owner": self.runtime.proc,
            "owner_incarnation": self.runtime.incarnation, "driver": self.runtime.driver, "host": self.runtime.host_id,
            "sys_path": self.sys_path, "argv": self.argv, "cwd": self.cwd, "environ": environ, "preload": list(self.preload),
            "config": self.runtime.config.as_builtins(), "cpus": _cpus(bind),
        }  # fmt: skip


def _working_directory() -> str:
    """Where procs start: where this process is."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        _logger.warning("this program's working directory was removed: its procs start in /")
        return "/"


def _check_takes(what: str, function: Callable[..., object], names: tuple[str, ...]) -> None:
    """Refuse a function that takes other arguments: it would be found out at a restart, or by another process."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except ValueError:
        # Some functions that are written in C do not say.
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        given = f"with ({', '.join(names)})" if names else "without arguments"
        shown = f"{getattr(function, '__qualname__', repr(function))}{signature}"
        raise TypeError(f"{what}= is called {given}, and {shown} does not take that: {error}") from None


def _checked_setup(setup: object) -> object:
    if not callable(setup):
        raise TypeError(
            f"setup={setup!r}: give a function without arguments, which each proc runs before any actor, not what it returns"
        )
    _check_takes("setup", setup, ())
    return setup


def _command(start: object) -> list[str] | None:
    """The words that stand for the interpreter; None when they are its own."""
    if start in ("template", "exec"):
        return None
    if isinstance(start, str) or not isinstance(start, Sequence) or not start:
        raise ValueError(f'start={start!r}: give "template", "exec", or a command as a list of words')
    return [str(word) for word in start]


def _cpus(bind: object) -> list[int] | None:
    """The CPUs to run on: those given, else those of the NUMA node."""
    if bind is None:
        return None
    if not isinstance(bind, Bind):
        raise TypeError(
            f"bind={bind!r}: give a roost.Bind(cpus=[…]) or roost.Bind(numa_node=…), or a function that returns one"
        )
    if bind.cpus:
        wanted = list(bind.cpus)
    elif bind.numa_node is not None:
        path = f"/sys/devices/system/node/node{bind.numa_node}/cpulist"
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            raise ValueError(f"Bind(numa_node={bind.numa_node}): this host has no such node ({path})") from None
        wanted = []
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            wanted += range(int(first), int(last or first) + 1)
    else:
        return None
    missing = sorted(set(wanted) - os.sched_getaffinity(0))
    if missing:
        raise ValueError(
            f"Bind: CPUs {missing} are not there for this process, which may run on {sorted(os.sched_getaffinity(0))}"
        )
    return wanted
