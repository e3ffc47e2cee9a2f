"""The runtime of this process: joins the control thread, the data lane and the event loop."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import pickle
import random
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from roost import config as _config
from roost import serialize
from roost._roost import Control, Done, Node, SegmentMap, SegmentPool
from roost.context import handling
from roost.errors import ActorDied, MailboxFullError, PeerLostError, StoppedError
from roost.events import EventStream, event, now
from roost.failure import DeadLetter, Failure
from roost.reply import FailedReply, GatheredReply, Reply, fail_reply
from roost.shape import Point, Shape

if TYPE_CHECKING:
    from roost.channel import PortReceiver, PortSender
    from roost.hosting import HostedMesh
    from roost.mesh import ActorMesh, ProcMesh
    from roost.owning import OwnedMesh, OwnedProcs, Unheard
    from roost.runner import Runner

__all__ = ["Job", "Runtime", "current", "decode_sizes", "encode_sizes", "running"]

T = TypeVar("T")

_logger = logging.getLogger("roost")
_dead_letters_logger = logging.getLogger("roost.dead_letters")

# How long a message for a mesh that this process has not heard of waits for it.
EARLY_WAIT_S = 10.0
# How long releases of received segments are collected before senders are told: nobody waits for them.
RELEASE_DELAY_S = 0.02
# How often idle shared memory is given back.
TRIM_S = 10.0
_RELEASE = struct.Struct("<QIB")
_SEGMENT = struct.Struct("<Q")
# Items of a stream on their way before its generator waits.
STREAM_WINDOW = 64

_current: Runtime | None = None


class Job:
    """The job as `context().job` shows it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._dead_letters: deque[DeadLetter] = deque(maxlen=runtime.config.dead_letters_max)

    @property
    def id(self) -> str:
        """The job's id, 32 hex digits."""
        return self._runtime.job_id.hex()

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Broadcasts of this process that were not delivered, the newest last."""
        return tuple(self._dead_letters)

    def events(self) -> EventStream:
        """What happens from now on to all meshes that this process owns."""
        runtime = self._runtime
        stream = EventStream(runtime.config.events_max)
        runtime.job_subscribers.append(stream)
        return stream


class Runtime:
    """One process's share of a job."""

    def __init__(
        self, *, job: bytes, proc: int, incarnation: int, name: str, owner: int, control: Control, loop: asyncio.AbstractEventLoop
    ) -> None:
        from roost.calls import Calls

        self.job_id = job
        self.proc = proc
        self.incarnation = incarnation
        self.name = name
        self.owner = owner
        self.control = control
        self.loop = loop
        self.thread = threading.get_ident()
        self.pid = os.getpid()
        self.host = os.uname().nodename
        self.config = _config.current()
        self.job = Job(self)
        self.calls = Calls(self)
        self.owned: dict[int, OwnedMesh] = {}
        self.hosted: dict[int, HostedMesh] = {}
        self.job_subscribers: list[EventStream] = []
        # proc id -> (proc mesh's record, rank) for procs that this process owns.
        self._owned_procs: dict[int, tuple[OwnedProcs, int]] = {}
        # proc id -> (mesh name, shape, rank), of every proc whose mesh was met here: for failures that name it.
        self._places: dict[int, tuple[str, Shape, int]] = {}
        self._noted: set[int] = set()
        self._deaths: dict[tuple[int, int], Failure] = {}
        self._gone: dict[int, Failure] = {}
        self._hearings: dict[int, Unheard] = {}
        self._originals: dict[int, BaseException] = {}
        self._ports: dict[int, PortReceiver[Any]] = {}
        self._senders: dict[tuple[int, int], PortSender] = {}
        self._stream_taken: dict[tuple[int, int, int], int] = {}
        self._stream_waiters: dict[tuple[int, int, int], asyncio.Future[None]] = {}
        self._kept: set[asyncio.Task[Any]] = set()
        self._system_names: dict[str, Callable[[int, int, list[tuple[int, int]], bytes], None]] = {
            ".spawn": self._spawn_here, ".stop": self._stop_here, ".state": self._state, ".early": self._early,
            ".letter": self._letter, ".streamed": self._streamed, ".released": self._released, ".forgotten": self._forgotten,
        }  # fmt: skip
        # The last hook before the root, of `roost.run`.
        self.root_supervise: Callable[[Failure], Any] | None = None
        self.stopping: asyncio.Event | None = None
        self.stop_reason = ""
        self.exit_code: int | None = None
        self.node = Node(job, proc, incarnation, (sys.version_info.major, sys.version_info.minor), self.config.as_builtins())
        self.pool = SegmentPool(bytes_max=self.config.segments_bytes_max)
        self.map = SegmentMap(kept_bytes_max=self.config.segments_bytes_max // 2)
        self._trimming = False
        self._releasing = False
        self._guard: Any = None
        self._closed = False
        self._background: threading.Thread | None = None

    # Life ----------------------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Join the loop of this thread."""
        calls = self.calls
        self.node.open({
            "loop": self.loop, "dumps": pickle.dumps, "loads": pickle.loads, "dumps_parts": self.dump_value,
            "loads_parts": lambda payload, buffers: pickle.loads(payload, buffers=buffers), "map": self.map, "offer": self._offer,
            "released": self._released_soon,
            "reply": Reply, "gathered_reply": GatheredReply, "pack": calls.pack, "begin": calls.begin, "elsewhere": calls.elsewhere,
            "errored": calls.errored, "unloadable": calls.unloadable, "refused": calls.refused, "bounded": calls.bounded,
            "handling": handling.get, "connect": self.control.connect, "system": self._system,
            "cancelled": lambda runner, message: runner.cancel(message), "port_item": self._port_item, "port_taken": self._port_taken,
            "broken": self._broken, "room": calls.room, "sent": Done(), "too_large": calls.too_large,
        })  # fmt: skip
        self.loop.add_reader(self.control.fd, self._notices)

    def check_usable(self) -> None:
        """Refuse a forked child, and any thread of the user's that is not the loop's."""
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

    def keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task of our own and hold on to it."""
        task = self.loop.create_task(work)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task

    def handling_runner(self) -> Runner | None:
        """The actor whose code runs now; None in the driver."""
        now_handling = handling.get()
        return None if now_handling is None else now_handling.runner

    async def _watch_loop_end(self) -> Any:
        # `asyncio.run` closes its asynchronous generators last of all: then nothing of the job may remain.
        try:
            yield
        finally:
            await self.shut_down("the event loop ended")

    async def guard(self) -> None:
        """Have the job end with the loop."""
        self._guard = self._watch_loop_end()
        await self._guard.asend(None)

    async def shut_down(self, reason: str) -> None:
        """Stop every mesh in order, then close."""
        stops = [mesh.stop(mesh.whole, reason) for mesh in reversed(list(self.owned.values())) if mesh.id in self._live_procs()]
        for stop in stops:
            try:
                await stop
            except Exception as error:
                _logger.warning("while stopping: %r", error)
        self.close()

    def _live_procs(self) -> set[int]:
        return {record.id for record, _ in self._owned_procs.values() if any(state not in ("failed", "stopped") for state in record._states)}

    def close(self) -> None:
        """End everything at once: what is left of the job is killed."""
        global _current
        if self._closed:
            return
        self._closed = True
        if not self.loop.is_closed():
            self.loop.remove_reader(self.control.fd)
            self.node.close()
        self.control.close()
        if _current is self:
            _current = None
            _config.release()

    # Notices of the control thread ---------------------------------------------------------------------------------------
    def _notices(self) -> None:
        for notice in self.control.drain():
            try:
                getattr(self, f"_on_{notice[0]}")(*notice[1:])
            except Exception:
                _logger.exception("handling %s from the control thread", notice[0])

    def _on_epoch(self, epoch: int) -> None:
        self.node.set_epoch(epoch)

    def _on_connected(self, proc: int, incarnation: int, fd: int, slot: int) -> None:
        self.node.adopt(proc, incarnation, fd, slot)

    def _on_connect_failed(self, proc: int, reason: str) -> None:
        failure = self._gone.get(proc)
        if failure is None:
            failure = self._gone[proc] = self._failure(proc, 0, {"kind": "lost", "reason": reason})
        self._lose(proc, self.node.incarnation_of(proc), -1, failure, again=False, gone=True)

    def _on_warning(self, text: str) -> None:
        _logger.warning("%s", text)

    def _on_segment(self, sender: int, segment: int, size: int, fd: int) -> None:
        ok = fd >= 0
        if ok:
            try:
                self.map.add(sender, segment, size, fd)
            except OSError as error:
                _logger.warning("a segment of %d bytes cannot be mapped, its sender copies instead: %s", size, error)
                ok = False
        self.control.segment_ack(sender, segment, ok)

    def _on_segment_ack(self, receiver: int, segment: int, ok: bool) -> None:
        self.pool.answered(receiver, segment, ok)
        self.node.retry(receiver)

    def _on_ask(self, proc: int, incarnation: int) -> None:
        record, _ = self._owned_procs[proc]
        assert record.ask is not None
        try:
            spec, environ, command = record.ask(proc, incarnation)
        except Exception as error:
            self.control.respawn_failed(proc, incarnation, f"its env, start or bind function raised {error!r}")
        else:
            self.control.respawn(proc, incarnation, spec, environ, command)

    def _on_stop(self, reason: str, deadline: float) -> None:
        self.stop_reason = reason
        if self.stopping is not None:
            self.stopping.set()

    def _on_member(self, epoch: int, proc: int, incarnation: int, status: str, details: dict[str, Any]) -> None:
        owned = self._owned_procs.get(proc)
        if status in ("dead", "failed", "stopped"):
            failure = self.death_of(proc, incarnation, details)
            down = status == "dead" and details.get("next") == "restarting"
            if not down:
                self._gone[proc] = failure
            if status != "failed":
                self._lose(proc, incarnation, details.get("started", -1), failure, again=down, gone=not down)
        elif status == "starting":
            self._gone.pop(proc, None)
            if incarnation:
                self.node.expect(proc)
        if owned is not None:
            record, rank = owned
            record.member(rank, incarnation, status, details)
        self.node.set_epoch(epoch)

    def _lose(self, proc: int, incarnation: int, started: int, failure: Failure, *, again: bool, gone: bool) -> None:
        calls, letters = self.node.lost(proc, incarnation, started, again, gone)

        def error_of(maybe_executed: bool) -> ActorDied:
            kind = StoppedError if failure.kind == "stopped" else ActorDied
            return kind(None, failure, maybe_executed=maybe_executed)

        self.calls.orphaned(calls, error_of)
        for mesh, ranks, endpoint in letters:
            for rank in ranks:
                self.dead_letter(f"{failure.name} rank {rank}", endpoint, Point({}), failure.summary, failure, mesh)
        self.map.sender_gone(proc)
        self.pool.receiver_gone(proc)
        died = error_of(True)
        for (receiver, _), sender in list(self._senders.items()):
            if receiver == proc:
                sender.end(died)
                del self._senders[receiver, _]
        for port in list(self._ports.values()):
            port.sender_died(proc, died)

    # Failures ------------------------------------------------------------------------------------------------------------
    def death_of(self, proc: int, incarnation: int, details: dict[str, Any]) -> Failure:
        """The failure of a proc's incarnation: one object however often it is told."""
        known = self._deaths.get((proc, incarnation))
        if known is None:
            known = self._failure(proc, incarnation, details)
            self._deaths[proc, incarnation] = known
            while len(self._deaths) > 10_000:
                self._deaths.pop(next(iter(self._deaths)))
        if details.get("reasons") and not known.reasons:
            known = self._deaths[proc, incarnation] = self._failure(proc, incarnation, details)
        return known

    def _failure(self, proc: int, incarnation: int, details: dict[str, Any]) -> Failure:
        from roost.mesh import rank_name

        mesh, shape, rank = self._places.get(proc, ("procs", Shape({}), 0))
        point = shape.point(rank)
        kind = details.get("kind", "lost")
        origin = {"exit": "user", "stopped": "user", "start": "process", "lost": "host"}.get(kind, "process")
        reasons = tuple(self._failure(proc, past.get("incarnation", 0), past) for past in details.get("reasons", ()))
        return Failure(
            kind=kind, origin=origin, mesh=mesh, name=rank_name(mesh, point), point=point, host=self.host,  # type: ignore[arg-type]
            incarnation=incarnation, reason=details.get("reason", ""), exit_code=details.get("exit_code"), signal=details.get("signal"),
            stderr=details.get("stderr", ""), reasons=reasons, times=details.get("times", {}),
        )  # fmt: skip

    def gone(self, proc: int) -> ActorDied | None:
        """The error for whoever writes to a proc that is gone or down; None when it is there."""
        failure = self._gone.get(proc)
        if failure is None:
            owned = self._owned_procs.get(proc)
            if owned is None or owned[0].failures is None or owned[0].state(owned[1]) == "up":
                return None
            failure = owned[0].failures.get(owned[1])
            if failure is None:
                return None
        return StoppedError(None, failure) if failure.kind == "stopped" else ActorDied(None, failure)

    def hearing(self, failure: Failure) -> Unheard:
        """Who has heard of a failure."""
        from roost.owning import Unheard

        known = self._hearings.get(id(failure))
        if known is None:
            known = self._hearings[id(failure)] = Unheard(failure)
        return known

    def carried(self, failure: Failure | None, reply: Any) -> None:
        """A reply was given this failure: whoever takes it has heard of it."""
        if failure is not None and isinstance(reply, Reply):
            self.hearing(failure).carried_by(reply)

    def reply_dropped(self, error: BaseException, *, heard: bool) -> None:
        """A reply with an error was dropped; `heard` says whether anyone had looked."""
        failures = [failure for failure in _failures_in(error)]
        for failure in failures:
            if heard:
                self.hearing(failure).hear()
        if not heard and not failures and not self._closed:
            _logger.warning("a call failed and nobody awaited its reply: %r", error)
            runner = None
            if runner is None and self.owner == self.proc:
                _unheard_errors.append(error)

    def original(self, failure: Failure) -> BaseException | None:
        """The exception that an actor's failure began with, when it came from a proc of ours."""
        return self._originals.get(id(failure))

    def escalate(self, mesh: OwnedMesh, unheard: Unheard) -> None:
        """A failure that no policy mends goes to the mesh's hook, else to the owner."""
        self.keep(self._escalate(mesh, unheard))

    async def _escalate(self, mesh: OwnedMesh, unheard: Unheard) -> None:
        hook = mesh.supervise
        runner = mesh.owner_runner
        if hook is None and runner is not None and hasattr(type(runner.instance), "__supervise__"):
            hook = runner.instance.__supervise__
        if hook is not None:
            try:
                if await hook(unheard.failure):
                    unheard.hear()
                    return
            except Exception as error:
                _logger.warning("the supervise hook of %s raised", mesh.name, exc_info=error)
        if unheard.heard:
            return
        if runner is None and self.root_supervise is not None and await self.root_supervise(unheard.failure):
            unheard.hear()
            return
        if runner is not None:
            unheard.hear()
            runner.fail(ActorDied(None, unheard.failure), f"a failure in {mesh.name}, which it owns")
        else:
            _logger.warning("%s", unheard.failure)

    def unheard(self) -> list[Failure]:
        """Failures of this process's meshes that nobody has heard of."""
        found: dict[int, Failure] = {}
        for mesh in self.owned.values():
            for one in mesh.unheard or ():
                if not one.heard:
                    found[id(one.failure)] = one.failure
        return list(found.values())

    def take_unheard(self) -> list[Failure]:
        """The same, and from now on they count as heard."""
        found = self.unheard()
        for failure in found:
            self.hearing(failure).hear()
        return found

    def job_event(self, happened: Any) -> None:
        """Give an event to those who listen to the whole job."""
        for subscriber in self.job_subscribers:
            subscriber.push(happened)

    # Meshes that this process owns ---------------------------------------------------------------------------------------
    def own(self, record: OwnedProcs, handle: ProcMesh) -> None:
        """A proc mesh was asked for."""
        self.owned[record.id] = record
        for rank, proc in enumerate(record.procs):
            self._owned_procs[proc] = (record, rank)
        self.note_procs(handle)
        if record.owner_runner is not None:
            record.owner_runner.owns(handle)

    def note_procs(self, handle: ProcMesh) -> None:
        """Learn the names of procs."""
        if handle._id not in self._noted:
            self._noted.add(handle._id)
            for rank, proc in enumerate(handle._procs):
                self._places[proc] = (handle._name, handle._whole, rank)

    def start_procs(self, record: OwnedProcs, ranks: list[Any], template: Any, restart: Any, logs: bool, ask: bool) -> None:
        """Ask the agent for the procs."""
        for proc in record.procs:
            self.node.expect(proc)
        policy = None
        if restart is not None:
            policy = (restart.limit, restart.within_s, *restart.backoff_s, restart.scope, restart.when, restart.while_down)
        self.control.spawn_procs(record.id, record.name, ranks, template, policy, self.proc, logs, ask)

    def spawn_actors(
        self, procs: ProcMesh, name: str, actor: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
    ) -> ActorMesh:
        """Spawn one actor, or `per_proc`, on each proc of a mesh."""
        from roost.hosting import pack_spawn
        from roost.mesh import ActorMesh, check_actor_class
        from roost.owning import OwnedActors

        self.check_usable()
        kind = check_actor_class(actor, name, args, kwargs)
        per_proc = Shape(options.get("per_proc") or {})
        parent = self.owned.get(procs._id)
        waits = parent is not None and getattr(parent.policy, "while_down", "fail") == "wait"  # type: ignore[attr-defined]
        mesh = random.getrandbits(63) | 1
        handle = ActorMesh._make(mesh, name, self.proc, procs, per_proc, None, kind, waits)
        packed = pack_spawn(handle, args, kwargs, {"cleanup_timeout_s": options.get("cleanup_timeout_s")})
        if len(packed) > self.config.message_bytes_max:
            self.calls.too_large(len(packed))
        members = procs._members()
        record = OwnedActors(
            self, mesh, name, handle._whole, options.get("supervise"), members, len(per_proc), f"{kind.__module__}.{kind.__qualname__}"
        )
        record.cleanup_extra_s = max(0.0, options.get("cleanup_timeout_s") or 0.0)
        self.owned[mesh] = record
        if record.owner_runner is not None:
            record.owner_runner.owns(handle)
        self.on_loop(lambda: self._send_spawn(record, procs, members, packed))
        return handle

    def _send_spawn(self, record: Any, procs: ProcMesh, members: tuple[int, ...], packed: bytes) -> None:
        self.note_procs(procs)
        parent = self.owned.get(procs._id)
        if parent is not None:
            record.on = parent
            parent.actors.append(record)  # type: ignore[attr-defined]
        for place, proc in enumerate(members):
            run = (0, record.per, 1 if record.per == 1 else 1, place * record.per, 1)
            ranks = [(slot, place * record.per + slot) for slot in range(record.per)]
            failure = self._gone.get(proc)
            if failure is not None:
                record.proc_ended(proc, "failed" if failure.kind != "stopped" else "stopped", failure)
                continue
            if proc == self.proc:
                self._spawn_here(record.id, self.proc, ranks, packed)
                continue
            self.control.record_actor([proc], record.id, pickle.dumps((record.id, self.proc, ranks, packed), 5))
            self._send_system(proc, record.id, ".spawn", packed, [run])

    def stop_actors(self, proc: int, mesh: int, slots: list[int], reason: str) -> None:
        """Ask a proc to stop actors of ours."""
        ranks = [(slot, slot) for slot in slots]
        if proc == self.proc:
            self.loop.call_soon(self._stop_here, mesh, self.proc, ranks, reason.encode())
        else:
            self._send_system(proc, mesh, ".stop", reason.encode(), [(slot, 1, 1, slot, 1) for slot in slots])

    def send_state(self, hosted: HostedMesh, payload: bytes) -> None:
        """Tell the owner how actors are."""
        if hosted.owner == self.proc:
            self._state(hosted.id, self.proc, [], payload)
        elif not self._closed:
            self._send_system(hosted.owner, hosted.id, ".state", payload, [])

    def _send_system(self, proc: int, mesh: int, name: str, payload: bytes, runs: list[tuple[int, int, int, int, int]]) -> None:
        if proc not in self._gone:
            self.node.send_system(proc, mesh, name, payload, runs)

    # Messages for Roost itself -------------------------------------------------------------------------------------------
    def _system(self, name: str, mesh: int, sender: int, ranks: list[tuple[int, int]], payload: bytes) -> None:
        handler = self._system_names.get(name)
        if handler is None:
            _logger.warning("proc %x sent %r, which this version of roost does not know", sender, name)
        else:
            handler(mesh, sender, ranks, payload)

    def _spawn_here(self, mesh: int, owner: int, ranks: list[tuple[int, int]], payload: bytes) -> None:
        from roost.hosting import HostedMesh

        if mesh in self.hosted:
            return  # it came with this incarnation's start already
        try:
            hosted = HostedMesh(self, mesh, owner, payload, ranks)
        except Exception as error:
            self._refuse_spawn(mesh, owner, ranks, error)
            return
        self.hosted[mesh] = hosted
        self.note_procs(hosted.handle._on)
        hosted.start()

    def _refuse_spawn(self, mesh: int, owner: int, ranks: list[tuple[int, int]], error: Exception) -> None:
        """The class or its arguments do not unpickle here."""
        import traceback

        said = f"its class could not be loaded in the proc: {type(error).__name__}: {error}"
        failure = Failure(
            kind="error", origin="user", mesh=self.name, name=self.name, point=Point({}), host=self.host, incarnation=self.incarnation,
            reason=said, traceback="".join(traceback.format_exception(error)),
        )  # fmt: skip
        packed = pickle.dumps((failure, serialize.dump_exception(error)), 5)
        news = pickle.dumps((self.incarnation, [("failed", rank, said, packed) for _, rank in ranks]), 5)
        self.node.give_up_early(mesh, packed)
        if owner == self.proc:
            self._state(mesh, owner, [], news)
        else:
            self._send_system(owner, mesh, ".state", news, [])

    def _stop_here(self, mesh: int, sender: int, ranks: list[tuple[int, int]], payload: bytes) -> None:
        hosted = self.hosted.get(mesh)
        if hosted is not None:
            hosted.stop_slots([slot for slot, _ in ranks], payload.decode())

    def hosted_ended(self, hosted: HostedMesh) -> None:
        """Every actor of a mesh has ended here; its cells stay so that late messages are answered."""

    def _state(self, mesh: int, sender: int, ranks: list[tuple[int, int]], payload: bytes) -> None:
        record = self.owned.get(mesh)
        if record is None:
            return
        incarnation, news = pickle.loads(payload)
        for state, rank, reason, packed in news:
            failure = None
            if packed is not None:
                failure, dumped = pickle.loads(packed)
                self._originals[id(failure)] = serialize.load_exception(dumped)
            record.actor_state([rank], state, incarnation, reason, failure)  # type: ignore[attr-defined]

    def _early(self, mesh: int, sender: int, ranks: list[tuple[int, int]], payload: bytes) -> None:
        """A message came for a mesh that is not here: it may still come, or have been stopped."""

        def give_up() -> None:
            if mesh not in self.hosted:
                failure = Failure(
                    kind="stopped", origin="roost", mesh="", name="the actor", point=Point({}), host=self.host,
                    reason=f"this proc has no actors of mesh {mesh:x}",
                )  # fmt: skip
                self.node.give_up_early(mesh, pickle.dumps((failure, None), 5))

        self.loop.call_later(EARLY_WAIT_S, give_up)

    # Dead letters --------------------------------------------------------------------------------------------------------
    def dead_letter(self, target: str, endpoint: str, point: Point, reason: str, failure: Failure | None, mesh: int) -> None:
        """A broadcast of this process was not delivered."""
        runner = self.handling_runner()
        letter = DeadLetter(self.name if runner is None else runner.name, target, endpoint, point, reason, failure, now())
        self.job._dead_letters.append(letter)
        _dead_letters_logger.warning("%s", letter)
        record = self.owned.get(mesh)
        happened = event("dead_letter", "" if record is None else record.name, target, point, 0, reason, failure)
        if record is not None:
            record.give(happened)
        else:
            self.job_event(happened)

    def return_dead_letter(self, message: Any, target: str, reason: str) -> None:
        """A broadcast that cannot be handled here goes back to its sender."""
        payload = pickle.dumps((target, message.name, reason), 5)
        if message.sender == self.proc:
            self._letter(0, self.proc, [], payload)
        else:
            self._send_system(message.sender, 1, ".letter", payload, [])

    def _letter(self, mesh: int, sender: int, ranks: list[tuple[int, int]], payload: bytes) -> None:
        first, *rest = pickle.loads(payload)
        if isinstance(first, Failure):
            self.dead_letter(first.name, "", first.point, first.reason, first, 0)
        else:
            self.dead_letter(first, rest[0], Point({}), rest[1], None, 0)

    # Values on their way -------------------------------------------------------------------------------------------------
    def dump_value(self, value: Any) -> Any:
        """Pickle a value that is not plain, with its parts captured."""
        return self.capture(serialize.dumps(value), ())

    def capture(self, dumped: Any, procs: Iterable[int]) -> Any:
        """Make what was pickled independent of the user's memory."""
        if type(dumped) is bytes:
            return dumped
        payload = serialize.alone(dumped)
        if not dumped.buffers:
            return payload
        if procs and all(proc == self.proc for proc in procs):
            return payload, self.map.copies(dumped.buffers)
        if not self._trimming:
            self._trimming = True
            self.loop.call_soon_threadsafe(self._trim)
        return payload, self.pool.capture(dumped.buffers)

    def _trim(self) -> None:
        """Give idle shared memory back, now and then."""
        self.pool.trim()
        for receiver, segment in self.pool.drain_forgotten():
            self._send_system(receiver, 1, ".forgotten", _SEGMENT.pack(segment), [])
        self.loop.call_later(TRIM_S, self._trim)

    def _offer(self, proc: int, segment: int, size: int, fd: int) -> None:
        """Hand a segment to a receiver; its answer comes by the control thread."""
        try:
            self.control.segment_offer(proc, segment, size, fd)
        except OSError as error:
            _logger.warning("a segment cannot be handed over, its bytes are copied instead: %s", error)
            self.pool.answered(proc, segment, False)
            self.loop.call_soon(self.node.retry, proc)
        finally:
            os.close(fd)

    def _released_soon(self) -> None:
        """Parts of received segments were let go; senders are told together, a little later."""
        if not self._releasing:
            self._releasing = True
            self.loop.call_later(RELEASE_DELAY_S, self._tell_releases)

    def _tell_releases(self) -> None:
        self._releasing = False
        notes: dict[int, bytearray] = {}
        for sender, segment, generation, retire in self.map.drain_released():
            notes.setdefault(sender, bytearray()).extend(_RELEASE.pack(segment, generation, retire))
        for sender, note in notes.items():
            self._send_system(sender, 1, ".released", bytes(note), [])

    def _released(self, mesh: int, sender: int, ranks: list[tuple[int, int]], payload: bytes) -> None:
        for segment, generation, retire in _RELEASE.iter_unpack(payload):
            self.pool.released(sender, segment, generation, bool(retire))

    def _forgotten(self, mesh: int, sender: int, ranks: list[tuple[int, int]], payload: bytes) -> None:
        for (segment,) in _SEGMENT.iter_unpack(payload):
            self.map.forget(segment)

    # Calls ---------------------------------------------------------------------------------------------------------------
    def cancel_call(self, reply: Reply[Any]) -> None:
        """A reply was cancelled: so is its call."""
        call = getattr(reply, "_call", None)
        if call is not None and not self._closed:
            self.on_loop(lambda: self.node.cancel(call))

    def cancel_stream(self, call: int) -> None:
        """A stream was dropped."""
        if not self._closed and not self.loop.is_closed():
            self.on_loop(lambda: self.node.cancel(call))

    def call_from_thread(self, verb: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send from another thread: packed here, sent by the loop, in this thread's order."""
        packed = self.calls.pack(verb, args if not verb.is_stream else args[1:], kwargs)
        if verb.is_broadcast:
            done: Reply[None] = Reply(loop=self.loop)
            self.loop.call_soon_threadsafe(self._broadcast_packed, verb, packed, done)
            return done
        sink: Any = args[0] if verb.is_stream else verb.new_sink()
        scope = handling.get()
        self.loop.call_soon_threadsafe(self._send_packed, verb, sink, packed, scope)
        return sink

    def _send_packed(self, verb: Any, sink: Any, packed: Any, scope: Any) -> None:
        if isinstance(sink, Reply) and sink.done():
            return
        token = handling.set(scope)
        try:
            verb.send_packed(sink, packed)
        except Exception as error:
            if isinstance(sink, Reply):
                fail_reply(sink, error)
            else:
                sink.rank_errors([(rank, error) for rank in sorted(sink.live)])
        finally:
            handling.reset(token)

    def _broadcast_packed(self, verb: Any, packed: Any, done: Reply[None]) -> None:
        try:
            verb.send_packed(None, packed)
        except MailboxFullError as error:
            fail_reply(done, error)
        else:
            done.set_result(None)

    def choose(self, mesh: ActorMesh) -> int:
        """A live rank of a mesh: the less loaded of two picked at random."""
        from roost.mesh import least_loaded

        members = mesh._on._members()
        per = len(mesh._per_proc)
        shape = mesh._shape
        procs = [members[base // per] for base in shape.ranks()]
        live = [rank for rank, proc in enumerate(procs) if self.gone(proc) is None]
        if not live:
            return 0
        return least_loaded(live, lambda rank: self.node.load(procs[rank]))

    async def wait_for_room(self, mesh: ActorMesh) -> None:
        """Until nothing waits for credit any more on the way to a mesh."""
        procs = mesh._on._members()
        while any(self.node.waits(proc) for proc in procs):
            future = self.loop.create_future()
            self.node.when_room(future)
            await future

    # Streams and ports ---------------------------------------------------------------------------------------------------
    def stream_taken(self, call: int, rank: int, total: int) -> None:
        """The reader of a stream of ours took values; the generator hears of it now and then."""
        if total % (STREAM_WINDOW // 4) == 0:
            proc = self.node.proc_of(call, rank)
            if proc is not None:
                payload = pickle.dumps((call, rank, total), 5)
                if proc == self.proc:
                    self._streamed(0, self.proc, [], payload)
                else:
                    self._send_system(proc, 1, ".streamed", payload, [])

    def _streamed(self, mesh: int, sender: int, ranks: list[tuple[int, int]], payload: bytes) -> None:
        call, rank, total = pickle.loads(payload)
        key = (sender, call, rank)
        self._stream_taken[key] = total
        waiter = self._stream_waiters.pop(key, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def stream_room(self, message: Any, sent: int) -> None:
        """Wait until the reader of a stream is not too far behind."""
        key = (message.sender, message.call, message.rank)
        while sent - self._stream_taken.get(key, 0) >= STREAM_WINDOW:
            waiter = self._stream_waiters[key] = self.loop.create_future()
            await waiter

    def stream_done(self, message: Any) -> None:
        """A stream ended here."""
        key = (message.sender, message.call, message.rank)
        self._stream_taken.pop(key, None)
        self._stream_waiters.pop(key, None)

    def open_port(self, port: int, receiver: PortReceiver[Any]) -> None:
        """A channel ends here."""
        self._ports[port] = receiver

    def close_port(self, port: int) -> None:
        """A channel's receiver takes no more."""
        self._ports.pop(port, None)

    def port_sender(self, proc: int, port: int, limit: int) -> PortSender:
        """This process's way to a port."""
        from roost.channel import PortSender

        key = (proc, port)
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = PortSender(self, proc, port, limit)
        return sender

    def send_port_item(self, proc: int, port: int, what: int, payload: bytes) -> None:
        """Send to a port, here or elsewhere."""
        if proc == self.proc:
            self.loop.call_soon(self._port_item, port, proc, what, payload)
        else:
            self.node.send_port_item(proc, port, what, payload)

    def _port_item(self, port: int, sender: int, what: int, payload: bytes) -> None:
        receiver = self._ports.get(port)
        if receiver is not None:
            receiver.push(sender, what, payload)
        elif sender == self.proc:
            self._port_taken(port, sender, -1)
        else:
            self.node.port_taken(sender, port, (1 << 64) - 1)

    def port_taken(self, port: int, sender: int, total: int) -> None:
        """The receiver took values."""
        if sender == self.proc:
            self._port_taken(port, sender, total)
        else:
            self.node.port_taken(sender, port, total)

    def _port_taken(self, port: int, receiver: int, total: int) -> None:
        sender = self._senders.get((receiver, port))
        if sender is not None:
            if total < 0 or total == (1 << 64) - 1:
                sender.end(StoppedError("the channel's receiver is closed"))
            else:
                sender.taken(total)

    def _broken(self, proc: int, text: str) -> None:
        _logger.error("the connection to proc %x is broken: %s", proc, text)
        self.control.kill([proc], f"its connection is broken: {text}")

    def exit(self, ending: SystemExit) -> None:
        """An endpoint raised SystemExit: this process ends with its code, in order."""
        code = ending.code
        self.exit_code = code if isinstance(code, int) else 0 if code is None else 1
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
        if self.stopping is not None:
            self.stopping.set()

    encode_sizes = staticmethod(lambda shape: encode_sizes(shape))


def encode_sizes(shape: Shape) -> bytes:
    """Names and sizes of a mesh, for a message's header."""
    return ",".join(f"{name}={size}" for name, size in shape.sizes.items()).encode()


def decode_sizes(sizes: bytes) -> dict[str, int]:
    """What `encode_sizes` encoded."""
    if not sizes:
        return {}
    return {name: int(size) for name, _, size in (one.partition("=") for one in sizes.decode().split(","))}


def _failures_in(error: BaseException) -> Iterable[Failure]:
    failure = getattr(error, "failure", None)
    if isinstance(failure, Failure):
        yield failure
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _failures_in(inner)


# Errors of replies that were dropped in the driver, unseen: the process ends with status 70.
_unheard_errors: list[BaseException] = []
UNHEARD_EXIT_STATUS = 70


def running() -> Runtime | None:
    """The runtime of this process, if it has one."""
    return _current


def current() -> Runtime:
    """The runtime of this process; started at first use."""
    runtime = _current
    if runtime is not None:
        if os.getpid() != runtime.pid:
            runtime.check_usable()
        if not runtime.loop.is_closed():
            return _checked(runtime)
        runtime.close()
    return _start()


def _checked(runtime: Runtime) -> Runtime:
    if threading.get_ident() != runtime.thread:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return runtime
        raise RuntimeError(
            "roost runs on another event loop, in another thread; use it from there, or from a thread without a loop, "
            "or let that loop end first"
        )
    return runtime


def _start() -> Runtime:
    """Start as the driver: on the running loop, or on one in a thread of our own."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _start_in_background()
    runtime = _driver(loop)
    runtime.keep(runtime.guard())
    return runtime


def _driver(loop: asyncio.AbstractEventLoop) -> Runtime:
    global _current
    job, proc = os.urandom(16), random.getrandbits(63) | 1
    config = _config.current()
    control = Control.start_agent(job, proc, {"grace_s": config.grace_s, "sigterm_s": config.sigterm_s})
    runtime = Runtime(job=job, proc=proc, incarnation=0, name="driver", owner=proc, control=control, loop=loop)
    _current = runtime
    runtime.open()
    return runtime


def _start_in_background() -> Runtime:
    """A plain script: a thread of ours drives the loop."""
    started: list[Runtime] = []
    ready = threading.Event()

    def drive() -> None:
        import uvloop

        async def live() -> None:
            started.append(_driver(asyncio.get_running_loop()))
            ended = asyncio.Event()
            started[0].stopping = ended
            ready.set()
            await ended.wait()
            await started[0].shut_down("the script ended")

        uvloop.run(live())

    thread = threading.Thread(target=drive, name="roost", daemon=True)
    thread.start()
    ready.wait()
    started[0]._background = thread
    return started[0]


def _at_exit() -> None:
    """The interpreter ends: so does the job, quietly; a failure that nobody heard gives status 70."""
    runtime = _current
    unheard: list[Any] = list(_unheard_errors)
    if runtime is not None and runtime.pid == os.getpid() and runtime.owner == runtime.proc:
        unheard += runtime.unheard()
        if runtime._background is not None and runtime.stopping is not None:
            runtime.loop.call_soon_threadsafe(runtime.stopping.set)
            runtime._background.join(runtime.config.grace_s + runtime.config.sigterm_s)
        runtime.close()
    if unheard and (runtime is None or runtime.pid == os.getpid()):
        for failure in unheard:
            print(f"roost: a failure that nobody heard: {failure}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(UNHEARD_EXIT_STATUS)


atexit.register(_at_exit)


def _before_fork() -> None:
    runtime = _current
    if runtime is not None:
        runtime.map.before_fork()


def _after_fork() -> None:
    runtime = _current
    if runtime is not None:
        runtime.node.mark_forked()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def run_proc(spec: dict[str, Any], control: Control, data_fd: int, started_page_fd: int) -> int:
    """Be a proc until asked to stop; called by `roost._proc` in a fresh process."""
    import uvloop

    _config.use(_config.Config.from_builtins(spec["config"]))
    if spec.get("cpus"):
        os.sched_setaffinity(0, spec["cpus"])
    return uvloop.run(_live(spec, control, data_fd, started_page_fd))


async def _live(spec: dict[str, Any], control: Control, data_fd: int, started_page_fd: int) -> int:
    global _current
    loop = asyncio.get_running_loop()
    runtime = Runtime(
        job=spec["job"], proc=spec["proc"], incarnation=spec["incarnation"], name=spec["name"], owner=spec["owner"], control=control, loop=loop
    )
    _current = runtime
    runtime.stopping = asyncio.Event()
    runtime._places[spec["proc"]] = (spec["mesh_name"], Shape(spec["sizes"]), spec["rank"])
    runtime.open()
    runtime.node.set_started_page(started_page_fd)
    if spec["setup"] is not None:
        try:
            result = serialize.loads(spec["setup"])()
            if asyncio.iscoroutine(result):
                await result
        except BaseException as error:
            import traceback

            traceback.print_exc()
            control.start_failed(f"setup raised {type(error).__name__}: {error}")
            return 1
    runtime.node.adopt(spec["owner"], 0, data_fd, 0)
    for recorded in spec["actors"]:
        mesh, owner, ranks, packed = pickle.loads(recorded)
        runtime._spawn_here(mesh, owner, ranks, packed)
    control.up()
    await runtime.stopping.wait()
    await _stop_proc(runtime)
    return runtime.exit_code or 0


async def _stop_proc(runtime: Runtime) -> None:
    """End in order: actors in reverse order of their start, then what is still to be written."""
    reason = runtime.stop_reason or "its proc ended"
    for hosted in reversed(list(runtime.hosted.values())):
        runners = list(hosted.runners.values())
        for runner in runners:
            runner.stop(reason)
        tasks = [runner.task for runner in runners if runner.task is not None]
        if tasks:
            await asyncio.wait(tasks)
    await asyncio.sleep(0)
    runtime.node.flush()
    runtime._closed = True
    runtime.loop.remove_reader(runtime.control.fd)
    runtime.node.close()


__all__ += ["FailedReply"]
