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
from roost._proc import ADDED, AGENTS_OWN
from roost.failure import Bind
from roost.ids import new_id
from roost.placing import checked_bind, cpus_of, search_path_elsewhere
from roost.point import Point, rank_name
from roost.values import check_integer

if TYPE_CHECKING:
    from roost.runtime import Runtime
    from roost.shape import Shape

__all__ = ["Env", "Request"]

_logger = logging.getLogger("roost")

# Read by the interpreter, the loader or a preloaded library when the process starts: a forked proc comes too late for them.
_START_ONLY = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_")

# What says which devices a process sees. ROCR_VISIBLE_DEVICES stays as it is: HIP counts what that leaves.
_DEVICES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")

# What a proc is started with, before its host is known and after it: its spec, its whole environment for a cold start or None,
# what stands for its interpreter or None.
Start = tuple[dict[str, Any], dict[str, str] | None, list[str] | None]
Packed = tuple[bytes, dict[str, str] | None, list[str] | None]

Env = Mapping[str, str | None] | Callable[[Point, int], Mapping[str, str | None]]


class Request:
    """What each proc of a mesh is started with."""

    mesh: int
    procs: tuple[int, ...]
    # The id and the name of each host, in rank order; known once all have joined.
    hosts: Sequence[tuple[int, str]]

    def __init__(
        self, runtime: Runtime, name: str, whole: Shape, per: int, env: Any, preload: tuple[str, ...], bind: Any, start: Any,
        gpus_per_proc: int | None, setup: Any, *, is_here: bool,
    ) -> None:  # fmt: skip
        for what, function in (("env", env), ("bind", bind), ("start", start)):
            if callable(function):
                _check_takes(what, function, ("point", "incarnation"))
        if gpus_per_proc is not None:
            check_integer("spawn_procs", "gpus_per_proc", gpus_per_proc, least=0, instead="0 shows a proc no device")
        self.runtime = runtime
        self.name = name
        self.whole = whole
        # Ranks on each host.
        self.per = per
        # Whether they are on this process's own host, and have its surroundings.
        self.is_here = is_here
        self.env = env
        self.preload = preload
        self.bind = bind
        self.start = start
        self.gpus_per_proc = gpus_per_proc
        self.setup = None if setup is None else serialize.dumps_alone(_checked_setup(setup))
        self.environ = dict(os.environ)
        self.sys_path = list(sys.path) if is_here else [ADDED, *search_path_elsewhere(sys.path)]
        self.argv = list(sys.argv)
        self.cwd = _working_directory()
        self.commands: dict[int, list[str]] = {}
        # Ranks that their policy has moved, and the hosts that they are on now.
        self.moved: dict[int, tuple[int, str]] = {}

    def label(self, rank: int) -> str:
        """The name of a rank."""
        return rank_name(self.name, self.whole.point(rank))

    def host(self, rank: int) -> tuple[int, str]:
        """The id and the name of a rank's host."""
        return self.moved.get(rank) or self.hosts[rank // self.per]

    def settle(self, rank: int, host: int) -> None:
        """A rank starts on this host: its policy may have moved it."""
        if self.host(rank)[0] != host:
            self.moved[rank] = host, self.runtime.hosts.names.get(host, "")

    def template(self) -> tuple[list[str], list[str], dict[str, str]]:
        """What the template that forks these procs imports, and where and with which environment it does.

        On another host it has the environment of the agent there, which an empty one stands for.
        """
        return list(self.preload), self.sys_path, self.environ if self.is_here else {}

    def of_proc(self, proc: int, incarnation: int) -> Packed:
        """What the next incarnation of a proc is started with, when that is a function."""
        rank = self.procs.index(proc)
        return self.packed(rank, self.of(rank, incarnation))

    def packed(self, rank: int, start: Start) -> Packed:
        """The same as `of`, once it is known where."""
        spec, environ, command = start
        spec["host"], spec["host_name"] = self.host(rank)
        return pickle.dumps(spec, 5), environ, command

    def packed_spare(
        self, spare: tuple[int, str, Start], host: tuple[int, str]
    ) -> tuple[int, str, bytes, dict[str, str] | None, list[str] | None, int]:
        """The same for a spare, as the agent takes it."""
        proc, label, (spec, environ, command) = spare
        spec["host"], spec["host_name"] = host
        return proc, label, pickle.dumps(spec, 5), environ, command, host[0]

    def of(self, rank: int, incarnation: int) -> Start:
        """What a rank is started with; its host is still to be added."""
        point = self.whole.point(rank)

        def at(value: Any) -> Any:
            return value(point, incarnation) if callable(value) else value

        changes, cold = self._changes(at(self.env), self.label(rank))
        if self.gpus_per_proc is not None:
            changes.update({name: self._devices(name, rank, self.gpus_per_proc) for name in _DEVICES})
        start = at(self.start)
        command = _command(start)
        cold = cold or start != "template"
        if command is not None:
            self.commands[rank] = command
        bind = at(self.bind)
        spec = {
            **self._shared(self.procs[rank], changes, bind), "mesh": self.mesh, "name": self.label(rank),
            "mesh_name": self.name, "sizes": dict(self.whole.sizes), "rank": rank, "setup": self.setup, "actors": [],
            # Said once on each host.
            "says_folder": rank % self.per == 0,
        }  # fmt: skip
        return spec, self._whole_environ(changes) if cold else None, command

    def _devices(self, name: str, rank: int, count: int) -> str:
        """A rank's share of the devices, out of those that a scheduler has given to this process, where it has said which."""
        first = rank % self.per * count
        given = [one.strip() for one in self.environ.get(name, "").split(",") if one.strip()] if self.is_here else []
        if not given:
            return ",".join(str(first + index) for index in range(count))
        if first + count > len(given):
            raise ValueError(
                f"gpus_per_proc={count}: {self.label(rank)} would need devices {first} to {first + count - 1} of this host, and "
                f"{name}={self.environ[name]} has {len(given)}; spawn fewer procs, or give them less"
            )
        return ",".join(given[first : first + count])

    def of_spare(self, number: int) -> tuple[int, str, Start]:
        """The same for a spare, behind its id and its name: what depends on a rank it gets with that."""
        label = f"{self.name} spare {number}"
        changes, cold = self._changes(None if callable(self.env) else self.env, label)
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
        # Which GPUs it sees depends on its rank, too.
        waits = callable(self.bind) or (differs and isinstance(self.bind, Bind) and self.bind.near_gpu)
        bind = None if waits else self.bind
        spec = {
            **self._shared(proc, changes, bind), "name": label, "rank": None,
            # It may depend on what the rank has for itself, and is run with that then.
            "setup": None if differs else self.setup, "says_folder": False,
        }  # fmt: skip
        return proc, label, (spec, self._whole_environ(changes) if cold else None, command)

    def _changes(self, changes: Any, whose: str) -> tuple[dict[str, str | None], bool]:
        """These changes of the environment, and whether they have to be there from the first instruction on."""
        if changes is not None and not isinstance(changes, Mapping):
            raise TypeError(
                f"env={changes!r} for {whose}: give a mapping of names to values, or a function that returns one"
            )
        cold = False
        for key, value in (changes or {}).items():
            if not isinstance(key, str) or not isinstance(value, str | None):
                raise TypeError(f"env: {key!r}: {value!r} for {whose}; names and values are strings, None removes one")
            # What another host's agent has for it is not known here.
            is_new = not self.is_here or self.environ.get(key) != value
            cold = cold or (key.startswith(_START_ONLY) and is_new)
        return dict(changes or {}), cold

    def _whole_environ(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """The environment with these changes; for another host, where it is not known, what tells of them."""
        if self.is_here:
            return changed(self.environ, changes)
        told = {f"{'-' if value is None else '+'}{name}": value or "" for name, value in changes.items()}
        return {AGENTS_OWN: "", **told}

    def _shared(self, proc: int, changes: Mapping[str, str | None], bind: object) -> dict[str, Any]:
        """What ranks and spares are told alike."""
        bind = checked_bind(bind)
        # CPUs are known here if they are this host's, and GPUs to the proc alone, which sees its own.
        is_known_here = self.is_here and bind is not None and not bind.near_gpu
        return {
            "job": self.runtime.job_id, "proc": proc, "owner": self.runtime.proc,
            "owner_incarnation": self.runtime.incarnation, "driver": self.runtime.driver,
            "sys_path": self.sys_path, "argv": self.argv, "cwd": self.cwd, "preload": list(self.preload),
            "config": self.runtime.config.as_builtins(),
            # Where the environment is not known, only what changes in it; and what is asked for, where CPUs are not.
            "environ": changed(self.environ, changes) if self.is_here else None,
            "changes": None if self.is_here else dict(changes),
            "cpus": cpus_of(bind) if is_known_here and bind is not None else None,
            "bind": None if is_known_here or bind is None else (tuple(bind.cpus), bind.numa_node, bind.near_gpu),
        }  # fmt: skip


def changed(environ: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """An environment with changes; None removes a name."""
    whole = {**environ, **changes}
    return {name: value for name, value in whole.items() if value is not None}


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
