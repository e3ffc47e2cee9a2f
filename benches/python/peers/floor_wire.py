"""Pickle over a Unix socket, as a careful Python programmer writes it with uvloop: frames, calls, and nothing else.

A frame is a head (length of the body, length of the pickle, number of buffers), the buffers' lengths, the pickle, and
the buffers themselves. A frame that does not fit the small reused buffer is received straight into memory of its own,
and its buffers are views of that. There is no routing, no order across connections, no bound and no supervision.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HEAD = struct.Struct("<QII")
SMALL_BYTES = 256 * 1024
OUT_OF_BAND_BYTES_MIN = 32 * 1024


def encode(message: tuple[Any, ...]) -> list[Any]:
    """Gives the pieces of a frame; its last element travels out of band when it is large bytes."""
    value = message[-1]
    if type(value) in (bytes, memoryview) and len(value) >= OUT_OF_BAND_BYTES_MIN:
        message = (*message[:-1], pickle.PickleBuffer(value))
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, 5, buffer_callback=buffers.append)
    if not buffers:
        return [HEAD.pack(len(body), len(body), 0) + body]
    views = [buffer.raw() for buffer in buffers]
    lengths = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    total = len(lengths) + len(body) + sum(view.nbytes for view in views)
    return [HEAD.pack(total, len(body), len(views)) + lengths + body, *views]


def decode(body: memoryview, pickle_bytes: int, buffer_count: int) -> tuple[Any, ...]:
    """Gives back the message; its buffers are views of `body`."""
    if not buffer_count:
        return pickle.loads(body)
    lengths = struct.unpack_from(f"<{buffer_count}Q", body)
    at = 8 * buffer_count
    head, at = body[at : at + pickle_bytes], at + pickle_bytes
    buffers = []
    for length in lengths:
        buffers.append(body[at : at + length])
        at += length
    return pickle.loads(head, buffers=buffers)


class Connection(asyncio.BufferedProtocol):
    """One end of a socket: whole messages out of `receive`, and `send`."""

    def __init__(
        self,
        receive: Callable[[Connection, tuple[Any, ...]], None],
        lost: Callable[[], None],
        made: Callable[[], None] = lambda: None,
    ) -> None:
        self.receive, self.lost, self.made = receive, lost, made
        self.small = memoryview(bytearray(SMALL_BYTES))
        self.start = self.end = 0
        self.large: memoryview | None = None
        self.large_head = (0, 0)
        self.large_end = 0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.made()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost()

    def send(self, message: tuple[Any, ...]) -> None:
        pieces = encode(message)
        if len(pieces) == 1:
            self.transport.write(pieces[0])
        else:
            self.transport.writelines(pieces)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.small[self.end :] if self.large is None else self.large[self.large_end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.large is not None:
            self.large_end += nbytes
            if self.large_end < len(self.large):
                return
            body, self.large = self.large, None
            self.receive(self, decode(body, *self.large_head))
            return
        self.end += nbytes
        self.take_frames()

    def take_frames(self) -> None:
        """Hands on every whole frame of the small buffer; begins a large one when the next does not fit."""
        while self.end - self.start >= HEAD.size:
            length, pickle_bytes, buffer_count = HEAD.unpack_from(self.small, self.start)
            body = self.start + HEAD.size
            if body + length > self.end:
                if length > SMALL_BYTES - HEAD.size:
                    self.begin_large(length, (pickle_bytes, buffer_count), self.small[body : self.end])
                    return
                break
            self.start = body + length
            view = self.small[body : self.start]
            if buffer_count:
                view = memoryview(bytearray(view))
            self.receive(self, decode(view, pickle_bytes, buffer_count))
        rest = self.end - self.start
        if self.start and (not rest or self.start > SMALL_BYTES // 2):
            self.small[:rest] = self.small[self.start : self.end]
            self.start, self.end = 0, rest

    def begin_large(self, length: int, head: tuple[int, int], seen: memoryview) -> None:
        self.large, self.large_head, self.large_end = memoryview(bytearray(length)), head, len(seen)
        self.large[: len(seen)] = seen
        self.start = self.end = 0


class Worker:
    """The process at the other end: a dict of counters stands for its actors."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def receive(self, connection: Connection, message: tuple[Any, ...]) -> None:
        call, actor, endpoint, value = message
        if endpoint == "hang":
            return
        if endpoint == "count_up":
            self.counts[actor] = self.counts.get(actor, 0) + 1
            return
        if endpoint == "pid":
            value = os.getpid()
        elif endpoint == "counted":
            value = self.counts.get(actor, 0)
        connection.send((call, value))


async def serve(path: str) -> None:
    """Connects to the caller and answers until it is gone."""
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()
    worker = Worker()
    await loop.create_unix_connection(lambda: Connection(worker.receive, lambda: gone.set_result(None)), path)
    await gone


def main(arguments: Sequence[str]) -> None:
    """Runs a worker for the caller that listens at the given path."""
    import uvloop

    uvloop.run(serve(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
