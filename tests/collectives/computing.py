"""Actors that compute together, and what they compute."""

import asyncio
import os
import time

import standins
import torch

from roost import Actor, context, endpoint
from roost.collectives import on_one_host, over_gloo
from roost.collectives.rccl import Rccl
from roost.errors import CollectiveError, Unavailable

torch.set_num_threads(1)

REDUCED = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64,
]  # fmt: skip
MOVED = [
    *REDUCED, torch.int16, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64,
]  # fmt: skip
SIZES = [0, 1, 257]
OPS = {"sum": sum, "product": lambda all_: torch.stack(all_).prod(0), "max": lambda all_: torch.stack(all_).amax(0),
       "min": lambda all_: torch.stack(all_).amin(0), "average": lambda all_: sum(all_) / len(all_)}  # fmt: skip


def tensor_of(rank, shape, dtype, seed=0):
    """What a rank brings along; small whole numbers, so that sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    numbers = torch.randint(0, 3, shape, generator=generator)
    return numbers.to(torch.float32).to(dtype) if dtype.is_floating_point else numbers.to(dtype)


def awkward(rank, count, dtype):
    """Numbers of all sizes, with what is easily got wrong."""
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.randn(count, generator=generator) * 2.0 ** torch.randint(-30, 30, (count,), generator=generator)
    corners = [float("inf"), float("nan"), float("-inf"), 0.0, 1e-42, 6e-8, 65504.0, 65519.0, 3.3e38, 1.0 + 2.0**-11]
    numbers[: 10 * len(corners)] = torch.tensor(corners).repeat(10).roll(rank)
    return numbers.to(dtype)


def reduced(every, op):
    """As it is to be: in rank order, numbers of 16 bits in 32, rounded once."""
    step = {"product": torch.mul, "max": torch.maximum, "min": torch.minimum}.get(op, torch.add)
    wide = torch.float32 if every[0].dtype.itemsize == 2 else every[0].dtype
    whole = every[0].to(wide)
    for one in every[1:]:
        whole = step(whole, one.to(wide))
    return (whole / len(every) if op == "average" else whole).to(every[0].dtype)


def freed():
    """As FSDP leaves its parameters between two uses."""
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def same(found, wanted):
    """Bit for bit."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    return torch.equal(found.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8))


def in_order(comm, is_odd, timeout):
    """Two operations, which one rank begins the other way round; of what it brings there nobody waits for it."""
    first = lambda: comm.all_reduce(torch.ones(10), timeout=timeout)  # noqa: E731
    second = lambda: comm.broadcast(torch.ones(10), 2, timeout=timeout)  # noqa: E731
    return [second(), first()] if is_odd else [first(), second()]


UNLIKE = {
    "size": lambda comm, is_odd, timeout: [comm.all_reduce(torch.ones(11 if is_odd else 10), timeout=timeout)],
    "dtype": lambda comm, is_odd, timeout: [
        comm.all_reduce(torch.ones(10, dtype=torch.int32 if is_odd else torch.float32), timeout=timeout)
    ],
    "op": lambda comm, is_odd, timeout: [
        comm.all_reduce(torch.ones(10), "max" if is_odd else "sum", timeout=timeout)
    ],
    "large": lambda comm, is_odd, timeout: [
        comm.all_reduce(torch.ones(900_000 if is_odd else 300_000), timeout=timeout)
    ],
    "verb": lambda comm, is_odd, timeout: [(comm.reduce if is_odd else comm.all_reduce)(torch.ones(10), timeout=timeout)],
    "root": lambda comm, is_odd, timeout: [comm.reduce(torch.ones(10), 1 if is_odd else 0, timeout=timeout)],
    "order": in_order,
    "broadcast": lambda comm, is_odd, timeout: [
        (comm.broadcast if is_odd else comm.all_reduce)(torch.ones(10), timeout=timeout)
    ],
}  # fmt: skip


class Unreachable:
    """Memory of a host that another one cannot open."""

    open = staticmethod(lambda *_: None)


class Never:
    """A call that does not end."""

    def then(self, done):
        """It is never called."""


class Member(Actor):
    """One rank.

    Args:
        libraries: the folder of stand-ins for a GPU's libraries; None for gloo, and "sockets" for it without this host's memory.
    """

    def __init__(self, libraries=None):
        self.backend = "gloo" if libraries in (None, "sockets") else "rccl"
        if self.backend == "rccl":
            standins.use(libraries)
        elif libraries == "sockets":
            over_gloo.on_one_host = lambda *_: None
        self.comm = self.part = None
        self.inside = asyncio.Event()

    @endpoint
    async def join(self, *dimensions, timeout=20.0):
        self.comm = await self._communicator(*dimensions, timeout=timeout)
        return self.comm.rank, self.comm.size

    def _communicator(self, *dimensions, timeout=20.0):
        return context().mesh.communicator(*dimensions, backend=self.backend, timeout=timeout)

    @endpoint(concurrent=True)
    async def join_with_faults(self, faults):
        """Of the stand-in library: it reads them when a communicator is made."""
        os.environ[standins.FAULTS] = faults.get(context().point.rank, "")
        loop, join = asyncio.get_running_loop(), Rccl.join

        def joining(*arguments):
            loop.call_soon_threadsafe(self.inside.set)
            join(*arguments)

        Rccl.join = joining
        self.comm = await self._communicator()

    @endpoint
    async def rebuild(self, timeout=20.0):
        os.environ.pop(standins.FAULTS, None)
        self.comm = await (self.comm.rebuild(timeout=timeout) if self.comm else self._communicator())
        return await self._sum()

    @endpoint
    async def leave(self):
        await self.comm.close()
        self.comm = None

    @endpoint
    async def sum(self):
        return await self._sum()

    async def _sum(self):
        found = await self.comm.all_reduce(torch.tensor([self.comm.rank + 1.0]))
        return found.item()

    @endpoint
    async def sums_of_dimension(self):
        mine = float(context().point.rank)
        return (await self.comm.all_reduce(torch.tensor([mine]))).item()

    @endpoint
    def sum_in_a_thread(self):
        return self.comm.all_reduce(torch.tensor([self.comm.rank + 1.0])).result(20).item()

    @endpoint
    async def all_of_them(self, name):
        """Every operation of one kind with every dtype and size, in place and out of place; gives what was wrong."""
        return [wrong async for wrong in getattr(self, f"_{name}")()]

    async def _all_reduce(self):
        comm = self.comm
        for dtype in REDUCED:
            for size in SIZES:
                every = [tensor_of(rank, (size,), dtype, size) for rank in range(comm.size)]
                for op, made in OPS.items():
                    if op == "average" and not dtype.is_floating_point:
                        continue
                    wanted = made(every).to(dtype)
                    mine, out = every[comm.rank].clone(), torch.zeros(size, dtype=dtype)
                    if not same(await comm.all_reduce(mine, op, out=out), wanted) or not same(mine, every[comm.rank]):
                        yield f"{dtype} {size} {op} out of place"
                    if await comm.all_reduce(mine, op) is not mine or not same(mine, wanted):
                        yield f"{dtype} {size} {op} in place"

    @endpoint
    async def awkward_numbers(self, count):
        """Every operation on numbers of all sizes; gives how many were compared, and what was wrong."""
        comm, compared, wrong = self.comm, 0, []
        for dtype in REDUCED:
            if not dtype.is_floating_point:
                continue
            every = [awkward(rank, count, dtype) for rank in range(comm.size)]
            for op in OPS:
                wanted = reduced(every, op)
                found = await comm.all_reduce(every[comm.rank].clone(), op)
                # There are several bit patterns that are no number.
                differ = (found != wanted) & ~(found.isnan() & wanted.isnan())
                compared += count
                if differ.any():
                    at = differ.nonzero()[0].item()
                    wrong.append(f"{dtype} {op}: {int(differ.sum())}, at {at} {found[at]} instead of {wanted[at]}")
        return compared, wrong

    @endpoint
    async def turns_of_the_loop(self, count):
        """How many turns others had while so many small sums were made in a row."""
        turns, ended = 0, False

        async def others():
            nonlocal turns
            while not ended:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        await asyncio.sleep(0)
        turns = 0
        for _ in range(count):
            await self._sum()
        found, ended = turns, True
        await beside
        return found

    @endpoint
    async def join_without_memory(self, who):
        """One rank cannot reach the first one's."""
        if context().point.rank == who:
            on_one_host.HostGroup = Unreachable
        self.comm = await self._communicator()
        return self.comm._library._host is None

    async def _reduce(self):
        comm = self.comm
        for dtype in REDUCED:
            for size in SIZES:
                root = size % comm.size
                every = [tensor_of(rank, (size,), dtype, size) for rank in range(comm.size)]
                mine = every[comm.rank].clone()
                found = await comm.reduce(mine, root)
                if comm.rank == root and not same(found, sum(every).to(dtype)):
                    yield f"{dtype} {size}"
                if comm.rank != root and (found is not None or not same(mine, every[comm.rank])):
                    yield f"{dtype} {size} at another rank"

    async def _reduce_scatter(self):
        comm = self.comm
        for dtype in REDUCED:
            for size in SIZES:
                every = [tensor_of(rank, (size * comm.size, 3), dtype, size) for rank in range(comm.size)]
                mine = every[comm.rank].clone()
                wanted = sum(every).to(dtype)[comm.rank * size : (comm.rank + 1) * size]
                out = torch.zeros(size, 3, dtype=dtype)
                if not same(await comm.reduce_scatter(mine), wanted):
                    yield f"{dtype} {size}"
                if await comm.reduce_scatter(mine, out=out) is not out or not same(out, wanted):
                    yield f"{dtype} {size} into out"
                if not same(mine, every[comm.rank]):
                    yield f"{dtype} {size} changed what it was given"

    async def _all_gather(self):
        comm = self.comm
        for dtype in MOVED:
            for size in SIZES:
                every = [tensor_of(rank, (size, 2), dtype, size) for rank in range(comm.size)]
                wanted, out = torch.cat(every), torch.zeros(comm.size * size, 2, dtype=dtype)
                if not same(await comm.all_gather(every[comm.rank]), wanted):
                    yield f"{dtype} {size}"
                # In place: what it brings along lies in the result.
                part = out[comm.rank * size : (comm.rank + 1) * size]
                part.copy_(every[comm.rank])
                if not same(await comm.all_gather(part, out=out), wanted):
                    yield f"{dtype} {size} in place"
        if not same(await comm.all_gather(torch.tensor(comm.rank)), torch.arange(comm.size)):
            yield "without a dimension"

    async def _broadcast(self):
        comm = self.comm
        for dtype in MOVED:
            for size in SIZES:
                root = size % comm.size
                every = [tensor_of(rank, (size,), dtype, size) for rank in range(comm.size)]
                mine, out = every[comm.rank].clone(), torch.zeros(size, dtype=dtype)
                if not same(await comm.broadcast(mine, root, out=out), every[root]) or not same(mine, every[comm.rank]):
                    yield f"{dtype} {size} out of place"
                if not same(await comm.broadcast(mine, root), every[root]):
                    yield f"{dtype} {size} in place"

    async def _all_to_all(self):
        comm = self.comm
        for dtype in MOVED:
            for size in SIZES:
                every = [tensor_of(rank, (size * comm.size,), dtype, size) for rank in range(comm.size)]
                mine = slice(comm.rank * size, (comm.rank + 1) * size)
                if not same(await comm.all_to_all(every[comm.rank]), torch.cat([one[mine] for one in every])):
                    yield f"{dtype} {size}"

    async def _send_and_receive(self):
        comm = self.comm
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for dtype in MOVED:
            for size in SIZES:
                every = [tensor_of(rank, (size,), dtype, size) for rank in range(comm.size)]
                # A ring, in which each waits for the one before: all are begun before any is waited for.
                sent = [comm.send(every[comm.rank], after), comm.send(every[comm.rank], after)]
                first, second = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)
                await asyncio.gather(comm.receive(first, before), comm.receive(second, before), *sent)
                if not same(first, every[before]) or not same(second, every[before]):
                    yield f"{dtype} {size}"

    @endpoint
    async def divide(self):
        """Odd and even ranks, in the opposite order; the last has no part in it."""
        rank, size = self.comm.rank, self.comm.size
        self.part = await self.comm.split(None if rank == size - 1 else rank % 2, key=size - rank)
        if self.part is None:
            return None
        total = await self.part.all_reduce(torch.tensor([float(rank)]))
        return self.part.rank, total.item()

    @endpoint
    async def until_it_fails(self):
        """What was said in the end."""
        while True:
            try:
                await self._sum()
            except CollectiveError as error:
                return str(error), error.suspects

    @endpoint
    async def join_by(self, backends):
        """What was said to a wish of which each rank has its own."""
        try:
            await context().mesh.communicator(backend=backends[context().point.rank], timeout=5)
        except (ValueError, Unavailable) as error:
            return f"{type(error).__name__}: {error}"
        return None

    @endpoint(concurrent=True)
    async def hold(self, who, of_part):
        """Be in an operation that one rank never begins: when it ended, and what was said."""
        if self.comm.rank == who:
            self.inside.set()
            await asyncio.get_running_loop().create_future()
        begun = [self.comm.all_reduce(torch.ones(100_000))]
        if of_part and self.part is not None and self.part.rank:
            begun.append(self.part.all_reduce(torch.ones(100_000)))
        self.inside.set()
        ended = await asyncio.gather(*begun, return_exceptions=True)
        at = time.monotonic()
        self.inside.clear()
        errors = [(str(one), one.suspects, one.failure) for one in ended if isinstance(one, CollectiveError)]
        return at, errors, self.part is None or self.part.broken

    @endpoint(concurrent=True)
    async def is_inside(self):
        """Once it is."""
        await self.inside.wait()

    @endpoint
    async def wait_for(self, who, timeout, verb="all_reduce"):
        """One rank does not come."""
        if self.comm.rank == who:
            return None
        began = time.monotonic()
        try:
            await getattr(self.comm, verb)(torch.ones(10), timeout=timeout)
        except CollectiveError as error:
            return str(error), error.suspects, time.monotonic() - began
        return None

    @endpoint
    async def unlike(self, kind, odd, timeout=20.0):
        """One rank begins something else than the others: what was said to this one, and of whom."""
        try:
            await asyncio.gather(*UNLIKE[kind](self.comm, self.comm.rank == odd, timeout))
        except CollectiveError as error:
            return str(error), error.suspects
        return None

    @endpoint
    def used_by_a_forked_child(self):
        """What it says of that, by its exit status."""
        child = os.fork()
        if child == 0:
            try:
                self.comm.all_reduce(torch.ones(10))
            except RuntimeError as error:
                os._exit(17 if "was forked" in str(error) else 1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    @endpoint
    async def write_letters(self, count):
        """Rank 0 sends rank 1 some messages, of which the others know nothing."""
        for _ in range(count):
            if self.comm.rank == 0:
                await self.comm.send(torch.ones(4), 1)
            elif self.comm.rank == 1:
                await self.comm.receive(torch.ones(4), 0)

    @endpoint
    async def wait_for_in_part(self, who, timeout):
        """One rank does not come to an operation of what was split off."""
        if self.part is None or self.comm.rank == who:
            return None
        try:
            await self.part.all_reduce(torch.ones(10), timeout=timeout)
        except CollectiveError as error:
            return str(error), error.suspects
        return None

    @endpoint
    async def message(self, sender, receiver, timeout):
        """A message, of which one end has not heard."""
        try:
            if self.comm.rank == sender:
                await self.comm.send(torch.ones(100_000), 1, timeout=timeout)
            if self.comm.rank == receiver:
                await self.comm.receive(torch.ones(100_000), 0, timeout=timeout)
        except CollectiveError as error:
            return str(error), error.suspects
        return None

    @endpoint
    async def hang_in(self, who, verb):
        """One rank begins operations of a kind, and brings nothing along."""
        if self.comm.rank == who:
            setattr(self.comm._library, verb, lambda *_: Never())

    @endpoint
    async def cannot_be_freed(self, who):
        """A library that never says of an operation that it has ended, at one rank."""
        if self.comm.rank == who:
            self.comm._group.ended = lambda *_: None

    @endpoint
    async def use_once(self):
        """Communicators that nobody keeps: the last to let go of one may be a thread of its library."""
        found = []
        for _ in range(5):
            comm = await self._communicator()
            found.append((await comm.all_reduce(torch.tensor([1.0]))).item())
            del comm
        return found

    @endpoint
    async def two_at_once(self):
        """Two communicators of the same ranks, and operations of both at the same time."""
        one, other = await asyncio.gather(self._communicator(), self._communicator())
        found = await asyncio.gather(one.all_reduce(torch.tensor([1.0])), other.all_reduce(torch.tensor([2.0])))
        await asyncio.gather(one.close(), other.close())
        return [tensor.item() for tensor in found]

    @endpoint
    async def refused(self):
        """What is refused before anybody waits for it."""
        comm, said, both = self.comm, [], torch.arange(12)
        for wrong in (
            lambda: comm.all_reduce([1, 2]),
            lambda: comm.all_reduce(torch.ones(4, dtype=torch.int16)),
            lambda: comm.all_reduce(torch.ones(4, dtype=torch.int32), "average"),
            lambda: comm.all_reduce(torch.ones(4), "median"),
            lambda: comm.all_reduce(torch.ones(4, 4).t()),
            lambda: comm.all_reduce(torch.ones(4).to_sparse()),
            lambda: comm.all_gather(torch.ones(1, dtype=torch.complex64).conj()),
            lambda: comm.all_reduce(torch.ones(1, dtype=torch.complex64).conj().imag),
            lambda: comm.all_reduce(freed()),
            lambda: comm.all_to_all(torch.arange(8), out=torch.arange(8)[:0]),
            lambda: comm.all_to_all(both[:8], out=both[4:12]),
            lambda: comm.all_reduce(torch.ones(4), out=torch.ones(5)),
            lambda: comm.all_reduce(torch.ones(4, device="meta")),
            lambda: comm.all_reduce(torch.zeros(4, dtype=torch.float8_e4m3fn)),
            lambda: comm.reduce_scatter(torch.ones(comm.size + 1)),
            lambda: comm.broadcast(torch.ones(4), comm.size),
            lambda: comm.send(torch.ones(4), comm.rank),
            lambda: comm.all_reduce(torch.ones(4), timeout=0),
            lambda: comm.barrier(timeout=1e300),
            lambda: comm.rebuild(timeout="soon"),
            lambda: comm.rebuild("trainers"),
            lambda: context().mesh.communicator("nodes"),
        ):
            try:
                await wrong()
            except (TypeError, ValueError) as error:
                said.append(str(error))
            else:
                said.append("nothing")
        return said
