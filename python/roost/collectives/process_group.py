"""`ProcessGroup`: torch.distributed's default group, made by a mesh and ended by its supervision."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from roost import libraries, process
from roost.collectives.gloo import Gloo, connected_store, port_of, served_store
from roost.collectives.groups import groups
from roost.collectives.making import make_group, place_of
from roost.collectives.sockets import connections_since, shut, sockets_now
from roost.replying import reply_of
from roost.values import check_finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from roost.actor_mesh import ActorMesh
    from roost.collectives.group import Group
    from roost.reply import Reply

__all__ = ["ProcessGroup", "Torch", "process_group_of"]

# Thirty years.
_TIMEOUT_MOST_S = 1e9
# What torch calls our gloo, which can be aborted.
_NAME = "roost"
# Torch has one default group in a process.
_here: list[Torch] = []


class ProcessGroup:
    """torch.distributed's default group in this process, from `await mesh.process_group()` until it is closed.

    All of torch.distributed works on it: DDP, FSDP, `new_group`. When a rank dies, the collectives of all its groups raise
    `RuntimeError` at once, in whatever thread they are; `explained` makes that a `CollectiveError` that names the dead.
    """

    def __init__(self, group: Group) -> None:
        self._group = group

    @property
    def broken(self) -> str | None:
        """Why it is of no more use; None while it is."""
        return self._group.broken

    def __repr__(self) -> str:
        state = f", broken: {self.broken}" if self.broken is not None else ""
        return f"ProcessGroup({self._group.title}, rank {self._group.rank} of {len(self._group.members)}{state})"

    @contextmanager
    def explained(self) -> Iterator[None]:
        """`with group.explained():` around code that uses torch.distributed, in a `def` endpoint.

        Raises:
            CollectiveError: instead of torch's RuntimeError, when the group is broken: with the death in `.failure`.
        """
        runtime = self._group.runtime
        runtime.refuse_on_loop("group.explained()", "a `def` endpoint: torch's collectives block")
        try:
            yield
        except RuntimeError as error:
            asyncio.run_coroutine_threadsafe(self._group.hear_why(), runtime.loop).result()
            if self._group.broken is None:
                raise
            raise self._group.error("a collective") from error

    async def close(self) -> None:
        """Destroy the default group and all others; another one can be made then."""
        groups(self._group.runtime).remove(self._group)
        self._group.break_off(f"{self._group.members[self._group.rank].name} has closed it")
        await asyncio.to_thread(self._group.library.close)


class Torch:
    """torch.distributed as a group's library. See `Library`: the groups are torch's, and only their making and end are here.

    Args:
        address: the numeric address that this process listens on and is reached by; nothing is looked up.
    """

    backend = "torch"

    def __init__(self, address: str) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._gloos: list[Gloo] = []
        self._aborted: str | None = None
        self._before = sockets_now()
        self._store_port = 0
        self._server: Any = None

    def card(self, *, is_first: bool) -> str:
        """At the first member, where the store is."""
        where = ""
        if is_first:
            self._server, where = served_store(self.address)
        return where

    def join(self, cards: Sequence[str], rank: int, title: str, timeout_s: float) -> None:
        """Make torch's default group."""
        distributed, timeout = libraries.distributed(), timedelta(seconds=timeout_s)
        if distributed.is_initialized():
            raise RuntimeError("torch.distributed has a default group in this process; destroy it first")
        self._store_port = port_of(cards[0])
        store = distributed.PrefixStore(title, connected_store(cards[0], timeout))
        _register()
        _here[:] = [self]
        backend = f"cpu:{_NAME}" + (",cuda:nccl" if libraries.torch().cuda.is_available() else "")
        distributed.init_process_group(backend, store=store, rank=rank, world_size=len(cards))

    def adopt(self, gloo: Gloo) -> None:
        """A group of torch's is made with it."""
        with self._lock:
            self._gloos.append(gloo)
            if self._aborted is not None:
                gloo.abort(self._aborted)

    def abort(self, reason: str) -> None:
        """Of gloo the connections end; torch is told to abort what else there is, on a thread, since that may block."""
        with self._lock:
            if self._aborted is not None:
                return
            self._aborted = reason
            gloos = list(self._gloos)
        # Whoever waits for the others at the store.
        shut(connections_since(self._before, 0, frozenset([self._store_port])))
        for gloo in gloos:
            gloo.abort(reason)
        if libraries.torch().cuda.is_available():
            threading.Thread(target=_abort_all, name="roost-abort", daemon=True).start()

    def lagging(self) -> Sequence[int]:
        """Its operations are torch's."""
        return ()

    def stage(self) -> None:
        """Its operations are torch's."""

    def close(self) -> None:
        """All of torch's groups go."""
        distributed = libraries.distributed()
        if distributed.is_initialized() and _here == [self]:
            distributed.destroy_process_group()
            _here.clear()
        for gloo in self._gloos:
            gloo.close()


def _register() -> None:
    distributed = libraries.distributed()
    if not hasattr(distributed.Backend, _NAME.upper()):
        distributed.Backend.register_backend(_NAME, _made, extended_api=True, devices=["cpu"])


def _made(options: Any, _: object) -> Any:
    """A group of torch's, as its default one and `new_group` ask for it."""
    owner = _here[0]
    gloo, store, rank, size = Gloo(owner.address), options.store, options.group_rank, options.group_size
    owner.adopt(gloo)
    store.set(f"port/{rank}", str(gloo.port))
    gloo.reaches(int(store.get(f"port/{other}")) for other in range(size) if other != rank)
    gloo.connect(store, rank, size, options.timeout)
    # Here it is torch that says how long operations may take.
    gloo.group._set_default_timeout(options.timeout)
    return gloo.group


def _abort_all() -> None:
    world = libraries.distributed().distributed_c10d._world
    for group in list(world.pg_map):
        group.abort()


def process_group_of(mesh: ActorMesh, dimensions: tuple[str, ...], timeout: float) -> Reply[ProcessGroup]:
    """What `mesh.process_group()` gives."""
    check_finite("process_group", "timeout", timeout, above=0, most=_TIMEOUT_MOST_S)
    runtime = process.current()
    place = place_of(mesh, dimensions, runtime)

    async def make() -> ProcessGroup:
        group, _ = await make_group(place, runtime, Torch, timeout)
        return ProcessGroup(group)

    return reply_of(make())
