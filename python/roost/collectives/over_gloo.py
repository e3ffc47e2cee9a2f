"""`OverGloo`: a group of torch's gloo, for tensors on the CPU; where all its members are on one host, they reduce by shared memory."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from roost import libraries
from roost.collectives.called import Called
from roost.collectives.gloo import Gloo, connected_store, port_of, served_store
from roost.collectives.on_one_host import kind_of, on_one_host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roost._roost import HostGroup
    from roost.collectives.library import Begun

__all__ = ["OverGloo"]

_OF_TORCH = {"sum": "SUM", "product": "PRODUCT", "max": "MAX", "min": "MIN", "average": "AVG"}
# One tag for all: messages between two members arrive in the order in which they were sent.
_TAG = 0
_LONGEST_S = 24 * 3600.0
# No elements: an address, how many, and what they are.
_NOWHERE = (0, 0, "uint8")
# Ranks compare so many numbers of operations.
_NUMBERS = 1 << 32


class OverGloo:
    """See `Library`.

    Args:
        address: the numeric address that this process listens on and is reached by; nothing is looked up.
        whole: of a part: the group that it is split off from, and what its members call each other in that one's store.
    """

    backend = "gloo"

    def __init__(self, address: str, whole: tuple[OverGloo, str] | None = None) -> None:
        self.place = libraries.torch().device("cpu")
        self._distributed = libraries.distributed()
        # By how they reduce: made once, since they take as long as a small operation's checks.
        self._reducing: dict[str, Any] = {}
        self._address = address
        self._gloo = Gloo(address)
        self._host: HostGroup | None = None
        # How many operations of all members were begun here.
        self._begun = 0
        self._whole = whole
        self._splits = 0
        self._rank = 0
        self._store: Any = None
        # At the first member: it lives as long as the group and its parts.
        self._server: Any = None

    def card(self, *, is_first: bool) -> tuple[int, str]:
        """Where it listens, and at the first member the store."""
        where = ""
        if is_first and self._whole is None:
            self._server, where = served_store(self._address)
        return self._gloo.port, where

    def join(self, cards: Sequence[tuple[Any, ...]], rank: int, title: str, timeout_s: float) -> None:  # noqa: ARG002
        """Through the store of the first member, or of the whole; a card is a port, and the store's address behind the first's."""
        until = time.monotonic() + timeout_s
        self._rank = rank
        self._gloo.reaches(card[0] for other, card in enumerate(cards) if other != rank)
        if self._whole is None:
            there = cards[0][1]
            self._gloo.reaches([port_of(there)])
            self._store = connected_store(there, _left(until))
            name = "0"
        else:
            whole, name = self._whole
            self._store, self._server = whole._store, whole._server
        store = libraries.distributed().PrefixStore(name, self._store)
        self._gloo.connect(store, rank, len(cards), _left(until))
        self._host = on_one_host(self._gloo.group, store, rank, len(cards), _left(until))
        aborted = self._gloo.aborted
        if aborted is not None and self._host is not None:
            self._host.abort(aborted)

    def split(self, colour: int | None, key: int) -> _Split:
        """Members listen for their part before they tell each other."""
        self._splits += 1
        return _Split(self, self._splits, colour, key)

    def abort(self, reason: str) -> None:
        """Its connections end, and who waits at its memory is woken."""
        self._gloo.abort(reason)
        if self._host is not None:
            self._host.abort(reason)

    def lagging(self) -> Sequence[int]:
        """Seen in shared memory."""
        host = self._host
        return () if host is None else host.lagging()

    def stage(self) -> None:
        """Gloo does not say."""

    def close(self) -> None:
        """Its threads end."""
        self._host = None
        self._gloo.close()

    # Operations ----------------------------------------------------------------------------------------------------------
    def all_reduce(self, tensor: Any, op: str) -> Begun | None:
        """Of numbers."""
        return self._everywhere("all_reduce", tensor, op)

    def _everywhere(self, verb: str, tensor: Any, op: str, root: int = 0) -> Begun | None:
        self._begun += 1
        if self._host is not None:
            return self._by_memory(self._host, (verb, root), tensor, op)
        options = self._reducing.get(op)
        if options is None:
            options = self._reducing[op] = self._distributed.AllreduceOptions()
            options.reduceOp = self._op(op)
        return _Begun(self._gloo.group.allreduce([tensor], options))

    def reduce(self, tensor: Any, target: Any, op: str, root: int) -> Begun | None:
        """Numbers are reduced where they are found, at all members."""
        everywhere = tensor.clone() if target is None else target
        if self._host is not None:
            return self._everywhere("reduce", everywhere, op, root)
        self._begun += 1
        options = self._distributed.ReduceOptions()
        options.reduceOp, options.rootRank = self._op(op), root
        return _Begun(self._gloo.group.reduce([everywhere], options))

    def reduce_scatter(self, tensor: Any, result: Any, op: str) -> Begun | None:
        """All of it is made everywhere."""
        whole = tensor.clone()
        first = self._rank * result.shape[0]
        begun = self._everywhere("reduce_scatter", whole, op)

        def finish() -> None:
            result.copy_(whole[first : first + result.shape[0]])

        if begun is not None:
            return _Finished(begun, finish)
        finish()
        return None

    def all_gather(self, tensor: Any, result: Any) -> _Begun:
        """Of bytes."""
        self._begun += 1
        return _Begun(self._gloo.group._allgather_base(_bytes(result), _bytes(tensor)))

    def broadcast(self, tensor: Any, root: int) -> _Begun:
        """Of bytes."""
        self._begun += 1
        options = self._distributed.BroadcastOptions()
        options.rootRank = root
        return _Begun(self._gloo.group.broadcast([_bytes(tensor)], options))

    def all_to_all(self, tensor: Any, result: Any) -> _Begun:
        """Of bytes."""
        self._begun += 1
        return _Begun(self._gloo.group.alltoall_base(_bytes(result), _bytes(tensor), [], []))

    def send(self, tensor: Any, peer: int) -> _Waited:
        """Of bytes."""
        return _Waited(self._gloo.group.send([_bytes(tensor)], peer, _TAG))

    def receive(self, tensor: Any, peer: int) -> _Waited:
        """Of bytes."""
        return _Waited(self._gloo.group.recv([_bytes(tensor)], peer, _TAG))

    def barrier(self) -> Begun | None:
        """Without tensors."""
        self._begun += 1
        if self._host is not None:
            return self._by_memory(self._host, ("barrier", 0), None, "sum")
        return _Begun(self._gloo.group.barrier())

    def _by_memory(self, host: HostGroup, what: tuple[str, int], tensor: Any, op: str) -> Called | None:
        called = Called(tensor)
        memory = _NOWHERE if tensor is None else (tensor.data_ptr(), tensor.numel(), kind_of(tensor.dtype))
        has_ended = host.reduce((*what, self._begun % _NUMBERS), memory, op, called)
        return None if has_ended else called

    def _op(self, op: str) -> Any:
        return getattr(self._distributed.ReduceOp, _OF_TORCH[op])


class _Split:
    """See `Split`: a row is colour, key, port."""

    def __init__(self, whole: OverGloo, number: int, colour: int | None, key: int) -> None:
        self._whole = whole
        self._part = OverGloo(whole._address, (whole, f"{number}/{colour}"))
        own = libraries.torch().tensor([[-1 if colour is None else colour, key, self._part._gloo.port]])
        self._own = own
        self.said = own.new_empty((whole._gloo.group.size(), 3))

    def begin(self) -> _Begun:
        """Each member's row to all."""
        return self._whole.all_gather(self._own, self.said)

    def part(self) -> OverGloo:
        """It listens already."""
        return self._part


class _Begun:
    """Work of gloo's that says itself when it is done."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def then(self, done: Callable[[BaseException | None], None]) -> None:
        """On the library's thread."""

        def ended(future: Any) -> None:
            _tell(future.value, done)

        self._work.get_future().add_done_callback(ended)


class _Finished:
    """Work after which there is something left to do.

    Args:
        begun: the work.
        finish: what there is to do.
    """

    def __init__(self, begun: Begun, finish: Callable[[], None]) -> None:
        self._begun = begun
        self._finish = finish

    def then(self, done: Callable[[BaseException | None], None]) -> None:
        """On the thread that tells of the work's end."""
        finish = self._finish

        def ended(error: BaseException | None) -> None:
            if error is None:
                _tell(finish, done)
            else:
                done(error)

        self._begun.then(ended)


class _Waited:
    """Work of gloo's that has nothing that would tell: somebody has to wait for it."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def then(self, done: Callable[[BaseException | None], None]) -> None:
        """On a thread of its own."""
        arguments = self._work.wait, done
        threading.Thread(target=_tell, args=arguments, name="roost-collective", daemon=True).start()


def _tell(wait: Callable[[], object], done: Callable[[BaseException | None], None]) -> None:
    """Wait and tell.

    The group must not be known here: with its last reference the library ends its threads, of which this may be one.
    """
    try:
        wait()
    except BaseException as error:  # noqa: BLE001 - it goes to whoever awaits the operation
        done(error)
    else:
        done(None)


def _bytes(tensor: Any) -> Any:
    """What is only moved is so many bytes: gloo does not know every dtype."""
    return tensor.reshape(-1).view(libraries.torch().uint8)


def _left(until: float) -> timedelta:
    # None at all would be for ever, and more than some weeks is too much for the library.
    return timedelta(seconds=min(max(0.001, until - time.monotonic()), _LONGEST_S))
