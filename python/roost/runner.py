"""`Runner`: one actor at work. Workers (workers.py) run it, a message at a time."""

from __future__ import annotations

import asyncio
import pickle
from contextvars import Context
from typing import TYPE_CHECKING, Any

from roost import serialize
from roost._exceptions import as_text, one_line, tame, traceback_text
from roost.context import handling
from roost.errors import CallTimeoutError, RemoteError

if TYPE_CHECKING:
    from roost._roost import Cell, Message
    from roost.actor_mesh import ActorMesh
    from roost.context import Handling
    from roost.endpoint_info import EndpointInfo
    from roost.failure import Failure
    from roost.hosted import HostedMesh
    from roost.point import Point
    from roost.reply_port import ReplyPort
    from roost.threads import Threads

__all__ = ["Runner"]

_ENDPOINT_RUNS = "one of its endpoints still runs"


class Runner:
    """One actor of this process: its instance, its mailbox, and the worker that is at it."""

    __slots__ = (
        "_error",
        "_finishing",
        "_is_probed",
        "_threads",
        "called_off",
        "cancelled",
        "cell",
        "concurrent",
        "failure",
        "hosted",
        "incarnation",
        "instance",
        "is_up",
        "meshes",
        "rank",
        "restarts_after_s",
        "serial",
        "stopped_itself",
        "stopping",
        "task",
    )

    def __init__(self, hosted: HostedMesh, rank: int, cell: Cell, incarnation: int) -> None:
        self.hosted = hosted
        self.rank = rank
        self.cell = cell
        self.incarnation = incarnation
        self.instance: Any = None
        # The message that runs alone, and whether its caller cancelled it.
        self.serial: Message | None = None
        self.cancelled = False
        # Whether it was constructed.
        self.is_up = False
        # Its `__healthy__` runs.
        self._is_probed = False
        # Messages that run beside others, each with its task.
        self.concurrent: dict[asyncio.Task[None], Message] | None = None
        # Why it ends, once it does; the exception that it failed with; what callers are told of it.
        self.stopping: str | None = None
        self._error: BaseException | None = None
        self.failure: Failure | None = None
        self.stopped_itself = False
        # Its last steps, while it takes them: what it waits for.
        self._finishing = ""
        # The pause before it is constructed anew; None when it is not.
        self.restarts_after_s: float | None = None
        # Whether it was to be, which its owner has heard of or asked for, and is not any more: its end is told as well.
        self.called_off = False
        # Those of `def` endpoints, from the first on.
        self._threads: Threads | None = None
        # Meshes that this actor spawned: they end with it.
        self.meshes: list[Any] | None = None
        # The worker that is at it.
        self.task: asyncio.Task[None] | None = None

    # What `context()` shows.
    @property
    def name(self) -> str:
        return self.hosted.name

    @property
    def point(self) -> Point:
        return self.hosted.point(self.rank)

    @property
    def mesh(self) -> ActorMesh:
        return self.hosted.handle

    # While the constructor runs, `handling` holds the runner itself.
    @property
    def runner(self) -> Runner:
        return self

    @property
    def sizes(self) -> bytes:
        return self.hosted.sizes

    async def begin(self) -> None:
        """Construct the actor, when that is what is due; called by a worker, as everything that follows."""
        if self.stopping is not None or self.is_up:
            return
        handling.set(self)
        try:
            self.instance = self.hosted.construct()
            start = getattr(type(self.instance), "__start__", None)
            if start is not None:
                await start(self.instance)
        except SystemExit as ending:
            self._exit(ending)
            return
        except BaseException as error:
            if self.stopping is None:
                self._end(error, during="its constructor")
            return
        self.is_up = True
        self.hosted.up(self)

    async def handle_slowly(self, message: Message) -> None:
        """A message that is not a plain `async def` endpoint's, alone."""
        endpoint = message.endpoint
        if endpoint is None:
            self._unknown(message)
        elif endpoint.concurrent:
            # Until it starts it is the one that a cancel finds.
            await self._start_concurrent(message, endpoint)
        else:
            await self._handle(message, endpoint)

    async def until_alone(self, message: Message) -> None:
        """Wait for the concurrent endpoints, unless this message may run beside them."""
        endpoint = message.endpoint
        if endpoint is None or not endpoint.concurrent:
            await self._concurrent_done()
            _refuse_late(message)

    async def _handle(self, message: Message, endpoint: EndpointInfo) -> None:
        """Handle one message of any kind of endpoint; every error is answered."""
        try:
            if endpoint.kind == "async":
                args, kwargs = message.open()
                message.reply(await endpoint.function(self.instance, *args, **(kwargs or {})))
            elif endpoint.kind == "sync":
                message.reply(await self._with_threads().run(endpoint, *message.open()))
            elif endpoint.kind == "stream":
                await self._stream(message, endpoint)
            else:
                await self._with_port(message, endpoint)
        except BaseException as error:
            self.raised(message, error)

    def _with_threads(self) -> Threads:
        if self._threads is None:
            from roost.threads import Threads

            self._threads = Threads(self)
        return self._threads

    async def _stream(self, message: Message, endpoint: EndpointInfo) -> None:
        args, kwargs = message.open()
        values = endpoint.function(self.instance, *args, **(kwargs or {}))
        try:
            if message.wants_stream:
                async for value in values:
                    sent = message.item(value)
                    behind = None if sent is None else self.hosted.runtime.streams.behind(message, sent)
                    if sent is None or (behind is not None and not await behind.room(sent)):
                        break  # its reader's process has ended
                message.end()
            else:
                message.reply([value async for value in values])
        finally:
            self.hosted.runtime.streams.done(message)
            await values.aclose()

    async def _with_port(self, message: Message, endpoint: EndpointInfo) -> None:
        from roost.reply_port import ReplyPort

        args, kwargs = message.open()
        port: ReplyPort[Any] = ReplyPort(message)
        try:
            if endpoint.is_async:
                await endpoint.function(self.instance, port, *args, **(kwargs or {}))
            else:
                await self._with_threads().run(endpoint, (port, *args), kwargs)
        except Exception as error:
            if message.answered or not message.has_caller:
                raise
            port.error(error)

    # Concurrent endpoints ---------------------------------------------------------------------------------------------
    async def _start_concurrent(self, message: Message, endpoint: EndpointInfo) -> None:
        """Start a message beside the others, when its limit lets it; messages start in the order in which they were sent."""
        if self.concurrent is None:
            self.concurrent = {}
        if endpoint.limit is not None:
            key = endpoint.group or endpoint.name
            while True:
                same = [task for task, other in self.concurrent.items() if (other.endpoint.group or other.name) == key]
                if len(same) < endpoint.limit:
                    break
                await asyncio.wait(same, return_when=asyncio.FIRST_COMPLETED)
            _refuse_late(message)
        scope = Context()
        scope.run(handling.set, message)
        task = self.hosted.loop.create_task(self._handle(message, endpoint), context=scope)
        self.concurrent[task] = message
        task.add_done_callback(self._concurrent_ended)

    def _concurrent_ended(self, task: asyncio.Task[None]) -> None:
        message = None if self.concurrent is None else self.concurrent.pop(task, None)
        if message is not None and task.cancelled() and not message.answered:
            # It was cancelled before its first step, and could not see to its message itself.
            self.raised(message, asyncio.CancelledError())

    async def _concurrent_done(self) -> None:
        while self.concurrent:
            await asyncio.wait(list(self.concurrent))

    # Ends of messages -------------------------------------------------------------------------------------------------
    def raised(self, message: Message, error: BaseException) -> None:
        """Answer a message whose endpoint raised; without a caller the error fails the actor."""
        error = tame(error)
        if not message.loaded and not isinstance(error, Exception | asyncio.CancelledError):
            # Its endpoint has not begun: who sent these arguments ends nothing here.
            error = as_text(error)
        if isinstance(error, SystemExit):
            self._exit(error)
            return
        if isinstance(error, asyncio.CancelledError):
            if message.cancelled:
                message.drop()
                return
            if self.stopping is not None:
                self.hosted.give_back(message, self)
                return
            if self.hosted.runtime.exit_code is not None:
                return  # its loop was ended, and so is its process
            # It would look to the caller's task as if that task had been cancelled.
            error = RemoteError("asyncio.CancelledError", "the endpoint cancelled itself", traceback_text(error))
        if not message.loaded and isinstance(error, Exception) and not message.has_caller:
            # Poisonous arguments hurt only their own message.
            message.drop()
            self.hosted.dead_letter(message, f"its arguments did not unpickle: {one_line(error)}")
            return
        answers = message.has_caller and not message.answered
        if answers:
            self.answer_error(message, error)
        else:
            message.drop()
        if not answers or not isinstance(error, Exception):
            self._end(error, during=message.name)

    def answer_error(self, message: Message, error: BaseException) -> None:
        if message.wants_stream:
            self.hosted.runtime.streams.done(message)
        message.reply_error(pickle.dumps((self.hosted.note(message), serialize.dump_exception(error)), 5))

    def _unknown(self, message: Message) -> None:
        known = ", ".join(sorted(self.hosted.endpoints)) or "none"
        error = AttributeError(f"{self.hosted.class_name} has no endpoint {message.name!r}; it has: {known}")
        if message.has_caller:
            self.answer_error(message, error)
        else:
            message.drop()
            self.hosted.dead_letter(message, str(error))

    def cancel(self, message: Message) -> None:
        """The caller cancelled a message that runs already."""
        if message.wants_stream:
            self.hosted.runtime.streams.done(message)
        if message is self.serial:
            self.cancelled = True
            if self.task is not None:
                self.task.cancel()
            return
        for task, other in (self.concurrent or {}).items():
            if other is message:
                task.cancel()
                return
        # Its endpoint has returned: whoever has its port answers nobody.
        message.drop()

    # The actor's end --------------------------------------------------------------------------------------------------
    def stop(self, reason: str) -> None:
        """End normally: running `async` endpoints are cancelled at once, queued messages go back."""
        if self.stopping is None:
            self.stopping = reason
            self.failure = self.hosted.stopping(self, reason)
        # Also when it ends already by itself: what still runs then is not waited for.
        self._cancel_all(None)

    def stop_self(self, reason: str) -> None:
        """`context().stop()`: end once the endpoint that calls it has returned; the others are cancelled."""
        if self.stopping is None:
            self.stopping = reason
            self.stopped_itself = True
            self.failure = self.hosted.stopping(self, reason)
            self._cancel_all(self._own_task())

    def abort_self(self, reason: str) -> None:
        """`context().abort()`: fail; the endpoint that calls it goes on to its end."""
        self._end(RuntimeError(reason), "abort()", self._own_task())

    def call_off(self) -> None:
        """It is to be stopped, and not constructed anew, whatever it was about to do."""
        self.called_off = self.called_off or self.restarts_after_s is not None
        self.restarts_after_s, self.stopped_itself = None, False

    def _exit(self, ending: SystemExit) -> None:
        """An endpoint ends the process: its caller, and all others, hear of that by the process's death."""
        self.stopping = self.stopping or "its process exits"
        self.hosted.exit_process(ending)
        self._cancel_all(None)

    def fail(self, error: BaseException, during: str) -> bool:
        """Something that this actor is responsible for failed, and it did not handle that. False when it is ending anyway."""
        is_new = self.stopping is None
        self._end(error, during)
        return is_new

    def _end(self, error: BaseException, during: str, spared: asyncio.Task[Any] | None = None) -> None:
        """Fail the actor: whoever waits for it hears of it, and so does its owner."""
        if self.stopping is not None:
            return
        error = tame(error)
        self.stopping = f"failed: {one_line(error)}"
        self._error = error
        self.failure = self.hosted.failing(self, error, during)
        self._cancel_all(spared)

    def task_of(self, message: Handling) -> asyncio.Task[Any] | None:
        """The task that handles a message."""
        if message is self.serial:
            return self.task
        return next((task for task, other in (self.concurrent or {}).items() if other is message), None)

    def _own_task(self) -> asyncio.Task[Any] | None:
        """The task of the endpoint that calls, which may run on a thread."""
        message = handling.get()
        return None if message is None else self.task_of(message)

    def _cancel_all(self, spared: asyncio.Task[Any] | None) -> None:
        """Cancel what runs, but not who asks for it."""
        asking = _current_task()
        for task in (*(self.concurrent or ()), self.task):
            if task is not None and task is not spared and task is not asking:
                task.cancel()
        if self.task is None and not self._finishing:
            # A worker does the actor's last steps.
            self.cell.rouse()

    async def probe(self) -> None:
        """Ask the actor whether it is healthy, beside whatever it does; one that has not answered yet is not asked again."""
        if self._is_probed or not self.is_up or self.stopping is not None:
            return
        handling.set(self)
        self._is_probed = True
        wrong = ""
        try:
            if not await self.instance.__healthy__():
                wrong = "__healthy__ said no"
        except Exception as error:
            wrong = f"__healthy__ raised {one_line(error)}"
        finally:
            self._is_probed = False
        if self.stopping is None:
            self.hosted.probed(self, wrong)

    def abandon(self) -> None:
        """Its proc is gone, and its process goes on (`roost.testing`): what still runs finds nothing to clean up."""
        self.stopping = self.stopping or "its proc ended"
        self.meshes, self.is_up = None, False
        if self.task is None:
            self.cell.release()
        if self._threads is not None:
            self._threads.close()

    def owns(self, mesh: Any) -> None:
        """This actor spawned a mesh, which ends with it."""
        if self.meshes is None:
            self.meshes = []
        self.meshes.append(mesh)

    @property
    def overdue(self) -> str:
        """What keeps an actor from ending that was told to."""
        return self._finishing or _ENDPOINT_RUNS

    async def finish(self) -> None:
        """The last steps: what it owns is stopped, threads get a while to end, `__cleanup__` runs, the owner hears of it."""
        self._finishing = _ENDPOINT_RUNS
        handling.set(self)
        reason = self.stopping or "stopped"
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        await self._concurrent_done()
        self._finishing = "it still waits for meshes that it owns to stop"
        while self.meshes:
            # Its hook may still spawn some meanwhile.
            mesh = self.meshes.pop()
            try:
                await mesh.stop(f"its owner {self.hosted.rank_name(self.rank)} ended: {reason}")
            except Exception as error:
                self.hosted.warn(f"stopping {mesh!r}, owned by {self.name}: {one_line(error)}")
        self._finishing = "its threads, or its __cleanup__, still run"
        if self._threads is not None:
            await self._threads.settled(self.hosted.runtime.threads_wait_s())
        cleanup = getattr(type(self.instance), "__cleanup__", None) if self.is_up else None
        if cleanup is not None:
            try:
                async with asyncio.timeout(self.hosted.cleanup_timeout_s):
                    await cleanup(self.instance, self._error)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                # CancelledError too: it comes of a task of the actor's own that `__cleanup__` cancelled and awaited.
                self.hosted.warn(f"__cleanup__ of {self.hosted.rank_name(self.rank)}: {one_line(error)}")
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        self.hosted.ended(self, reason, failed=self._error is not None)
        # The instance may hold much, and whoever holds its handle must not keep it.
        self.instance = None


def _refuse_late(message: Message) -> None:
    """A call that waited beyond its deadline does not start: its caller has given it up."""
    if message.late:
        raise CallTimeoutError("the deadline passed before the endpoint started")


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # a thread
