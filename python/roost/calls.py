"""What the data lane asks Python to do about calls: pack arguments, make errors of answers, say who is gone."""

from __future__ import annotations

import logging
import pickle
import time
from typing import TYPE_CHECKING, Any

from roost import serialize
from roost._exceptions import add_note, as_text, may_travel
from roost._roost import INLINE_BYTES_MAX
from roost.bound import Each, least_loaded
from roost.echoes import may_echo
from roost.errors import ActorDied, MessageTooLargeError
from roost.reply import Broadcast, Reply
from roost.stops import death_error, lost_error, stopped_error

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable

    from roost._roost import Verb
    from roost.actor_mesh import ActorMesh
    from roost.failure import Failure
    from roost.gathered import GatheredReply
    from roost.hooks import Sink
    from roost.runtime import Runtime

__all__ = ["Calls"]

_logger = logging.getLogger("roost")


class Calls:
    """The call side of a runtime: one for each process."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    # Sending -----------------------------------------------------------------------------------------------------------
    def pack(self, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Check and pickle arguments that are not all plain."""
        endpoint = verb.endpoint
        kwargs = kwargs or {}
        endpoint.bind(args, kwargs)
        if any(type(value) is Each for value in (*args, *kwargs.values())):
            return self._pack_each(verb, args, kwargs)
        return self._dump(verb, args, kwargs)

    def _dump(self, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            dumped = serialize.dump_call(args, kwargs)
        except Exception as error:
            names = list(verb.endpoint.signature.parameters)
            raise serialize.explain(error, verb.endpoint.qualname, args, kwargs, names) from error
        return self.runtime.sharing.capture(dumped, verb.procs, alone=verb.mesh._waits)

    def _pack_each(self, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        size = verb.targets.size
        for value in (*args, *kwargs.values()):
            if type(value) is Each and len(value.values) != size:
                raise ValueError(
                    f"each() has {len(value.values)} values for {size} ranks of {verb.mesh._name}: give one a rank"
                )

        def at(value: Any, rank: int) -> Any:
            return value.values[rank] if type(value) is Each else value

        return [
            self._dump(
                verb,
                tuple(at(value, rank) for value in args),
                {name: at(value, rank) for name, value in kwargs.items()},
            )
            for rank in range(size)
        ]

    def begin(self, reply: GatheredReply[Any], mesh: ActorMesh) -> None:
        """Prepare the reply of a call to a mesh."""
        from roost.value_mesh import ValueMesh

        shape = mesh._dense()
        reply.begin(len(shape), lambda values: ValueMesh._of(shape, tuple(values)), shape.point, mesh)

    def elsewhere(self, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """A verb used on another thread: arguments are captured here, the rest happens on the loop."""
        runtime = self.runtime
        verb.mesh._runtime()  # it refuses a thread that runs a loop of its own
        return runtime.elsewhere.call(verb, args, kwargs or {})

    def too_large(self, size: int, inline: int) -> None:
        """A message passes the limit, with so many of its bytes outside shared memory."""
        limit = self.runtime.config.message_bytes_max
        if size > limit:
            raise MessageTooLargeError(size, limit, "message_bytes_max")
        raise MessageTooLargeError(inline, INLINE_BYTES_MAX, "", "message")

    def unsendable(self, what: str, size: int) -> bytes:
        """The error that travels in place of what is too large to travel without shared memory."""
        dumped = serialize.dump_exception(MessageTooLargeError(size, INLINE_BYTES_MAX, "", what))
        return dumped if what == "value for a port" else pickle.dumps((None, dumped), 5)

    def unsent(self, mesh: int, proc: int, slots: list[int], endpoint: str, size: int) -> None:
        """A broadcast is too large to travel without shared memory, and its receiver has none."""
        error = MessageTooLargeError(size, INLINE_BYTES_MAX, "", "message")
        if endpoint.startswith("."):
            _logger.error("%s to proc %x was not sent: %s", endpoint, proc, error)
        for slot in slots:
            rank = self.runtime.members.base_rank(mesh, proc, slot)
            self.runtime.letters.add(mesh, rank, endpoint, str(error), None, self.runtime.name)

    def bounded(self, sink: Sink, call: int, deadline: int) -> None:
        """A call has a deadline, in ns of the monotonic clock."""
        left = (deadline - time.monotonic_ns()) / 1e9
        timer = self.runtime.loop.call_later(max(0.0, left), self._expired, sink, call, left)
        if isinstance(sink, Reply):
            sink._bounded = True
            sink.add_done_callback(lambda done: self._unbounded(done, timer))

    def _unbounded(self, sink: Reply[Any], timer: TimerHandle) -> None:
        """A reply is done: so is its time, unless ranks are still at work after the first has failed."""
        if sink.open_ranks():
            gathered: GatheredReply[Any] = sink  # type: ignore[assignment]
            gathered.accounted().add_done_callback(lambda _: timer.cancel())
        else:
            timer.cancel()

    def _expired(self, sink: Sink, call: int, timeout: float) -> None:
        from roost.errors import CallTimeoutError

        error = CallTimeoutError(
            f"no reply within {timeout:.3g} s" if timeout > 0 else "the deadline had passed when the call was sent"
        )
        ranks = sink.open_ranks()
        if ranks:
            self.runtime.node.cancel(call)
            sink.fail_ranks([(rank, error) for rank in ranks])

    def room(self, mesh: ActorMesh) -> Broadcast:
        """What a broadcast gives that had to wait: an awaitable that is done when messages to the mesh flow again."""
        return Broadcast(lambda: self.wait_for_room(mesh))

    def cancel_call(self, reply: Reply[Any]) -> None:
        """A reply was cancelled: so is its call."""
        call = getattr(reply, "_call", None)
        if call is not None:
            self.cancel(call)

    def cancel(self, call: int) -> None:
        """Give up on a call or a stream."""
        if not self.runtime.closed and not self.runtime.loop.is_closed():
            self.runtime.on_loop(lambda: self.runtime.node.cancel(call))

    def choose(self, mesh: ActorMesh) -> int:
        """A live rank of a mesh: the less loaded of two picked at random."""
        members = mesh._on._members()
        per = len(mesh._per_proc)
        procs = [members[base // per] for base in mesh._shape.ranks()]
        live = [rank for rank, proc in enumerate(procs) if self.runtime.members.error_of(proc) is None]
        if not live:
            return 0
        return least_loaded(live, lambda rank: self.runtime.node.load(procs[rank]))

    async def wait_for_room(self, mesh: ActorMesh) -> None:
        """Until nothing waits for credit any more on the way to a mesh."""
        procs = mesh._on._members()
        warning = self.runtime.loop.call_later(self.runtime.config.queue_warning_s, self._warn_of_queue, mesh)
        try:
            while any(self.runtime.node.waits(proc) for proc in procs):
                future = self.runtime.loop.create_future()
                self.runtime.node.when_room(future)
                await future
        finally:
            warning.cancel()

    def _warn_of_queue(self, mesh: ActorMesh) -> None:
        _logger.warning(
            "messages to %s have waited for room for %g s: it takes them more slowly than they are sent",
            mesh._name, self.runtime.config.queue_warning_s,
        )  # fmt: skip

    def stopped(self, mesh: ActorMesh) -> None:
        """A verb on a mesh that this process has stopped."""
        record = self.runtime.owned.get(mesh._id)
        reason = None if record is None else record.mesh_stopped
        raise stopped_error(mesh._name, reason or "its job has ended")

    # Answers that are not values -------------------------------------------------------------------------------------------
    def errored(self, sink: Sink, rank: int, payload: bytes) -> None:
        """An endpoint raised."""
        try:
            note, dumped = pickle.loads(payload)
            error = serialize.load_exception(dumped, note)
        except BaseException as broken:  # noqa: BLE001 - whatever a member of the job sends, the call ends
            self.unloadable(sink, rank, broken, "error that an endpoint raised")
            return
        if may_echo(error):
            self.runtime.echoes.hold(sink, rank, error)
        else:
            self.fail(sink, rank, error)

    def dropped(self, sink: Sink, rank: int, payload: bytes) -> None:
        """An actor did not take a message."""
        try:
            error = self._dropped(payload)
        except BaseException as broken:  # noqa: BLE001 - as above
            self.unloadable(sink, rank, broken, "reason why an actor did not take a message")
            return
        self.fail(sink, rank, error)

    def _dropped(self, payload: bytes) -> BaseException:
        if not payload:
            return stopped_error("the actor", "it is not there any more")
        mesh, rank, failure, original, maybe_executed = pickle.loads(payload)
        if failure.kind == "stopped":
            return death_error(failure, maybe_executed=maybe_executed)
        # The owner's own object, so that who gets this error has heard of the failure.
        unheard = self.runtime.hearing.met(mesh, rank, failure, original)
        error = ActorDied(None, unheard.failure, maybe_executed=maybe_executed)
        error.__cause__ = unheard.original()
        return error

    def unloadable(
        self, sink: Sink, rank: int, error: BaseException, what: str = "value that an endpoint returned"
    ) -> None:
        """A value arrived that does not unpickle here."""
        if not may_travel(error):
            # It would end the caller, or pass for its own cancellation.
            error = as_text(error)
        add_note(error, f"while the {what} was unpickled by its caller")
        self.fail(sink, rank, error)

    def fail(self, sink: Sink, rank: int, error: BaseException) -> None:
        """Give a call its error."""
        self.runtime.hearing.carried(error.failure if isinstance(error, ActorDied) else None, sink)
        sink.fail_ranks([(rank, error)])

    # The dead --------------------------------------------------------------------------------------------------------------
    def refused(
        self, sink: Sink | None, mesh: ActorMesh, endpoint: str, gone: list[tuple[int, list[int]]], call: int
    ) -> None:
        """Procs of the mesh are gone or down: their ranks are answered at once, all of them together."""
        if sink is None:
            for proc, ranks in gone:
                self._return(mesh, endpoint, proc, ranks)
            return
        errors: list[tuple[int, BaseException]] = []
        for proc, ranks in gone:
            for rank in ranks:
                error = self._gone_error(mesh, proc, rank)
                self.runtime.hearing.carried(error.failure, sink)
                errors.append((rank, error))
        self.runtime.node.settle(call, [rank for rank, _ in errors])
        sink.fail_ranks(errors)

    def _gone_error(self, mesh: ActorMesh, proc: int, rank: int) -> ActorDied:
        owned = self.runtime.owned.get(mesh._id)
        if owned is not None and owned.mesh_stopped is not None:
            return stopped_error(mesh._name_of(rank), owned.mesh_stopped, mesh=mesh._name, point=mesh._point(rank))
        error = self.runtime.members.error_of(proc)
        if error is not None:
            return error
        return lost_error(mesh._name_of(rank), "its proc is gone", mesh=mesh._name, point=mesh._point(rank))

    def _return(self, mesh: ActorMesh, endpoint: str, proc: int, ranks: list[int]) -> None:
        error = self.runtime.members.error_of(proc)
        failure: Failure | None = None if error is None else error.failure
        reason = "its proc is gone" if failure is None else failure.summary
        for rank in ranks:
            self.runtime.letters.add(mesh._id, mesh._shape.base_rank(rank), endpoint, reason, failure)

    def orphaned(self, lost: list[tuple[Sink, list[int], bool]], error_of: Callable[[bool], ActorDied]) -> None:
        """Calls that a proc's death leaves open."""
        for sink, ranks, maybe_executed in lost:
            error = error_of(maybe_executed)
            self.runtime.hearing.carried(error.failure, sink)
            # The call of one rank names none.
            sink.fail_ranks([(rank, error) for rank in ranks or (0,)])
            self.runtime.echoes.release(sink)
