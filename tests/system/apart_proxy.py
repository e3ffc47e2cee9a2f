"""Between two ends of a lane: a proxy that lets only so many bytes through before it cuts. No pytest here."""

import asyncio
import contextlib
import socket

_CHUNK = 1 << 16


async def connect(port):
    """Streams to a port of this machine. uvloop would start threads for the name of a host, and keep them."""
    made = socket.create_connection(("127.0.0.1", port))
    return await asyncio.open_connection(sock=made)


class Proxy:
    """Passes bytes on to a port of this machine, both ways."""

    def __init__(self, target):
        self.target = target
        self.port = 0
        self.cuts = 0
        # What the last connection began with, on its way there.
        self.greeting = b""
        self._next = {}
        self._tasks = set()
        self._ends = set()

    def allow(self, way, count):
        """On the next connection, so many bytes go `there` or `back`; then it is cut."""
        self._next = {way: count}

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, sock=socket.create_server(("127.0.0.1", 0)))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for end in self._ends:
            end.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        budget, self._next = self._next, {}
        try:
            other_reader, other_writer = await connect(self.target)
        except OSError:
            writer.close()
            return
        ends = {writer, other_writer}
        self._ends |= ends
        ways = [
            asyncio.ensure_future(self._pass("there", reader, other_writer, budget)),
            asyncio.ensure_future(self._pass("back", other_reader, writer, budget)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in ends:
                end.transport.abort()
            self._ends -= ends
            self._tasks.discard(task)

    async def _pass(self, way, reader, writer, budgets):
        budget = budgets.get(way)
        with contextlib.suppress(OSError):
            while budget is None or budget > 0:
                bytes_ = await reader.read(_CHUNK if budget is None else min(_CHUNK, budget))
                if not bytes_:
                    return
                if way == "there" and len(self.greeting) < 88:
                    self.greeting = (self.greeting + bytes_)[:88]
                writer.write(bytes_)
                await writer.drain()
                if budget is not None:
                    budget -= len(bytes_)
            self.cuts += 1
            # What was let through arrives.
            await asyncio.sleep(0.002)
