"""Who sits between the driver and a host: what goes through it is late, in crumbs, cut off, changed, doubled or swallowed."""

import asyncio
import socket


class Way:
    """One direction of a connection that goes through the proxy."""

    def __init__(self, writer, close, sent):
        self.writer, self.close = writer, close
        # What was sent to the host first, in either direction's eyes.
        self.sent = sent
        self.is_changed = False
        # Bytes that went through, and how many had when the manner began.
        self.count = self.begin = 0

    @property
    def is_lane(self):
        """Whether it leads to a proc, not to the host itself."""
        return any(self.sent[52:60])

    def cut_off(self, chunk, at):
        """What of a chunk lies before a place, counted from where the manner began, and what behind it."""
        keep = max(0, min(len(chunk), at - (self.count - self.begin)))
        return chunk[:keep], chunk[keep:]


async def fair(way, chunk):
    """As it comes."""
    way.writer.write(chunk)


def delayed(seconds):
    """Everything comes later."""

    async def manner(way, chunk):
        await asyncio.sleep(seconds)
        way.writer.write(chunk)

    return manner


def late_lanes(seconds):
    """What goes to and from procs comes later, all else as it comes."""

    async def manner(way, chunk):
        if way.is_lane:
            await asyncio.sleep(seconds)
        way.writer.write(chunk)

    return manner


def dribbled(size):
    """A few bytes in each packet."""

    async def manner(way, chunk):
        for begin in range(0, len(chunk), size):
            way.writer.write(chunk[begin : begin + size])
            await asyncio.sleep(0)

    return manner


async def lengthened(way, chunk):
    """On its way to or from a proc a record of TLS says once that it is longer: whoever reads it waits for the rest."""
    if way.is_lane and not way.is_changed and chunk[:1] == b"\x17":
        way.is_changed = True
        chunk = chunk[:3] + bytes([chunk[3] ^ 0x10]) + chunk[4:]
    way.writer.write(chunk)


def cut_at(at):
    """The connection ends before that byte."""

    async def manner(way, chunk):
        before, behind = way.cut_off(chunk, at)
        way.writer.write(before)
        if behind:
            await asyncio.sleep(0)
            way.close()

    return manner


def swallowed_at(at):
    """Nothing comes from that byte on, and the connection stays."""

    async def manner(way, chunk):
        way.writer.write(way.cut_off(chunk, at)[0])

    return manner


def rewritten_at(at):
    """That byte has another bit."""

    async def manner(way, chunk):
        before, behind = way.cut_off(chunk, at)
        if behind and way.count - way.begin + len(before) == at:
            behind = bytes([behind[0] ^ 0x10]) + behind[1:]
        way.writer.write(before + behind)

    return manner


def repeated_at(at):
    """That byte comes twice."""

    async def manner(way, chunk):
        before, behind = way.cut_off(chunk, at)
        if behind and way.count - way.begin + len(before) == at:
            behind = behind[:1] + behind
        way.writer.write(before + behind)

    return manner


class Proxy:
    """Listens on the driver's machine and calls a host from there, or from an address that only it has."""

    def __init__(self, network, host, source=None):
        self._network, self._host = network, host
        self._source = None if source is None else (source, 0)
        self._manner = fair
        self._ways, self._tasks = set(), set()
        self._server = None
        # Both as recorded: what was sent to the host first, for each connection.
        self.sent = []

    @property
    def where(self):
        """What to call in place of the host."""
        return f"{self._network.driver}:{self._port}"

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._take, self._network.driver, 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for way in list(self._ways):
            way.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def behave(self, manner):
        """From now on, on all connections; on those there are, counted from now."""
        self._manner = manner
        for way in self._ways:
            way.begin = way.count

    async def _take(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        try:
            there, to_there = await asyncio.open_connection(
                self._host.address, self._host.port, local_addr=self._source
            )
        except OSError:
            writer.transport.abort()
            return
        for one in (writer, to_there):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def close():
            writer.transport.abort()
            to_there.transport.abort()

        sent = bytearray()
        self.sent.append(sent)
        await asyncio.gather(
            self._pump(reader, Way(to_there, close, sent), sent),
            self._pump(there, Way(writer, close, sent), bytearray()),
        )

    async def _pump(self, reader, way, recorded):
        self._ways.add(way)
        try:
            while chunk := await reader.read(1 << 16):
                recorded += chunk[: max(0, 4096 - len(recorded))]
                await self._manner(way, chunk)
                way.count += len(chunk)
                await way.writer.drain()
        except OSError:
            pass
        finally:
            self._ways.discard(way)
            way.close()
