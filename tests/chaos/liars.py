"""A member of a job that sends what no pickler makes, and one that gets it, for tests. Imported by procs: no pytest here."""

import asyncio
import os
import pickle
import pickletools
import random
import re
import resource
from pathlib import Path

from roost import Actor, ActorDied, endpoint, serialize

# More than anything here takes; a memo that a pickle says is huge finds no room in it.
ROOM_BYTES = 1 << 30
ANSWERED_S = 30.0


class Raw:
    """Bytes that travel in the place of a pickle."""

    def __init__(self, payload):
        self.payload = payload


class RawError(Exception):
    """The same, of an error."""


class Member(Actor):
    """Sends any bytes, and gets them."""

    def __init__(self):
        dumps, dump_call, dump_exception = serialize.dumps, serialize.dump_call, serialize.dump_exception
        serialize.dumps = lambda value: value.payload if type(value) is Raw else dumps(value)
        serialize.dump_call = lambda args, kwargs=None: (
            args[0].payload if args and type(args[0]) is Raw else dump_call(args, kwargs)
        )
        serialize.dump_exception = lambda error, *known: (
            error.args[0] if type(error) is RawError else dump_exception(error, *known)
        )
        used = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, used + ROOM_BYTES))

    @endpoint
    async def take(self, *values, **named):
        return len(values) + len(named)

    @endpoint
    async def answer(self, payload):
        return Raw(payload)

    @endpoint
    async def fail(self, payload):
        raise RawError(payload)

    @endpoint
    async def pid(self):
        return os.getpid()

    @endpoint
    async def send_all(self, other, payloads):
        """Each as the arguments of a broadcast, and of a call: what came of it."""
        found = []
        for payload in payloads:
            other.take.broadcast(Raw(payload))
            found.append(await outcome(other.take.call_one(Raw(payload))))
        return found

    @endpoint
    async def ask_for_all(self, other, payloads):
        """Each as an answer, and as an error: what came of it."""
        found = []
        for payload in payloads:
            found.append(await outcome(other.answer.call_one(payload)))
            found.append(await outcome(other.fail.call_one(payload)))
        return found


class Neighbour(Actor):
    """Lives beside it, and has nothing to do with that."""

    @endpoint
    async def sleep(self):
        """A call that is there all the time."""
        await asyncio.sleep(3600)

    @endpoint(concurrent=True)
    async def count(self, number):
        return number


async def outcome(reply):
    """Whether there was a value, or the kind of the error; a death or a call without an end is none of these."""
    try:
        async with asyncio.timeout(ANSWERED_S):
            await reply
    except (ActorDied, TimeoutError):
        raise
    except Exception as error:
        return type(error).__name__
    return "a value"


# What may be asked for by name without harm.
NAMES = [
    ("builtins", "list"),
    ("builtins", "int"),
    ("builtins", "getattr"),
    ("collections", "OrderedDict"),
    ("no", "such"),
]
GOOD = [
    pickle.dumps(one, 5)
    for one in (
        (),
        (1, "two", 3.0),
        ([{"a": (1, b"x")}], {1, 2}),
        ("x" * 300,),
        [(1,), {"named": 2}],
        (RawError("text"),),
    )
]


def raised(name):
    """Raise an error of this name, while a value is loaded."""
    raise {one.__name__: one for one in ENDS}[name]("of a value")


ENDS = [
    SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, StopIteration, StopAsyncIteration, MemoryError,
    RecursionError, BaseException,
]  # fmt: skip


class Raises:
    """Raises when it is loaded."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return raised, (self.name,)


def as_error(kind):
    link = (True, kind.__name__, "of an error", [], pickle.dumps(kind("of an error"), 5))
    return pickle.dumps((b"", pickle.dumps(("a traceback", [link]), 5)), 5)


def known():
    """What somebody who knows pickle would try."""
    yield from (
        b"",
        b".",
        b"N.",
        b"].",
        b"}.",
        b"K\x01.",
        b"(t",
        b"\x80\xff.",
        b"0.",
        b"a.",
        b"u.",
        b"b.",
        b"R.",
        b"2.",
    )
    yield from (pickle.dumps((Raises(one.__name__),), 5) for one in ENDS)
    # The same as an error, in the form in which errors travel.
    yield from (as_error(one) for one in ENDS)
    # Of a size that is only said: bytes, a text, a frame, a memo.
    yield b"\x80\x05\x8e" + (1 << 60).to_bytes(8, "little") + b"x."
    yield b"\x80\x05\x8d" + (1 << 62).to_bytes(8, "little") + b"x."
    yield b"\x80\x05\x95" + (1 << 61).to_bytes(8, "little") + b"N."
    yield b"N" + b"r" + b"\xff\xff\xff\xfe" + b"."
    # Deep, long, and of references that lead nowhere.
    yield b"\x80\x05)" + b"\x85" * 200_000 + b"."
    yield b"\x80\x05(" + b"K\x01" * 300_000 + b"t."
    yield from (
        b"\x82\x01.",
        b"Pid\n.",
        b"NQ.",
        b"h\x05.",
        b"\x97.",
        b"\x97\x98.",
        b"NN\x86\x81.",
        b"c\n\n.",
        b"ino\nsuch\n.",
    )
    # Arguments of another shape than a call's.
    yield from (pickle.dumps(one, 5) for one in (7, "text", [1], [1, 2, 3], [(), 3], [(), {1: 2}], {"a": 1}, None))


def made(random_):
    """One more, drawn at random."""
    kind, good = random_.randrange(5), bytearray(random_.choice(GOOD))
    if kind == 0:
        return random_.randbytes(random_.randrange(200))
    if kind == 1:
        return bytes(good[: random_.randrange(len(good))])
    if kind == 2:
        for _ in range(random_.randrange(1, 8)):
            good[random_.randrange(len(good))] = random_.randrange(256)
        return bytes(good)
    if kind == 3:
        other = random_.choice(GOOD)
        return bytes(good[: random_.randrange(len(good))]) + other[random_.randrange(len(other)) :]
    return b"".join(operation(random_) for _ in range(random_.randrange(1, 30))) + b"."


def operation(random_):
    """An operation of pickle's language, with an argument that is nearly right."""
    one = random_.choice(pickletools.opcodes)
    code = one.code.encode("latin-1")
    if one.name in ("GLOBAL", "INST"):
        return code + "{}\n{}\n".format(*random_.choice(NAMES)).encode()
    if one.arg is None:
        return code
    size = one.arg.n if one.arg.n >= 0 else random_.randrange(12)
    return code + (random_.randbytes(size) if random_.random() < 0.5 else bytes(size)) + b"\n" * (one.arg.n == -1)


def drawn(seed, count):
    """So many, the same for the same seed."""
    random_ = random.Random(seed)
    return [made(random_) for _ in range(count)]
