"""`LocalProc`: one proc of `roost.testing` that lives in the process of the test, on the test's own event loop."""

from __future__ import annotations

import asyncio
import mmap
import os
import pickle
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from roost import serialize
from roost._roost import History
from roost.lane import Lent
from roost.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost._roost import Control
    from roost.local_host import LocalHost

__all__ = ["LocalControl", "LocalProc", "LocalRuntime"]

# As limits.rs has it: places in the page of started numbers, each a u64.
_STARTED_SLOTS = 8192
_STARTED = struct.Struct("<Q")

Notice = tuple[Any, ...]


class LocalProc:
    """What the local host knows of one proc, in all its incarnations."""

    def __init__(self, number: int, mesh: int, owner: int, rank: Sequence[Any], policy: Any) -> None:
        self.id, self.label, self._spec = rank[0], rank[1], rank[2]
        # Its place in the order of all spawns.
        self.number = number
        self.mesh = mesh
        self.owner = owner
        self.policy = policy
        self.forget_deaths()
        # Constructors to run again: their mesh, the proc of its owner, and what makes the actors.
        self.recorded: list[tuple[int, int, bytes]] = []
        self.incarnation = 0
        # starting → up → down → starting …, or over.
        self.phase = "starting"
        self.runtime: LocalRuntime | None = None
        self.task: asyncio.Task[None] | None = None
        # The next thing that its time brings: a start after a pause, the end of a stop's patience.
        self.timer: asyncio.TimerHandle | None = None
        # Why it was told to end, and whether the next incarnation follows.
        self.ending: tuple[str, bool] | None = None
        # Whether it did not end by itself when it was told to.
        self.forced = False
        self.start_failure: str | None = None
        self.times: dict[str, float] = {}
        # What was told of its end, for those who ask later.
        self.last: Notice = ()
        # Who waits for a connection until it is there.
        self.waiting: list[int] = []
        # By peer: the place in the page of started numbers for what that sends.
        self._slots: dict[int, int] = {}
        self._next_slot = 0
        self._page: mmap.mmap | None = None

    def forget_deaths(self) -> None:
        """Begin a new history: what the policy has seen, and the deaths that it mended."""
        self.history = None if self.policy is None else History(self.policy)
        self.earlier: list[dict[str, Any]] = []

    @property
    def is_alive(self) -> bool:
        """Whether it hears."""
        return self.runtime is not None

    def spec(self) -> dict[str, Any]:
        """What its next incarnation is made from."""
        spec: dict[str, Any] = pickle.loads(self._spec)
        return {
            **spec,
            "incarnation": self.incarnation,
            "actors": [constructors for _, _, constructors in self.recorded],
        }

    def renew(self) -> int:
        """A new incarnation, of which nothing has happened yet; gives its page of started numbers."""
        self.phase, self.ending, self.start_failure, self.forced = "starting", None, None, False
        self.times = {"started_at": time.time()}
        self._slots, self._next_slot = {}, 0
        page = os.memfd_create("roost-started")
        # As large again, for what is said to other hosts, of which there are none.
        os.ftruncate(page, 2 * _STARTED_SLOTS * _STARTED.size)
        self._page = mmap.mmap(page, 0)
        return page

    def slot_for(self, peer: int) -> int:
        """The next place in the page, for what this peer sends."""
        slot = self._slots[peer] = self._next_slot
        self._next_slot = (slot + 1) % _STARTED_SLOTS
        return slot

    def started(self, peer: int) -> int | None:
        """The last message of this peer's that was started."""
        slot = self._slots.get(peer)
        if slot is None or self._page is None:
            return None
        number: int = _STARTED.unpack_from(self._page, slot * _STARTED.size)[0]
        return number

    def close_page(self) -> None:
        """Its end has been told."""
        if self._page is not None:
            self._page.close()
            self._page = None

    def forget(self, mesh: int) -> None:
        """These actors are not made again: their mesh has ended."""
        self.recorded = [one for one in self.recorded if one[0] != mesh]

    def forget_of(self, owner: int) -> None:
        """The same for all that the actors of a proc owned, which has ended."""
        self.recorded = [one for one in self.recorded if one[1] != owner]

    def cancel_timer(self) -> None:
        """Nothing is to come by itself any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class LocalRuntime(Runtime):
    """The runtime of a proc that shares process and loop with the driver."""

    def __init__(
        self, spec: dict[str, Any], control: LocalControl, loop: asyncio.AbstractEventLoop, home: bytes
    ) -> None:
        super().__init__(
            job=spec["job"], proc=spec["proc"], incarnation=spec["incarnation"], name=spec["name"], owner=spec["owner"],
            driver=spec["driver"], control=cast("Control", control), loop=loop, host=(spec["host"], spec["host_name"]),
        )  # fmt: skip
        # Classes that the process defines are one and the same in all its procs.
        serialize.set_home(home)
        self.local = control
        # All tasks of its actors' own.
        self.tasks: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """Join the loop; notices are brought by the local host."""
        self.node.open(Lent(self))

    def close_proc(self) -> None:
        """The end in order."""
        self.workers.end()
        self.node.flush()
        self._close()
        self.letters.close()

    def perish(self) -> None:
        """The end as by a signal: nobody hears anything more from it."""
        if self.closed:
            # It has ended in order, and is at its last step: with the process its tasks would be gone.
            self._cancel_tasks(asyncio.current_task())
            return
        # What goes by these finds that there is nobody to tell and nothing to wait for.
        self.exit_code = -1
        self.stop_deadline = 0.0
        for hosted in self.hosting.meshes.values():
            for runner in [cell.runner for cell in hosted.cells]:
                if runner is not None:
                    runner.abandon()
        self._close()
        self.workers.abandon()
        self._cancel_tasks(None)

    def _cancel_tasks(self, spared: asyncio.Task[Any] | None) -> None:
        for task in list(self.tasks):
            if task is not spared:
                task.cancel()

    def _close(self) -> None:
        self.closed = True
        self.node.close()
        self.sharing.close()
        self.local.close()


class LocalControl:
    """What stands for the control thread of the driver, and of each local proc: requests go to the local host."""

    # What a process of its own would have.
    stack_fd: int | None = None

    def __init__(self, host: LocalHost, proc: int, real: Control | None = None) -> None:
        self._host = host
        self._proc = proc
        # The driver's control thread, for procs that are processes.
        self._real = real
        self._notices: deque[Notice] = deque()

    # Notices -----------------------------------------------------------------------------------------------------------
    @property
    def fd(self) -> int:
        """The descriptor that tells of the real one's notices."""
        assert self._real is not None
        return self._real.fd

    def push(self, notice: Notice) -> None:
        """Have something to say."""
        self._notices.append(notice)

    @property
    def has_notices(self) -> bool:
        """Whether there is something to say."""
        return bool(self._notices)

    def drain(self) -> list[Notice]:
        """All notices so far: those of the real control thread first."""
        notices = [] if self._real is None else self._real.drain()
        for notice in notices:
            if notice[0] in ("epoch", "member"):
                self._host.set_epoch(notice[1])
        while self._notices:
            notice = self._notices.popleft()
            # Local changes of membership make no epoch: whatever happens before one is seen before it, in one thread.
            notices.append(("member", self._host.epoch, *notice[1:]) if notice[0] == "member" else notice)
        return notices

    def close(self, timeout_s: float = 5.0) -> None:
        """Nobody hears any more."""
        while self._notices:
            notice = self._notices.popleft()
            if notice[0] in ("connected", "segment"):
                os.close(notice[3] if notice[0] == "connected" else notice[4])
        # With the last reference its descriptors go, whatever still holds this.
        real, self._real = self._real, None
        if real is not None:
            self._host.close()
            real.close(timeout_s)

    # Requests ----------------------------------------------------------------------------------------------------------
    def spawn_procs(
        self, mesh: int, name: str, ranks: Sequence[Any], template: Any, policy: Any, owner: int, logs: bool,
        ask: bool = False, spares: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """Start the procs of one mesh; local ones start at once, and need no spares."""
        if self._real is None or self._host.takes_all:
            self._host.spawn(mesh, ranks, policy, owner)
        else:
            self._real.spawn_procs(mesh, name, ranks, template, policy, owner, logs, ask, spares)

    def _split(self, procs: Sequence[int]) -> tuple[list[int], list[int]]:
        ours = [proc for proc in procs if self._host.has(proc)]
        return ours, [] if self._real is None else [proc for proc in procs if not self._host.has(proc)]

    def stop(self, procs: Sequence[int], reason: str, grace_s: float, sigterm_s: float) -> None:
        """End procs for good."""
        ours, others = self._split(procs)
        for proc in ours:
            self._host.stop(proc, reason, grace_s, sigterm_s)
        if others and self._real is not None:
            self._real.stop(others, reason, grace_s, sigterm_s)

    def restart(self, procs: Sequence[int], reason: str, grace_s: float, sigterm_s: float) -> None:
        """End procs, then start their next incarnation."""
        ours, others = self._split(procs)
        for proc in ours:
            self._host.restart(proc, reason, grace_s, sigterm_s)
        if others and self._real is not None:
            self._real.restart(others, reason, grace_s, sigterm_s)

    def kill(self, procs: Sequence[int], reason: str | None = None) -> None:
        """End procs at once."""
        ours, others = self._split(procs)
        for proc in ours:
            self._host.kill(proc, 9, reason)
        if others and self._real is not None:
            self._real.kill(others, reason)

    def die(self, signal: int, reason: str | None = None) -> None:
        """End this very proc, as by a signal."""
        self._host.kill(self._proc, signal, reason)

    def record_actors(self, records: Sequence[tuple[int, int, bytes, bytes]]) -> None:
        """Keep constructors' messages for later incarnations."""
        others = []
        for proc, mesh, plan, rest in records:
            if self._host.has(proc):
                self._host.record(self._proc, proc, mesh, plan + rest)
            else:
                others.append((proc, mesh, plan, rest))
        if others and self._real is not None:
            self._real.record_actors(others)

    def forget_actor(self, procs: Sequence[int], mesh: int) -> None:
        """Forget the constructors of this actor mesh."""
        ours, others = self._split(procs)
        for proc in ours:
            self._host.forget(proc, mesh)
        if others and self._real is not None:
            self._real.forget_actor(others, mesh)

    def connect(self, proc: int) -> None:
        """Ask for a connection."""
        if self._real is None or self._host.has(proc):
            self._host.connect(self._proc, proc)
        else:
            self._real.connect(proc)

    def segment_offer(self, to_proc: int, segment_id: int, size: int, fd: int) -> None:
        """Hand shared memory to a receiver."""
        if self._real is None or self._host.has(to_proc):
            self._host.offer(self._proc, to_proc, (segment_id, size, fd))
        else:
            self._real.segment_offer(to_proc, segment_id, size, fd)

    def segment_ack(self, to_proc: int, segment_id: int, ok: bool) -> None:
        """Say whether a segment was mapped."""
        if self._real is None or self._host.has(to_proc):
            self._host.tell(to_proc, ("segment_ack", self._proc, segment_id, ok))
        else:
            self._real.segment_ack(to_proc, segment_id, ok)

    def look(self, proc: int, mesh: int) -> None:
        """Ask what actors do."""
        if self._real is None or self._host.has(proc):
            self._host.look(self._proc, proc, mesh)
        else:
            self._real.look(proc, mesh)

    def up(self) -> None:
        """This proc is ready."""
        self._host.up(self._proc)

    def start_failed(self, text: str) -> None:
        """Why this proc will end without having been ready."""
        self._host.start_failed(self._proc, text)

    def __getattr__(self, name: str) -> Any:
        # Answers to what only the real one asks.
        return getattr(self.__dict__["_real"], name)
