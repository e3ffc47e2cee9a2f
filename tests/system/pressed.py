"""Actors under pressure: they block, send without end, spoil their own task. Imported by procs: no pytest here."""

import asyncio
import os
import socket
import stat
import time

from roost import Actor, context, endpoint


class Pressed(Actor):
    def __init__(self):
        self.seen = []

    @endpoint
    async def pid(self):
        return os.getpid()

    @endpoint
    async def block(self, seconds):
        """Read nothing for so long."""
        time.sleep(seconds)

    @endpoint
    async def rest(self):
        """Take nothing until this is cancelled, while others on the loop go on."""
        await asyncio.Event().wait()

    @endpoint
    async def values(self, array):
        """The least and the greatest."""
        return int(array.min()), int(array.max())

    @endpoint
    async def keep(self, number):
        self.seen.append(number)
        return number

    @endpoint
    async def kept(self):
        return self.seen

    @endpoint
    async def large(self, size):
        return b"x" * size

    @endpoint(concurrent=True)
    async def flood(self, other, count, size):
        """Send so many calls with so much at once, and take as many large answers."""
        payload = b"x" * size
        replies = [other.echo.call_one(payload) for _ in range(count)]
        return sum([len(await reply) for reply in replies])

    @endpoint(concurrent=True)
    async def echo(self, value):
        return value

    @endpoint
    async def spoil_task(self, how):
        """End in a way that would hurt the next message of this task."""
        if how == "cancel":
            asyncio.current_task().cancel()
        elif how == "cancel and wait":
            asyncio.current_task().cancel()
            await asyncio.sleep(10)
        elif how == "raise":
            raise asyncio.CancelledError
        return how

    @endpoint
    async def write_rubbish(self):
        """Write what is no frame to every stream socket of this process."""
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            try:
                if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                    continue
                duplicate = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            with duplicate:
                if duplicate.type == socket.SOCK_STREAM and duplicate.family == socket.AF_UNIX:
                    try:
                        duplicate.send(b"\xff" * 4096, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    except OSError:
                        continue
        return context().incarnation
