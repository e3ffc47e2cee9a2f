"""`Communicator`: one rank's end of a group of ranks that compute together."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from roost import process
from roost.collectives.groups import groups
from roost.collectives.library import Backend, opened
from roost.collectives.making import make_group, place_of, split_group
from roost.collectives.operations import Operation, Operations
from roost.replying import reply_of
from roost.values import check_finite, check_integer, check_one_of

if TYPE_CHECKING:
    from roost.actor_mesh import ActorMesh
    from roost.collectives.group import Group
    from roost.collectives.library import Library
    from roost.collectives.making import Place
    from roost.collectives.operations import ReduceOp
    from roost.reply import Reply
    from roost.runtime import Runtime

__all__ = ["Communicator", "communicator_of"]

TIMEOUT_S = 60.0
# Thirty years; clocks that count in nanoseconds end some time later.
_TIMEOUT_MOST_S = 1e9


class Communicator:
    """One rank's end of a group of ranks: each makes its own with `await mesh.communicator()`.

    Every operation begins when it is called, in the order of the calls, which is the same at all ranks; its reply gives the result.
    Until then the tensors that it works on are left alone. Operations are called on the loop or in `def` endpoints. They take
    contiguous tensors, on the CPU or this process's GPU as `backend` says, and `timeout` in seconds, 60 when left out. On a GPU they
    come after what torch's current stream has when they are called, and the reply when the GPU is done.

    When a rank dies, all that is under way raises `CollectiveError` with the death in `.failure`, here and in what was split off.
    When an operation has not ended in time, `.suspects` names who has not begun it, or hangs in it, as far as that can be known.
    Then the communicator is of no more use: `rebuild()` makes a new one.
    """

    def __init__(self, place: Place, backend: Backend, group: Group, library: Library) -> None:
        self._place = place
        self._backend: Backend = backend
        self._group = group
        self._library = library
        self._operations = Operations(library, group.rank, len(group.members))

    @property
    def rank(self) -> int:
        """This rank's place in the group."""
        return self._group.rank

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return len(self._group.members)

    @property
    def backend(self) -> Backend:
        """What moves its tensors: "gloo" those on the CPU, "rccl" those on this process's GPU, by RCCL or NCCL."""
        return self._backend

    @property
    def place(self) -> Any:
        """The `torch.device` where its tensors lie."""
        return self._library.place

    @property
    def broken(self) -> str | None:
        """Why it is of no more use; None while it is."""
        return self._group.broken

    def __repr__(self) -> str:
        state = f", broken: {self.broken}" if self.broken is not None else ""
        return f"Communicator({self._group.title}, rank {self.rank} of {self.size}{state})"

    # Operations ----------------------------------------------------------------------------------------------------------
    def all_reduce(
        self, tensor: Any, op: ReduceOp = "sum", *, out: Any = None, timeout: float = TIMEOUT_S
    ) -> Reply[Any]:
        """All ranks' tensors as one, at all ranks.

        Args:
            tensor: of the same shape and dtype everywhere; overwritten with the result unless there is an `out`.
            op: "sum", "product", "max", "min" or, for floats, "average".
            out: where the result goes instead.
            timeout: seconds until the others are asked how far they are.

        Raises:
            CollectiveError: the communicator is broken; the reply raises what happens later.
            TypeError: a dtype that is not reduced.
            ValueError: a tensor elsewhere, not contiguous, or an `out` of another shape or dtype.
        """
        return self._begin(self._operations.all_reduce(tensor, op, out), timeout)

    def reduce(
        self, tensor: Any, root: int = 0, op: ReduceOp = "sum", *, out: Any = None, timeout: float = TIMEOUT_S
    ) -> Reply[Any]:
        """All ranks' tensors as one, at the root; the others' stay as they are, and they get None.

        Args:
            tensor: as for `all_reduce`; overwritten at the root unless there is an `out`.
            root: the rank that gets the result.
            op: as for `all_reduce`.
            out: at the root, where the result goes instead.
            timeout: as for `all_reduce`.
        """
        return self._begin(self._operations.reduce(tensor, root, op, out), timeout)

    def reduce_scatter(
        self, tensor: Any, op: ReduceOp = "sum", *, out: Any = None, timeout: float = TIMEOUT_S
    ) -> Reply[Any]:
        """All ranks' tensors as one, of which each rank gets its part along the first dimension.

        Args:
            tensor: as for `all_reduce`, its first dimension a multiple of the number of ranks; it stays as it is.
            op: as for `all_reduce`.
            out: where this rank's part goes; made when it is left out.
            timeout: as for `all_reduce`.
        """
        return self._begin(self._operations.reduce_scatter(tensor, op, out), timeout)

    def all_gather(self, tensor: Any, *, out: Any = None, timeout: float = TIMEOUT_S) -> Reply[Any]:
        """All ranks' tensors, one behind the other along the first dimension, at all ranks.

        Args:
            tensor: of the same shape and dtype everywhere, and any dtype.
            out: where they go; made when it is left out.
            timeout: as for `all_reduce`.
        """
        return self._begin(self._operations.all_gather(tensor, out), timeout)

    def broadcast(self, tensor: Any, root: int = 0, *, out: Any = None, timeout: float = TIMEOUT_S) -> Reply[Any]:
        """The root's tensor at all ranks.

        Args:
            tensor: of the same shape and dtype everywhere, and any dtype; overwritten unless there is an `out`.
            root: the rank whose tensor it is.
            out: where the root's goes instead.
            timeout: as for `all_reduce`.
        """
        return self._begin(self._operations.broadcast(tensor, root, out), timeout)

    def all_to_all(self, tensor: Any, *, out: Any = None, timeout: float = TIMEOUT_S) -> Reply[Any]:
        """Part i of every rank's tensor at rank i, in rank order; parts are along the first dimension, and alike.

        Args:
            tensor: of the same shape and dtype everywhere, its first dimension a multiple of the number of ranks.
            out: where the parts go; made when it is left out, and never `tensor` itself.
            timeout: as for `all_reduce`.
        """
        return self._begin(self._operations.all_to_all(tensor, out), timeout)

    def send(self, tensor: Any, to: int, *, timeout: float = TIMEOUT_S) -> Reply[None]:
        """A tensor to one other rank, which calls `receive`. Several between two ranks arrive in the order of the calls.

        Those that are begun on the loop without awaiting between them move together, in both directions. In a `def` endpoint, over
        "rccl", each goes by itself: what waits for another one's has to be begun on the loop.

        Args:
            tensor: of any dtype.
            to: the other rank.
            timeout: as for `all_reduce`.
        """
        return self._begin(self._operations.send(tensor, to), timeout)

    def receive(self, tensor: Any, source: int, *, timeout: float = TIMEOUT_S) -> Reply[Any]:
        """A tensor from one other rank, which calls `send`.

        Args:
            tensor: of the same shape and dtype as what is sent; overwritten.
            source: the other rank.
            timeout: as for `all_reduce`.
        """
        return self._begin(self._operations.receive(tensor, source), timeout)

    def barrier(self, *, timeout: float = TIMEOUT_S) -> Reply[None]:
        """Done when all ranks have called it.

        Args:
            timeout: as for `all_reduce`.
        """
        return self._begin(self._operations.barrier(), timeout)

    def _begin(self, operation: Any, timeout: float) -> Reply[Any]:
        check_finite(operation.name, "timeout", timeout, above=0, most=_TIMEOUT_MOST_S)
        return self._group.begin(operation, timeout)

    # Groups --------------------------------------------------------------------------------------------------------------
    def split(self, colour: int | None, key: int = 0, *, timeout: float = TIMEOUT_S) -> Reply[Communicator | None]:
        """A communicator of the ranks that give the same colour. All ranks call it.

        It ends with this one: a death here ends both.

        Args:
            colour: from 0; None for a rank that is to be in none, and gets None.
            key: from 0; those of one colour are in the order of their keys, and where these are equal in that of their ranks here.
            timeout: as for `all_reduce`.
        """
        check_finite("split", "timeout", timeout, above=0, most=_TIMEOUT_MOST_S)
        check_integer("split", "key", key, least=0)
        if colour is not None:
            check_integer("split", "colour", colour, least=0)
        half = self._library.split(colour, key)
        operation = Operation("split", half.begin)
        begun = self._group.begin(operation, timeout)

        async def split() -> Communicator | None:
            await begun
            made = await split_group(self._group, half, operation.number, timeout)
            return None if made is None else Communicator(self._place, self._backend, *made)

        return reply_of(split())

    def rebuild(self, mesh: ActorMesh | None = None, *, timeout: float = TIMEOUT_S) -> Reply[Communicator]:
        """A new communicator of the same ranks, in the lives that they are in now.

        All ranks make one: those that were started again by `mesh.communicator()`.

        Args:
            mesh: another mesh, or slice of one, to make it of.
            timeout: seconds until it gives up and names who has not come.

        Raises:
            RuntimeError: this one was split off: rebuild the whole, and split that.
            TypeError: `mesh` is none of actors.
        """
        check_finite("rebuild", "timeout", timeout, above=0, most=_TIMEOUT_MOST_S)
        if len(self._group.id) > 1:
            raise RuntimeError(f"{self!r} was split off: rebuild the communicator that it is of, and split that")
        place = self._place if mesh is None else place_of(_checked_mesh(mesh), (), self._group.runtime)

        async def rebuild() -> Communicator:
            await self.close()
            return await _made(place, self._backend, self._group.runtime, timeout)

        return reply_of(rebuild())

    async def close(self) -> None:
        """Let it go; what is under way at other ranks fails. What was split off ends with it."""
        groups(self._group.runtime).remove(self._group)
        self._group.break_off(f"{self._group.members[self.rank].name} has closed it")
        await asyncio.to_thread(self._library.close)


def _checked_mesh(mesh: object) -> ActorMesh:
    from roost.actor_mesh import ActorMesh

    if not isinstance(mesh, ActorMesh):
        raise TypeError(f"rebuild's mesh={mesh!r}: give a mesh of actors, or a slice of one")
    return mesh


def communicator_of(
    mesh: ActorMesh, dimensions: tuple[str, ...], backend: Backend, timeout: float
) -> Reply[Communicator]:
    """What `mesh.communicator()` gives."""
    check_one_of("communicator's", "backend", backend, get_args(Backend))
    check_finite("communicator", "timeout", timeout, above=0, most=_TIMEOUT_MOST_S)
    runtime = process.current()
    place = place_of(mesh, dimensions, runtime)

    return reply_of(_made(place, backend, runtime, timeout))


async def _made(place: Place, backend: Backend, runtime: Runtime, timeout_s: float) -> Communicator:
    group, library = await make_group(place, runtime, partial(opened, backend, runtime), timeout_s)
    return Communicator(place, backend, group, library)
