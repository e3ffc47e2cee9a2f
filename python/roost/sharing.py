"""Shared memory on its way: what is captured to send, what was received, and who may have it back."""

from __future__ import annotations

import functools
import logging
import os
import struct
from typing import TYPE_CHECKING, Any

from roost import serialize
from roost._roost import INLINE_BYTES_MAX, SegmentMap, SegmentPart, SegmentPool
from roost.errors import MessageTooLargeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roost.runtime import Runtime

__all__ = ["Sharing"]

_logger = logging.getLogger("roost")

# How often idle shared memory is given back.
_TRIM_S = 10.0
_RELEASE = struct.Struct("<QIB")
_SEGMENT = struct.Struct("<Q")


class Sharing:
    """The shared memory of one process: a pool that it sends from, a map of what others sent."""

    def __init__(self, runtime: Runtime) -> None:
        bytes_max = runtime.config.segments_bytes_max
        self._runtime = runtime
        self.pool = SegmentPool(bytes_max=bytes_max, segment_bytes_min=runtime.config.segment_bytes_min)
        self.map = SegmentMap(kept_bytes_max=bytes_max // 2)
        # The classes sent by value that each peer has.
        self._known: dict[int, set[bytes]] = {}
        self._trimming = False
        self._releasing = False

    # Sending -----------------------------------------------------------------------------------------------------------
    def dump(self, value: Any, receiver: int) -> Any:
        """Pickle an answer that is not plain, with its parts captured."""
        return self.capture(serialize.dumps(value), (receiver,))

    def capture(self, dumped: Any, procs: Sequence[int], *, alone: bool = False) -> Any:
        """Make what was pickled independent of the user's memory.

        Classes that travel by value go ahead of it, once to each proc; with `alone` they are inside, for a message that may
        reach a later incarnation.
        """
        if type(dumped) is bytes:
            return dumped
        if alone:
            payload = serialize.alone(dumped)
        else:
            payload = dumped.payload
            if dumped.definitions:
                self._runtime.on_loop(functools.partial(self._define, dumped.definitions, procs))
        if not dumped.buffers:
            return payload
        if all(proc == self._runtime.proc for proc in procs):
            return payload, self.map.copies(dumped.buffers)
        if not self._trimming:
            self._trimming = True
            self._runtime.loop.call_soon_threadsafe(self._trim)
        # A later incarnation may be on this host.
        far = not alone and all(map(self._runtime.node.is_far, procs))
        return payload, self.pool.capture(dumped.buffers, far=far)

    def sizes_of(self, captured: bytes | tuple[bytes, Sequence[Any]]) -> tuple[int, int]:
        """Bytes of what was captured: all of them, and those outside shared memory."""
        if isinstance(captured, bytes):
            return len(captured), len(captured)
        payload, parts = captured
        inline = len(payload) + sum(memoryview(part).nbytes for part in parts if not isinstance(part, SegmentPart))
        return inline + sum(part.length for part in parts if isinstance(part, SegmentPart)), inline

    def _define(self, definitions: tuple[bytes, ...], procs: Sequence[int]) -> None:
        """Send the classes that these procs do not have; in order with the message that names them."""
        node = self._runtime.node
        for proc in procs:
            if proc == self._runtime.proc:
                continue
            home = serialize.home(proc, node.incarnation_of(proc))
            forms = serialize.closure(definitions, self._known.setdefault(proc, set()), home)
            if len(forms) > INLINE_BYTES_MAX:
                del self._known[proc]  # it does not get them
                what = "definition of a class or function"
                raise MessageTooLargeError(len(forms), INLINE_BYTES_MAX, "", what)
            if forms:
                self._runtime.send_system(proc, 1, ".defines", forms, [])

    def learn(self, _mesh: int, sender: int, _ranks: list[tuple[int, int]], payload: bytes) -> None:
        """Another proc is about to name these classes."""
        serialize.learn(payload, self._known.setdefault(sender, set()))

    def _trim(self) -> None:
        """Give idle shared memory back, now and then."""
        if self._runtime.closed:
            return
        self.pool.trim()
        for receiver, segment in self.pool.drain_forgotten():
            self._runtime.send_system(receiver, 1, ".forgotten", _SEGMENT.pack(segment), [])
        self._runtime.loop.call_later(_TRIM_S, self._trim)

    def offer(self, proc: int, segment: int, size: int, fd: int) -> None:
        """Hand a segment to a receiver; its answer comes by the control thread."""
        try:
            self._runtime.control.segment_offer(proc, segment, size, fd)
        except OSError as error:
            _logger.warning("a segment cannot be handed over, its bytes are copied instead: %s", error)
            self.pool.answered(proc, segment, False)
            self._runtime.loop.call_soon(self._runtime.node.retry, proc)
        finally:
            os.close(fd)

    def answered(self, receiver: int, segment: int, ok: bool) -> None:
        """A receiver has mapped a segment, or cannot."""
        self.pool.answered(receiver, segment, ok)
        self._runtime.node.retry(receiver)

    def given_back(self, _mesh: int, sender: int, _ranks: list[tuple[int, int]], payload: bytes) -> None:
        """A receiver let parts go."""
        for segment, generation, retire in _RELEASE.iter_unpack(payload):
            self.pool.released(sender, segment, generation, bool(retire))

    # Receiving ---------------------------------------------------------------------------------------------------------
    def offered(self, sender: int, segment: int, size: int, fd: int) -> None:
        """Somebody wants to send by way of this segment."""
        ok = fd >= 0
        if ok:
            try:
                self.map.add(sender, segment, size, fd)
            except OSError as error:
                _logger.warning("a segment of %d bytes cannot be mapped, its sender copies instead: %s", size, error)
                ok = False
        self._runtime.control.segment_ack(sender, segment, ok)

    def release_soon(self) -> None:
        """Parts of received segments were let go; senders are told together, a little later."""
        if not self._releasing:
            self._releasing = True
            self._runtime.loop.call_soon(self._tell_releases)

    def _tell_releases(self) -> None:
        self._releasing = False
        notes: dict[int, bytearray] = {}
        for sender, segment, generation, retire in self.map.drain_released():
            notes.setdefault(sender, bytearray()).extend(_RELEASE.pack(segment, generation, retire))
        for sender, note in notes.items():
            self._runtime.send_system(sender, 1, ".released", bytes(note), [])

    def forget(self, _mesh: int, _sender: int, _ranks: list[tuple[int, int]], payload: bytes) -> None:
        """A sender has given segments back to the system."""
        for (segment,) in _SEGMENT.iter_unpack(payload):
            self.map.forget(segment)

    # Ends --------------------------------------------------------------------------------------------------------------
    def peer_gone(self, proc: int) -> None:
        """A process has ended: what it sent and what it held is free."""
        self.map.sender_gone(proc)
        self.pool.receiver_gone(proc)
        self._known.pop(proc, None)

    def close(self) -> None:
        """The job has ended: its segments go, also when something holds on to this."""
        self.pool = SegmentPool(bytes_max=0)

    def before_fork(self) -> None:
        """A forked child would see the next message in pages that it shares: segments in use never go back."""
        self.map.before_fork()
