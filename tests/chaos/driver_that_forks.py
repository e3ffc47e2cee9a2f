"""A driver, and a proc of it, fork while calls are in flight; what the children may not do and how soon they hear of it."""

import asyncio
import multiprocessing
import os
import sys
import time

from roost import Actor, Channel, endpoint, run, this_host

forks = multiprocessing.get_context("fork")


class Forking(Actor):
    @endpoint
    async def nap(self, seconds):
        await asyncio.sleep(seconds)
        return "slept"

    @endpoint
    async def echo(self, value):
        return value

    @endpoint
    async def fork(self, other):
        return await forked(other)


def child(mesh, told):
    """Use everything; tell what came of it, and the seconds that all of it took."""
    begin, texts = time.monotonic(), []
    for act in (
        lambda: mesh.echo.call_one(1),
        lambda: mesh.echo.broadcast(1),
        this_host().spawn_procs,
        Channel.open,
        mesh.stop,
    ):
        try:
            act()
        except RuntimeError as error:
            texts.append(str(error))
        else:
            texts.append("it was not refused")
    told.send((time.monotonic() - begin, texts))
    # As a program ends, not as multiprocessing does: with all exit handlers.
    sys.exit(0)


async def forked(mesh):
    """Fork while a call is in flight, and wait for both."""
    pending = mesh.nap.call_one(0.1)
    await asyncio.sleep(0.01)
    heard, told = forks.Pipe(duplex=False)
    process = forks.Process(target=child, args=(mesh, told))
    process.start()
    told.close()
    seconds, texts = await asyncio.to_thread(heard.recv)
    await asyncio.to_thread(process.join)
    assert process.exitcode == 0, process.exitcode
    assert all("forked" in text for text in texts), texts
    assert await pending == "slept"
    return seconds


async def main(count):
    seconds = []
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        first, second = await procs.spawn("forking", Forking)
        for _ in range(count):
            seconds.append(await forked(first))
            seconds.append(await first.fork.call_one(second))
        assert await second.echo.call_one(os.getpid()) == os.getpid()
    print(repr(seconds))


if __name__ == "__main__":
    run(main(int(sys.argv[1])))
