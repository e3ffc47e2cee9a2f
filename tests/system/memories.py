"""Who owns memory and who reads it, for the tests of one-sided memory. No pytest here."""

import asyncio
import contextlib
import ctypes
import mmap
import os
import time

import nics
import numpy as np
from loops import handled

from roost import Actor, ProcessHosts, endpoint, this_host
from roost.rdma import Buffer, empty
from roost.rdma.transfers import transfers

MIB = 1 << 20
# Calls into it keep the interpreter's lock.
LOCKED = ctypes.PyDLL(None)
LIBC = ctypes.CDLL(None, use_errno=True)


def pattern(size, seed=0):
    block = ((np.arange(251 * 257) * 7 + (np.arange(251 * 257) >> 8)) % 251).astype(np.uint8)
    return np.resize(block + np.uint8(seed), size)


class Owner(Actor):
    """Lends memory, of numpy's or shared, and looks at what became of it."""

    def __init__(self, kind="array"):
        self.kind = kind
        self.memory = {}

    def new(self, size):
        return np.frombuffer(empty(size), np.uint8) if self.kind == "shared" else np.zeros(size, np.uint8)

    @endpoint(concurrent=True)
    async def lend(self, size, seed=0, shape=None, dtype="u1"):
        array = self.new(size)
        array[:] = pattern(size, seed)
        array = array.view(dtype)
        buffer = Buffer(array if shape is None else array.reshape(shape))
        self.memory[buffer] = array.reshape(-1).view("u1")
        return buffer

    @endpoint
    async def lend_again(self, buffer, start, stop):
        part = self.memory[buffer][start:stop]
        again = Buffer(part)
        self.memory[again] = part
        return again

    @endpoint(concurrent=True)
    async def peek(self, buffer):
        return bytes(self.memory[buffer])

    @endpoint(concurrent=True)
    async def write(self, buffer, version, seed):
        with buffer.update(version=version):
            self.memory[buffer][:] = pattern(len(self.memory[buffer]), seed)

    @endpoint(concurrent=True)
    async def begin(self, buffer, version):
        """Half of an update."""
        self.updating = buffer.update(version=version)
        self.updating.__enter__()
        self.memory[buffer][: len(self.memory[buffer]) // 2] = 255

    @endpoint(concurrent=True)
    async def finish(self, buffer, seed):
        """The other half; or break it off where there is no seed."""
        if seed is None:
            with contextlib.suppress(LookupError):
                self.updating.__exit__(LookupError, LookupError("broken off"), None)
            return
        self.memory[buffer][:] = pattern(len(self.memory[buffer]), seed)
        self.updating.__exit__(None, None, None)

    @endpoint(concurrent=True)
    async def drop(self, buffer):
        await buffer.drop()
        return self.memory.pop(buffer, None) is not None

    @endpoint(concurrent=True)
    async def drop_all(self):
        for buffer in list(self.memory):
            await buffer.drop()
        self.memory.clear()

    @endpoint(concurrent=True)
    async def counts(self):
        return transfers().engine.counts()

    @endpoint
    async def hold_the_lock(self, buffer, seconds):
        """Nothing of this process's Python runs meanwhile; the first byte says when that is."""
        self.memory[buffer][0] = 1
        LOCKED.usleep(ctypes.c_uint(int(seconds * 1e6)))
        self.memory[buffer][0] = 2

    @endpoint
    async def lend_what_is_unmapped(self, size):
        """Memory that goes away under the buffer, as torch's does with `resize_(0)`."""
        anywhere = LIBC.mmap
        anywhere.restype = ctypes.c_void_p
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = anywhere(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0))
        buffer = Buffer(np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8))
        self.memory[buffer] = np.zeros(0, np.uint8)
        assert LIBC.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0
        return buffer

    @endpoint
    async def pid(self):
        return os.getpid()

    @endpoint
    async def run(self, rule, *args):
        return await rule(*args)


async def fails(error, reply, text=""):
    """Await what is to fail."""
    try:
        await reply
    except error as raised:
        return containing(text, raised)
    raise AssertionError(f"no {error}")


def containing(text, error):
    if text not in str(error):
        raise AssertionError(f"{text!r} is not in: {error}")
    return error


def refused(error, work, text=""):
    """Call what is to be refused at once."""
    try:
        work()
    except error as raised:
        containing(text, raised)
        return
    raise AssertionError(f"no {error}")


async def read_while_it_is_locked(owner, seconds):
    """Read memory of a process whose Python stands still; how often that worked."""
    buffer = await owner.lend.call_one(MIB)
    target = np.zeros(MIB, np.uint8)
    await buffer.read_into(target)
    other = await owner.lend.call_one(MIB)
    owner.hold_the_lock.broadcast(buffer, seconds)
    times = 0
    while target[0] != 2:
        await buffer.read_into(target)
        if target[0] == 1:
            times += 1
            if times == 1:
                # Of a buffer that was never read before, too.
                await other.read_into(np.zeros(MIB, np.uint8))
                await other.write_from(np.zeros(MIB, np.uint8))
    return times


async def read_until_it_ends(buffer):
    """Read again and again; how it ended, and when."""
    target = np.zeros(buffer.size, np.uint8)
    times = 0
    try:
        while True:
            await buffer.read_into(target)
            times += 1
    except Exception as error:
        return type(error), str(error), time.monotonic(), times


# Four readers at once, by an emulated NIC, while somebody writes.
READ_TIMEOUT_S = 120


async def seconds_of_a_read(buffer):
    target = np.zeros(buffer.size, np.uint8)
    await buffer.read_into(target, timeout=READ_TIMEOUT_S)
    started = time.monotonic()
    await buffer.read_into(target, timeout=READ_TIMEOUT_S)
    return time.monotonic() - started


async def read_versions(buffer, seconds, least=0):
    """Read a memory that is written meanwhile, so long and so often; how often, and how often it was torn."""
    target = np.zeros(buffer.size, np.uint8)
    good = torn = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end or good < least:
        version = await buffer.read_into(target, version=0, timeout=READ_TIMEOUT_S)
        good += 1
        torn += bool((target != version % 251).any())
    return good, torn


class Writer(Owner):
    """Updates and stamps as quickly as it can, on a thread."""

    @endpoint
    async def start(self, buffer, pause_s):
        """Between two updates there is a pause: a reader that never finds the memory still is starved, not torn."""
        self.memory[buffer][:] = 0
        self.stop = False
        self.task = asyncio.ensure_future(asyncio.to_thread(self.go_on, buffer, self.memory[buffer], pause_s))

    def go_on(self, buffer, array, pause_s):
        version = 0
        while not self.stop:
            version += 1
            with buffer.update(version=version):
                array[:] = version % 251
            time.sleep(pause_s)
        return version

    @endpoint(concurrent=True)
    async def end(self):
        self.stop = True
        return await self.task


@contextlib.asynccontextmanager
async def two(way, owner=Owner, *, readers=1, **options):
    """Who owns, and so many who read, each in a proc of its own, and the owner on the first of two hosts where there are two."""
    options = {"supervise": handled, "env": nics.of_host, **options}
    if way == "between_hosts":
        async with ProcessHosts(2) as hosts, hosts.spawn_procs({"readers": readers}, **options) as procs:
            yield await spawned(procs, owner, way)
    else:
        async with this_host().spawn_procs({"hosts": 2, "readers": readers}, **options) as procs:
            yield await spawned(procs, owner, way)


async def spawned(procs, owner, way):
    first, second = procs.slice(hosts=0, readers=0), procs.slice(hosts=1)
    return await first.spawn("owner", owner, "shared" if way == "shared" else "array"), await second.spawn(
        "readers", Owner
    )
