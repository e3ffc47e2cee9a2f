"""The runtime of this process: joins the control thread, the data lane and the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import WeakSet

from roost import config as _config
from roost import process, serialize
from roost._roost import Node
from roost.calls import Calls
from roost.context import handling
from roost.dead_letters import DeadLetters, Job
from roost.echoes import Echoes
from roost.hearing import Hearing
from roost.hosting import Hosting
from roost.lane import Lent
from roost.membership import Members
from roost.news import News
from roost.ports import Ports, Streams
from roost.queues import Queues
from roost.sharing import Sharing
from roost.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

    from roost._roost import Control, Letters
    from roost.collectives.groups import Groups
    from roost.deadlocks import Deadlocks
    from roost.elsewhere import Elsewhere
    from roost.events import EventStream
    from roost.failure import Event, Failure
    from roost.hosts import Hosts
    from roost.looking import Looking
    from roost.mesh import Mesh
    from roost.owning import OwnedMesh
    from roost.rdma.transfers import Transfers
    from roost.runner import Runner

__all__ = ["Runtime"]

T = TypeVar("T")
R = TypeVar("R")

# Meshes that have ended and can still be asked for their states, or stopped once more.
_RETIRED_MAX = 1000

_logger = logging.getLogger("roost")

# Who handles Roost's own messages: a room of the runtime, and a method of it.
_SYSTEM_HANDLERS = {
    ".spawn": ("hosting", "spawn"), ".stop": ("hosting", "stop"), ".restart": ("hosting", "restart"),
    ".probe": ("hosting", "probe"), ".unhealthy": ("hosting", "unhealthy"), ".early": ("hosting", "early"),
    ".deadlock": ("deadlocks", "heard"), ".state": ("news", "hear"), ".letter": ("letters", "came_back"),
    ".streamed": ("streams", "took"), ".released": ("sharing", "given_back"),
    ".forgotten": ("sharing", "forget"), ".defines": ("sharing", "learn"),
}  # fmt: skip


class _Late(Generic[R]):
    """A room of the runtime that few processes need: imported and made at first use, once, whatever thread that is on.

    The first procs of a job wait for every module that their template imports. What deaths and lost messages need is no such
    room: where no descriptor is left, nothing can be imported.
    """

    _making = threading.RLock()

    def __init__(self, make: Callable[[Runtime], R]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, runtime: Runtime | None, _owner: type) -> R:
        if runtime is None:
            # Asked of the class, as `inspect` and `help` do.
            return self  # type: ignore[return-value]
        rooms = vars(runtime)
        with self._making:
            if self._name not in rooms:
                rooms[self._name] = self._make(runtime)
            room: R = rooms[self._name]
            return room


class Runtime:
    """One process's share of a job."""

    # Made at first use of one-sided memory.
    transfers: Transfers | None = None
    # The same of collectives.
    groups: Groups | None = None

    def __init__(
        self,
        *,
        job: bytes,
        proc: int,
        incarnation: int,
        name: str,
        owner: int,
        driver: int,
        control: Control,
        loop: asyncio.AbstractEventLoop,
        host: tuple[int, str],
    ) -> None:
        # The ids of what this process defines begin with it.
        serialize.set_home(serialize.home(proc, incarnation))
        self.job_id = job
        self.proc = proc
        self.incarnation = incarnation
        self.name = name
        self.owner = owner
        self.driver = driver
        self.control = control
        self.loop = loop
        self.thread = threading.get_ident()
        self.pid = os.getpid()
        # The id of this process's host, which is no address, and its name.
        self.host_id, self.host = host
        self.config = _config.current()
        self.node = Node(
            job, proc, incarnation, (sys.version_info.major, sys.version_info.minor), self.config.as_builtins()
        )
        # The rooms of the house.
        self.job = Job(self)
        self.calls = Calls(self)
        self.echoes = Echoes(self)
        self.members = Members(self)
        self.hearing = Hearing(self)
        self.letters = DeadLetters(self)
        self.ports = Ports(self)
        self.streams = Streams(self)
        self.sharing = Sharing(self)
        self.hosting = Hosting(self)
        self.news = News(self)
        self.queues = Queues(self)
        self.workers = Workers(self)
        self.owned: dict[int, OwnedMesh] = {}
        self._retired: deque[int] = deque()
        self.job_subscribers: WeakSet[EventStream] = WeakSet()
        # Constructors' messages that the host is to keep, until the end of this turn of the loop.
        self.unrecorded: list[tuple[int, int, bytes, bytes]] = []
        self._kept: set[asyncio.Task[Any]] = set()
        # The last hook before the root, of `roost.run`.
        self.root_supervise: Callable[[Failure], Any] | None = None
        # Set when this process, or the thread that drives the loop of a plain script, is to end.
        self.stopping: asyncio.Event | None = None
        self.stop_reason = ""
        # When SIGTERM comes, in seconds of the monotonic clock: one deadline for everything below.
        self.stop_deadline: float | None = None
        self.exit_code: int | None = None
        self.closed = False
        # Keeps the generator that ends the job with the loop, or the thread that drives it.
        self.guard: Any = None
        self.background: threading.Thread | None = None

    @_Late
    def elsewhere(self) -> Elsewhere:
        """The way from other threads to the loop."""
        from roost.elsewhere import Elsewhere

        return Elsewhere(self)

    @_Late
    def hosts(self) -> Hosts:
        """What this process knows of hosts other than its own."""
        from roost.hosts import Hosts

        return Hosts(self)

    @_Late
    def deadlocks(self) -> Deadlocks:
        """This process's part in finding calls that wait for themselves."""
        from roost.deadlocks import Deadlocks

        return Deadlocks(self)

    @_Late
    def looking(self) -> Looking:
        """What this process asks of others about the actors that it owns."""
        from roost.looking import Looking

        return Looking(self)

    @property
    def is_driver(self) -> bool:
        """Whether this process is the root of the job."""
        return self.driver == self.proc

    @property
    def ending(self) -> bool:
        """Whether this process is about to end: nothing starts in it any more."""
        return self.closed or (self.stopping is not None and self.stopping.is_set())

    def grace_left_s(self) -> float:
        """The time that a stop has which begins now."""
        if self.stop_deadline is None:
            return self.config.grace_s
        return max(0.0, self.stop_deadline - time.monotonic())

    def threads_wait_s(self) -> float:
        """How long the end of an actor waits for its threads: the rest of the grace is for its `__cleanup__`."""
        return max(0.0, self.grace_left_s() - self.config.cleanup_timeout_s)

    # Meshes that this process owns ---------------------------------------------------------------------------------------
    def own(self, record: OwnedMesh, handle: Mesh) -> None:
        """A mesh was asked for."""
        self.owned[record.id] = record
        if record.owner_runner is not None:
            record.owner_runner.owns(handle)

    def retire(self, record: OwnedMesh) -> None:
        """A mesh has ended for good: it is remembered until many others have."""
        self._retired.append(record.id)
        while len(self._retired) > _RETIRED_MAX:
            old = self.owned.get(self._retired.popleft())
            if old is not None and all(one.heard for one in old.all_unheard()):
                del self.owned[old.id]
                self.members.forget(old)

    # Life ----------------------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Join the loop of this thread."""
        self.node.open(Lent(self))
        self.loop.add_reader(self.control.fd, self.members.on_notices)

    def check_usable(self) -> None:
        """Refuse a forked child."""
        if os.getpid() != self.pid:
            raise RuntimeError("this process was forked from one that uses roost; roost works only in the parent")

    def on_loop(self, work: Callable[[], Any]) -> None:
        """Do it on the loop's thread: now when this is it, else in order with everything else from this thread."""
        if threading.get_ident() == self.thread:
            work()
        else:
            self.loop.call_soon_threadsafe(work)

    def refuse_on_loop(self, what: str, instead: str) -> None:
        """A blocking form on the loop's own thread."""
        from roost.errors import BlockingWaitError

        if threading.get_ident() == self.thread:
            raise BlockingWaitError(f"`{what}` would stop the event loop; write `{instead}`")

    def run_elsewhere(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it on this other thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def keep(self, work: Coroutine[Any, Any, Any], scope: Context | None = None) -> asyncio.Task[Any]:
        """Run a task of our own and hold on to it."""
        task = self.loop.create_task(work, context=scope)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task

    def handling_runner(self) -> Runner | None:
        """The actor whose code runs now; None in the driver."""
        now_handling = handling.get()
        return None if now_handling is None else now_handling.runner

    async def shut_down(self, reason: str) -> None:
        """Stop every mesh in order, then close; a second interruption kills what is left."""
        if self.closed:
            return
        self.workers.end()
        roots = [mesh for mesh in self.owned.values() if mesh.owner_runner is None and mesh.is_root]
        stops = [mesh.stop(mesh.whole, reason) for mesh in reversed(roots)]
        try:
            await asyncio.gather(*stops, return_exceptions=True)
            await self.hearing.settled()
        finally:
            self.close()

    def close(self) -> None:
        """End everything at once: what is left of the job is killed."""
        if self.closed:
            return
        self.closed = True
        self.letters.close()
        process.left_unheard.extend(self.hearing.take_unheard())
        if not self.loop.is_closed():
            self.loop.remove_reader(self.control.fd)
            self.node.close()
            if threading.get_ident() == self.thread:
                # Killed or not, nothing more is to be waited for.
                for mesh in list(self.owned.values()):
                    mesh.job_ended()
        for mesh in self.owned.values():
            mesh.mark_stopped("its job has ended")
        self.members.job_ended()
        self.sharing.close()
        if self.transfers is not None:
            self.transfers.close()
        control, self.control = self.control, cast("Control", _Ended())
        control.close()
        # With the last reference its descriptors go, however long something holds this runtime.
        del control
        if self.is_driver:
            process.job_ended((self.proc, *self.members.owned))
        if process.running() is self:
            process.install(None)
            _config.release()

    def close_proc(self) -> None:
        """The end of a proc: what is still to be written is, and the control thread sees the process end."""
        self.workers.end()
        self.node.flush()
        self.closed = True
        self.letters.close()
        self.loop.remove_reader(self.control.fd)
        self.node.close()

    # Messages for Roost itself -------------------------------------------------------------------------------------------
    def send_system(
        self, proc: int, mesh: int, name: str, payload: bytes, runs: list[tuple[int, int, int, int, int]]
    ) -> None:
        """Send one of Roost's own messages, unless its receiver is gone."""
        if proc not in self.members.gone and not self.closed:
            self.node.send_system(proc, mesh, name, payload, runs)

    def system_handler(self, name: str) -> Callable[[int, int, list[tuple[int, int]], bytes], None]:
        """What handles a message of Roost's own in this process."""
        room, method = _SYSTEM_HANDLERS[name]
        handler: Callable[[int, int, list[tuple[int, int]], bytes], None] = getattr(getattr(self, room), method)
        return handler

    def system(self, name: str, mesh: int, sender: int, ranks: list[tuple[int, int]], payload: bytes) -> None:
        """A message for Roost itself came."""
        if name in _SYSTEM_HANDLERS:
            self.system_handler(name)(mesh, sender, ranks, payload)
        else:
            _logger.warning("proc %x sent %r, which this version of roost does not know", sender, name)

    def connect(self, proc: int) -> None:
        """Ask for a connection."""
        # Not the control's own method: that would hold its descriptors after the end.
        self.control.connect(proc)

    def redial(self, proc: int) -> None:
        """Have a connection to a proc of another host made where there is none: it has broken, or was idle."""
        self.control.redial(proc)

    def post(self, letters: Letters) -> None:
        """Have frames go along the tree of hosts."""
        self.control.post(letters)

    def broken(self, proc: int, text: str) -> None:
        """A connection carries no frames of ours: nothing can be known of that proc any more."""
        _logger.error("the connection to proc %x is broken: %s", proc, text)
        self.control.kill([proc], f"its connection is broken: {text}")

    def job_event(self, happened: Event) -> None:
        """Give an event to those who listen to the whole job."""
        for subscriber in list(self.job_subscribers):
            subscriber.push(happened)

    def exit(self, ending: SystemExit) -> None:
        """An endpoint raised SystemExit: this process ends with its code, in order."""
        code = ending.code
        self.exit_code = code if isinstance(code, int) else 0 if code is None else 1
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)  # noqa: T201 - as the interpreter does
        if self.stopping is not None:
            self.stopping.set()


class _Ended:
    """What stands for the control thread once the job has ended."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(
            "the job has ended, with its event loop or by the end of its process; start anew from a running loop"
        )
