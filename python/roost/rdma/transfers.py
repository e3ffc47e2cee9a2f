"""The engine of this process, made at first use, and the replies of what it is asked to do."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from roost import gpus, process
from roost._roost import Engine
from roost._tasks import let_tasks_take
from roost.errors import AuthenticationError, CallTimeoutError, PeerLostError, ProtocolError, Unavailable
from roost.rdma.errors import BufferGone, VersionError
from roost.reply import FailedReply, Reply
from roost.values import check_finite, check_flag, check_one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost._roost import Handle, Parts
    from roost.runtime import Runtime

__all__ = ["Transfer", "Transfers", "check_timeout", "error_of", "met", "transfers"]

R = TypeVar("R")

_BACKENDS = ("ibverbs", "same_host", "tcp")
_logger = logging.getLogger("roost.rdma")


# The names of the procs whose buffers have come here, by their lives: for the log.
_owners: dict[tuple[int, int], str] = {}


def met(handle: Handle, owner: str) -> None:
    """A buffer has come here."""
    _owners[handle.owner, handle.incarnation] = owner


def transfers(runtime: Runtime | None = None) -> Transfers:
    """Those of this process.

    Args:
        runtime: whose they are; that of this process, started if need be, when left out.
    """
    runtime = process.current() if runtime is None else runtime
    if runtime.transfers is None:
        runtime.transfers = Transfers(runtime)
    return runtime.transfers


# Thirty years.
_TIMEOUT_MOST_S = 1e9


def check_timeout(timeout: float) -> None:
    """Refuse what is no time.

    Raises:
        TypeError: it is no number.
        ValueError: it is not finite, not above 0, or longer than clocks count.
    """
    check_finite("a transfer's", "timeout", timeout, above=0, most=_TIMEOUT_MOST_S, instead="give seconds")


class Transfer(Reply[R]):
    """The reply of one transfer or drop: cancelled, it ends once no byte is written any more."""

    # No slots of its own: a reply that failed changes its class. `_call` is the number of the transfer.
    __slots__ = ()

    def _cancel_all(self, msg: Any | None) -> bool:
        runtime = process.running()
        if runtime is None or runtime.transfers is None or not runtime.transfers.cancel(self._call):
            return asyncio.Future.cancel(self, msg)
        return True


let_tasks_take(Transfer)


class Transfers:
    """What this process owns, reads and writes of one-sided memory."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        forced = os.environ.get("ROOST_RDMA", "")
        if forced:
            check_one_of("the environment's", "ROOST_RDMA", forced, _BACKENDS)
        self.forced = forced
        library = os.environ.get("ROOST_IBVERBS") or None
        devices = [name for name in os.environ.get("ROOST_RDMA_DEVICES", "").split(",") if name.strip()]
        life = runtime.proc, runtime.incarnation
        try:
            self.engine = Engine.start(
                runtime.control, runtime.job_id, runtime.host_id, life, forced, library, devices, gpus.wanted()
            )
        except TypeError:
            # Of roost.testing's local procs, which have no control thread.
            raise Unavailable(
                "procs of roost.testing that live in the test's process have no one-sided memory"
            ) from None
        self._numbers = count(1)
        # By number: the reply, what it gives, and what is still to be done on a thread.
        self._open: dict[int, tuple[Transfer[Any], Callable[[Any], Any], Callable[[], None] | None]] = {}
        self._cancelled: set[int] = set()
        # By region of this process: whether an update of it was broken off, so that it is still under way for its readers.
        self.broken: set[int] = set()
        runtime.on_loop(lambda: runtime.loop.add_reader(self.engine.fd, self._completed))

    def close(self) -> None:
        """The job has ended, or the process is about to."""
        runtime = self._runtime
        if not runtime.loop.is_closed():
            runtime.loop.remove_reader(self.engine.fd)
        self.engine.close()
        _owners.clear()
        open_, self._open = self._open, {}
        if not runtime.loop.is_closed():
            for reply, _, _ in open_.values():
                _fail(reply, BufferGone("the job has ended, and its one-sided memory with it"))

    def begin(
        self, work: Callable[[int], None], then: Callable[[Any], R], slow: Callable[[], None] | None = None
    ) -> Transfer[R]:
        """Ask the engine for something.

        Args:
            work: asks it, given the number of the transfer.
            then: what the reply gives, made from the version that was read.
            slow: what is to be done before that, on a thread.
        """
        number = next(self._numbers)
        reply: Transfer[R] = Transfer(loop=self._runtime.loop)
        reply._call = number
        self._open[number] = reply, then, slow
        try:
            work(number)
        except BaseException:
            del self._open[number]
            raise
        return reply

    def nothing(self, value: R) -> Reply[R]:
        """The reply of what has nothing to do."""
        reply: Reply[R] = Reply(loop=self._runtime.loop)
        self._runtime.on_loop(partial(reply.set_result, value))
        return reply

    def submit(
        self,
        parts: Parts,
        keep: object,
        timeout: float,
        then: Callable[[Any], R],
        slow: Callable[[], None] | None = None,
        *,
        version: int | None,
        checksum: bool,
    ) -> Transfer[R]:
        """Read and write; all of it is checked, and nothing has begun when this raises."""
        check_timeout(timeout)
        check_flag("a transfer's", "checksum", checksum, "whether both ends compute one")
        return self.begin(
            lambda number: self.engine.submit(number, parts, version, float(timeout), checksum, keep), then, slow
        )

    def together(self, replies: list[Transfer[None]]) -> Reply[None]:
        """The reply of them all."""
        both: Reply[None] = Reply(loop=self._runtime.loop)
        left = len(replies)

        def ended(reply: Transfer[None]) -> None:
            nonlocal left
            left -= 1
            error = None if reply.cancelled() else reply.exception()
            if error is not None:
                _fail(both, error)
            elif not left and not both.done():
                both.set_result(None)

        for reply in replies:
            self._runtime.on_loop(partial(reply.add_done_callback, ended))
        return both

    def drop(self, handle: Handle) -> Transfer[None]:
        """Take a buffer of this process back."""
        self.broken.discard(handle.region)
        return self.begin(lambda number: self.engine.drop_region(handle.region, number), lambda _: None)

    def cancel(self, number: int) -> bool:
        """Nobody wants it any more; False when there is no such transfer. What is told of it then ends its reply."""
        if number not in self._open or self._runtime.closed:
            return False
        self._cancelled.add(number)
        self.engine.cancel(number)
        return True

    def _completed(self) -> None:
        for number, kind, details in self.engine.drain():
            opened = self._open.get(number)
            if opened is None:
                continue
            _, then, slow = opened
            if kind == "done" and slow is not None and number not in self._cancelled:
                work = self._runtime.loop.run_in_executor(None, slow)
                work.add_done_callback(partial(self._slow_done, number, details))
            elif kind == "done":
                self._end(number, partial(then, details[0]))
            else:
                self._end(number, partial(_raise, error_of(kind, details)))
        for life, backend, reason in self.engine.notices():
            owner = _owners.get(life) or f"proc {life[0]}"
            if reason is None:
                _logger.info("memory of %s is reached by %s", owner, backend)
            else:
                _logger.warning("memory of %s is reached by %s, since %s", owner, backend, reason)

    def _slow_done(self, number: int, details: tuple[Any, ...], work: asyncio.Future[None]) -> None:
        if number not in self._open:
            return
        then = self._open[number][1]

        def value() -> Any:
            work.result()
            return then(details[0])

        self._end(number, value)

    def _end(self, number: int, value: Callable[[], Any]) -> None:
        reply = self._open.pop(number)[0]
        if number in self._cancelled:
            # Also where it was done by then: whoever cancelled a task expects it to end so.
            self._cancelled.discard(number)
            asyncio.Future.cancel(reply)
        elif not reply.done():
            try:
                reply.set_result(value())
            except Exception as error:  # noqa: BLE001 - whatever went wrong, its waiter is told
                _fail(reply, error)


def _fail(reply: Reply[Any], error: BaseException) -> None:
    """Give a reply its error; from now on it watches whether somebody hears of it."""
    if not reply.done():
        reply.__class__ = FailedReply
        reply.set_exception(error)


def _raise(error: Exception) -> NoReturn:
    raise error


_ERRORS: dict[str, type[Exception]] = {
    "gone": BufferGone, "peer_lost": PeerLostError, "timed_out": CallTimeoutError, "misuse": ValueError,
    "refused": AuthenticationError, "unavailable": Unavailable, "corrupt": ProtocolError, "failed": ProtocolError,
}  # fmt: skip


def error_of(kind: str, details: tuple[Any, ...]) -> Exception:
    """What users are told of a transfer that went wrong. Also called by Rust, of what is refused at once."""
    if kind == "stale":
        return VersionError(*details)
    return _ERRORS.get(kind, ProtocolError)(str(details[0]))
