"""`LocalHost`: stands for the host's agent where procs live in the process of a test: starts, ends and restarts them there.

The rules are the agent's (`rust/roost-core/src/agent/`), told by the same notices; what they lead to, from the errors of
callers to the hooks of owners, is done by the same code as for processes. A test holds the two against each other.
"""

from __future__ import annotations

import asyncio
import os
import signal as signals
import socket
import time
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, cast

from roost import process, serialize, serving
from roost.context import handling
from roost.ids import chance
from roost.local_proc import LocalControl, LocalProc, LocalRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from roost._roost import Control
    from roost.context import Handling
    from roost.local_proc import Notice
    from roost.runner import Runner
    from roost.runtime import Runtime

__all__ = ["LocalHost"]

# Whose code runs where no actor's does: a proc's `setup`.
_place: ContextVar[Runtime | None] = ContextVar("roost_local_proc", default=None)


class LocalHost:
    """All procs of a job that live in the driver's process."""

    def __init__(self, driver: Runtime) -> None:
        self._driver = driver
        self._loop = driver.loop
        self._home = serialize.home(driver.proc, driver.incarnation)
        self._procs: dict[int, LocalProc] = {}
        self._lanes: set[frozenset[int]] = set()
        self._spawned = 0
        self._is_telling = False
        # How many blocks want every proc to be local.
        self.takes_all = 0
        self.epoch = driver.node.epoch
        self._control = LocalControl(self, driver.proc, driver.control)
        driver.control = cast("Control", self._control)
        self._factory_before = self._loop.get_task_factory()
        self._loop.set_task_factory(self._make_task)
        process.choose_by(_running)

    @classmethod
    def of(cls, runtime: Runtime) -> LocalHost:
        """The local host of a process's job, made at first use."""
        control: Any = runtime.control
        return control._host if isinstance(control, LocalControl) else cls(runtime)

    def has(self, proc: int) -> bool:
        """Whether it is one of these."""
        return proc in self._procs

    def close(self) -> None:
        """The job ends: so do they, at once."""
        process.choose_by(None)
        if not self._loop.is_closed():
            self._loop.set_task_factory(self._factory_before)
        for proc in self._procs.values():
            proc.cancel_timer()
            runtime, proc.runtime = proc.runtime, None
            if runtime is not None:
                runtime.perish()
            if proc.task is not None:
                proc.task.cancel()
            proc.close_page()

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> Any:
        """Know whose task a task is: it ends with its proc."""
        make = self._factory_before
        task: Any = asyncio.Task(coroutine, loop=loop, **options) if make is None else make(loop, coroutine, **options)
        scope: Context | None = options.get("context")
        runtime = _running() if scope is None else _runtime_of(scope.get(handling), scope.get(_place))
        if isinstance(runtime, LocalRuntime):
            runtime.tasks.add(task)
            task.add_done_callback(runtime.tasks.discard)
        return task

    # Telling -----------------------------------------------------------------------------------------------------------
    def set_epoch(self, epoch: int) -> None:
        """Processes came or went: whatever the driver sends from now on says so."""
        self.epoch = epoch
        for proc in self._procs.values():
            if proc.runtime is not None:
                proc.runtime.node.set_epoch(epoch)

    def tell(self, to: int, notice: Notice) -> None:
        """Give a notice to a proc that can hear it, or to the driver."""
        control = self._control_of(to)
        if control is None:
            if notice[0] in ("connected", "segment"):
                os.close(notice[3] if notice[0] == "connected" else notice[4])
            return
        control.push(notice)
        if not self._is_telling:
            self._is_telling = True
            self._loop.call_soon(self._bring, context=Context())

    def _control_of(self, proc: int) -> LocalControl | None:
        if proc == self._driver.proc:
            return self._control
        known = self._procs.get(proc)
        return known.runtime.local if known is not None and known.runtime is not None else None

    def _bring(self) -> None:
        self._is_telling = False
        everybody: list[Runtime | None] = [self._driver, *(proc.runtime for proc in self._procs.values())]
        for runtime in everybody:
            if runtime is not None and not runtime.closed and runtime.control.has_notices:  # type: ignore[attr-defined]
                runtime.members.on_notices()

    def _announce(self, about: LocalProc, status: str, details: dict[str, Any], *, death: bool = False) -> None:
        """Tell a change to everybody; of a death, each hears which of its messages were started."""
        for to in (self._driver.proc, *(proc.id for proc in self._procs.values() if proc.is_alive)):
            mine = {**details, "started": about.started(to)} if death else details
            self._tell_member(to, about, status, mine)

    def _tell_member(self, to: int, about: LocalProc, status: str, details: dict[str, Any]) -> None:
        self.tell(to, ("member", about.id, about.incarnation, status, details))

    def _announce_start(self, proc: LocalProc, status: str, details: dict[str, Any]) -> None:
        """A first start concerns the owner alone."""
        if proc.incarnation:
            self._announce(proc, status, details)
        else:
            self._tell_member(proc.owner, proc, status, details)

    # Starting ----------------------------------------------------------------------------------------------------------
    def spawn(self, mesh: int, ranks: Sequence[Any], policy: Any, owner: int) -> None:
        """Start the procs of one mesh."""
        for rank in ranks:
            proc = self._procs[rank[0]] = LocalProc(self._spawned, mesh, owner, rank, policy)
            self._spawned += 1
            self._begin(proc)

    def _begin(self, proc: LocalProc) -> None:
        page = proc.renew()
        actors = [mesh for mesh, _, _ in proc.recorded]
        self._announce_start(proc, "starting", {"times": proc.times, "actors": actors})
        control = LocalControl(self, proc.id)
        scope = Context()
        spec = proc.spec()
        runtime = proc.runtime = LocalRuntime(spec, control, self._loop, self._home)
        runtime.node.set_epoch(self.epoch)
        scope.run(serving.open_proc, runtime, spec, page)
        runtime.stopping = _Stopping(lambda: self._follow(proc, self._finish(proc, runtime), scope))
        near, far = _pair()
        proc.slot_for(proc.owner)
        self._lanes.add(frozenset((proc.id, proc.owner)))
        slot = self._slot(proc.owner, proc.id)
        self.tell(proc.owner, ("connected", proc.id, proc.incarnation, near.detach(), slot))
        scope.run(_place.set, runtime)
        self._follow(proc, self._start(proc, runtime, spec, far), scope)

    def _follow(self, proc: LocalProc, steps: Coroutine[Any, Any, None], scope: Context) -> None:
        # No task waits for the end: a loop that ends cancels all tasks, and then stops procs in order.
        proc.task = self._loop.create_task(steps, context=scope)

    async def _start(self, proc: LocalProc, runtime: LocalRuntime, spec: dict[str, Any], data: socket.socket) -> None:
        """How an incarnation begins, as `serving` has it in a process."""
        fd = data.detach()
        if not await serving.begin(runtime, spec, fd):
            os.close(fd)
            self._end(proc, runtime, exit_code=1)

    async def _finish(self, proc: LocalProc, runtime: LocalRuntime) -> None:
        """How it ends that was told to, or exits."""
        await serving.end(runtime)
        self._end(proc, runtime, exit_code=runtime.exit_code or 0)

    def up(self, id: int) -> None:  # noqa: A002 - as everywhere here
        """A proc says that it is ready."""
        proc = self._procs[id]
        proc.phase = "up"
        proc.times["up_at"] = time.time()
        if proc.ending is None:
            self._announce_start(proc, "up", {"times": dict(proc.times), "pid": os.getpid()})
        waiting, proc.waiting = proc.waiting, []
        for source in waiting:
            self.connect(source, proc.id)

    def start_failed(self, id: int, text: str) -> None:  # noqa: A002
        """A proc says why it will not be ready."""
        self._procs[id].start_failure = text

    # Ending ------------------------------------------------------------------------------------------------------------
    def stop(self, id: int, reason: str, grace_s: float, sigterm_s: float) -> None:  # noqa: A002
        """End it for good, whatever it is doing."""
        proc = self._procs[id]
        if proc.phase == "down":
            proc.cancel_timer()
            proc.ending = (reason, False)
            self._tell_death(proc, None, None, "")
        elif proc.runtime is not None:
            self._end_running(proc, reason, grace_s, sigterm_s, again=False)

    def restart(self, id: int, reason: str, grace_s: float, sigterm_s: float) -> None:  # noqa: A002
        """End it, then start the next incarnation; a stop that is under way wins."""
        proc = self._procs[id]
        if proc.phase == "down":
            proc.cancel_timer()
            self._start_next(proc)
        elif proc.phase == "over":
            proc.ending, proc.phase = None, "down"
            proc.forget_deaths()
            self._announce(proc, "restarting", {"delay_s": 0.0, "reason": reason})
            self._start_next(proc)
        elif proc.runtime is not None:
            self._end_running(proc, reason, grace_s, sigterm_s, again=True)

    def _end_running(self, proc: LocalProc, reason: str, grace_s: float, sigterm_s: float, *, again: bool) -> None:
        first, was_again = proc.ending or (reason, again)
        proc.ending = (first, was_again and again)
        self.tell(proc.id, ("stop", first, time.monotonic() + grace_s))
        proc.cancel_timer()
        proc.timer = self._loop.call_later(grace_s + sigterm_s, self._force, proc)

    def _force(self, proc: LocalProc) -> None:
        """It has not ended in time."""
        proc.forced = True
        self.kill(proc.id, signals.SIGKILL)

    def kill(self, id: int, signal: int, reason: str | None = None) -> None:  # noqa: A002
        """End it at once, as by a signal. What follows is the policy's to decide."""
        proc = self._procs[id]
        if proc.runtime is not None:
            self._end(proc, proc.runtime, signal=signal, because=reason)

    def _end(
        self, proc: LocalProc, runtime: LocalRuntime, *, exit_code: int | None = None, signal: int | None = None,
        because: str | None = None,
    ) -> None:  # fmt: skip
        if proc.runtime is not runtime:
            return
        proc.runtime = None
        proc.cancel_timer()
        runtime.perish()
        if proc.task is not None and exit_code is None:
            proc.task.cancel()
        self._lanes = {lane for lane in self._lanes if proc.id not in lane}
        how = f"exited with code {exit_code}" if signal is None else f"killed by {_signal_name(signal)}"
        self._tell_death(proc, exit_code, signal, f"{how}: {because}" if because else how)

    def _tell_death(self, proc: LocalProc, exit_code: int | None, signal: int | None, how: str) -> None:
        """Tell everybody, and decide what comes next."""
        now = time.time()
        proc.times.setdefault("died_at", now)
        kind, reason = _kind(proc, signal, how)
        death = {
            "kind": kind, "exit_code": exit_code, "signal": signal, "reason": reason, "stderr": "", "pid": os.getpid(),
            "times": {**proc.times, "detected_at": now}, "forced": proc.forced,
        }  # fmt: skip
        clean = kind == "exit" and exit_code == 0
        again, delay_s = False, 0.0
        if proc.ending is not None:
            again = proc.ending[1]
        elif proc.history is not None:
            decided = proc.history.decide(self._loop.time(), clean, chance())
            again, delay_s = decided is not None, decided or 0.0
        if again:
            self._tell_restart(proc, death, delay_s)
        else:
            self._tell_end(proc, death, "stopped" if clean or proc.ending is not None else "failed")
        proc.close_page()
        self._stop_owned(proc)

    def _tell_restart(self, proc: LocalProc, death: dict[str, Any], delay_s: float) -> None:
        by_policy = proc.ending is None
        if by_policy:
            proc.earlier.append(death)
        proc.phase = "down"
        self._announce(proc, "dead", death, death=True)
        self._announce(proc, "restarting", {"delay_s": delay_s, "reason": death["reason"]})
        scope = proc.policy[4] if by_policy and proc.policy is not None else "one"
        for other in list(self._procs.values()):
            concerned = scope == "all" or (scope == "rest" and other.number > proc.number)
            if concerned and other.mesh == proc.mesh and other is not proc and other.is_alive:
                config = self._driver.config
                self.restart(other.id, f"starts again together with {proc.label}", config.grace_s, config.sigterm_s)
        proc.timer = self._loop.call_later(delay_s, self._start_next, proc)

    def _start_next(self, proc: LocalProc) -> None:
        proc.timer = None
        proc.incarnation += 1
        self._begin(proc)

    def _tell_end(self, proc: LocalProc, death: dict[str, Any], status: str) -> None:
        proc.phase = "over"
        details = death if status == "stopped" else {**death, "reasons": proc.earlier}
        proc.earlier = []
        proc.last = ("member", proc.id, proc.incarnation, status, {**details, "started": None})
        self._announce(proc, status, details, death=True)
        waiting, proc.waiting = proc.waiting, []
        for source in waiting:
            self._refuse(source, proc.id, f"{proc.label} has ended")
        self._tell_member(proc.owner, proc, "gone", {})

    def _stop_owned(self, owner: LocalProc) -> None:
        """What it spawned does not outlive it."""
        config = self._driver.config
        for proc in reversed(list(self._procs.values())):
            if proc.owner == owner.id:
                self.stop(proc.id, f"its owner {owner.label} ended", config.grace_s, config.sigterm_s)
            proc.forget_of(owner.id)

    # Connections -------------------------------------------------------------------------------------------------------
    def connect(self, source: int, target: int) -> None:
        """One wants to talk to another."""
        if frozenset((source, target)) in self._lanes:
            return
        proc = self._procs.get(target)
        if target == self._driver.proc or (proc is not None and proc.is_alive):
            self._connect(source, target)
        elif proc is None:
            self._refuse(
                source,
                target,
                "it is a process, which procs that live in a test's process cannot reach; spawn it inside `with in_process():` too, "
                "or, when it is a service, make it by `procs.get_or_spawn(…)` of local procs before others ask for it",
            )
        elif proc.phase == "over":
            self.tell(source, proc.last)
            self._refuse(source, target, f"{proc.label} has ended")
        else:
            proc.waiting.append(source)

    def _connect(self, source: int, target: int) -> None:
        self._lanes.add(frozenset((source, target)))
        for one, other, end in zip((source, target), (target, source), _pair(), strict=True):
            self.tell(one, ("connected", other, self._incarnation(other), end.detach(), self._slot(one, other)))

    def _refuse(self, source: int, target: int, reason: str) -> None:
        self.tell(source, ("connect_failed", target, reason))

    def _incarnation(self, proc: int) -> int:
        known = self._procs.get(proc)
        return 0 if known is None else known.incarnation

    def _slot(self, proc: int, peer: int) -> int | None:
        known = self._procs.get(proc)
        return None if known is None else known.slot_for(peer)

    def offer(self, source: int, to: int, segment: tuple[int, int, int]) -> None:
        """Pass shared memory on."""
        number, size, fd = segment
        if self._control_of(to) is None:
            self.tell(source, ("segment_ack", to, number, False))
        else:
            self.tell(to, ("segment", source, number, size, os.dup(fd)))

    def look(self, source: int, to: int, mesh: int) -> None:
        """What actors of a proc do."""
        known = self._procs.get(to)
        seen = [] if known is None or known.runtime is None else known.runtime.node.look(mesh)
        self.tell(source, ("seen", to, mesh, seen))

    # Recorded actors ---------------------------------------------------------------------------------------------------
    def record(self, owner: int, id: int, mesh: int, constructors: bytes) -> None:  # noqa: A002
        """Keep what makes actors, for later incarnations."""
        self._procs[id].recorded.append((mesh, owner, constructors))

    def forget(self, id: int, mesh: int) -> None:  # noqa: A002
        """These actors are not made again."""
        self._procs[id].forget(mesh)


class _Stopping(asyncio.Event):
    """Tells at once that it was set."""

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self._told = told

    def set(self) -> None:
        """The proc is to stop."""
        if not self.is_set():
            super().set()
            self._told()


def _running() -> Runtime | None:
    """The runtime of the local proc whose code runs now; None for the driver's own."""
    return _runtime_of(handling.get(), _place.get())


def _runtime_of(now: Handling | None, place: Runtime | None) -> Runtime | None:
    # A message of an actor that has ended has no runner any more.
    runner: Runner | None = None if now is None else now.runner
    return place if runner is None else runner.hosted.runtime


def _pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a data lane."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


def _signal_name(number: int) -> str:
    try:
        return f"signal {int(number)} ({signals.Signals(number).name})"
    except ValueError:
        return f"signal {int(number)}"


def _kind(proc: LocalProc, signal: int | None, how: str) -> tuple[str, str]:
    """The kind of a death, and its reason."""
    if proc.ending is not None:
        return "stopped", proc.ending[0]
    if proc.start_failure is not None:
        return "start", proc.start_failure
    if "up_at" not in proc.times:
        return "start", f"{how} before it was ready"
    return ("exit" if signal is None else "signal"), how
