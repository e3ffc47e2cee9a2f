"""Actors that die on request, for the tests of life and death. Imported by procs: no pytest here."""

import asyncio
import ctypes
import os
import signal
import sys
import time

from roost import Actor, context, endpoint


class Mortal(Actor):
    def __init__(self, fails: str = ""):
        if fails == "raise":
            raise ValueError("the constructor said no")
        if fails == "exit":
            sys.exit(7)
        self.calls = 0
        self.noted = []

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def incarnation(self) -> int:
        return context().incarnation

    @endpoint
    async def echo(self, value):
        self.calls += 1
        return value

    @endpoint
    async def count(self) -> int:
        return self.calls

    @endpoint
    async def sleep(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    @endpoint
    async def block_loop(self, seconds: int) -> str:
        ctypes.CDLL(None).usleep(seconds * 1_000_000)  # releases the GIL, but holds the loop
        return "blocked"

    @endpoint
    async def hold_gil(self, seconds: int) -> str:
        ctypes.PyDLL(None).usleep(seconds * 1_000_000)
        return "held"

    @endpoint
    def block_thread(self, seconds: int) -> str:
        ctypes.CDLL(None).usleep(seconds * 1_000_000)
        return "blocked"

    @endpoint
    async def deaf(self, seconds: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(seconds)

    @endpoint
    async def say(self, text: str) -> None:
        print(text, file=sys.stderr)

    @endpoint
    async def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(os.getpid(), number)
        time.sleep(10)

    @endpoint
    async def os_exit(self, code: int) -> None:
        os._exit(code)

    @endpoint
    async def exit(self, code) -> None:
        raise SystemExit(code)

    @endpoint
    async def segfault(self) -> None:
        ctypes.string_at(0)

    @endpoint
    async def exit_in_a_task(self, code: int) -> None:
        async def leave() -> None:
            raise SystemExit(code)

        self.leaving = asyncio.create_task(leave())
        await asyncio.sleep(60)

    @endpoint
    async def boom(self, text: str = "boom") -> None:
        raise ValueError(text)

    @endpoint
    async def note(self, text) -> None:
        self.noted.append(text)

    @endpoint
    async def notes(self) -> list:
        return self.noted

    @endpoint
    async def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    async def relay(self, other, name: str, *args):
        return await other.call_one(name, *args)

    @endpoint
    async def tell(self, other, name: str, *args) -> None:
        other.broadcast(name, *args)

    @endpoint
    async def letters(self, count: int):
        """(sender, target, endpoint) of this process's dead letters, once there are so many."""
        while len(context().job.dead_letters) < count:
            await asyncio.sleep(0.01)
        return [(letter.sender, letter.target, letter.endpoint) for letter in context().job.dead_letters]

    @endpoint
    async def stop_self(self, reason: str) -> str:
        context().stop(reason)
        return "stopping"

    @endpoint
    async def abort_self(self, reason: str) -> str:
        context().abort(reason)
        return "aborting"
