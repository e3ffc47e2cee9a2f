"""`GlooGroup`: the process group of one quorum, made anew for each and aborted the moment that nothing will come of it.

Whoever has left a quorum waits for its peers in the next one, and those that are still in the old group, or have yet to make it, would
wait there for nobody. So an abort is of a quorum and of all before it: it ends their groups, and they are not made any more.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from roost import libraries
from roost.collectives.called import Called
from roost.collectives.gloo import Gloo, connected_store, port_of
from roost.collectives.on_one_host import kind_of, on_one_host
from roost.errors import CollectiveError

if TYPE_CHECKING:
    from roost._roost import HostGroup

__all__ = ["GlooGroup", "Group", "Pending"]

# How often who waits in the library looks whether it waits for nothing: twice after an abort.
_LOOK_S = 0.5
# What a sum by memory is to the others, none of whom counts them.
_PURPOSE = ("all_reduce", 0, 0)
# What can be summed by memory: the same that gloo can.
_KINDS = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8")


class Pending(Protocol):
    """A collective that was begun."""

    def wait(self, timeout_s: float) -> None:
        """Wait until it is done; raises what went wrong."""
        ...


class Group(Protocol):
    """What a `Manager` needs of a process group."""

    @property
    def quorum_id(self) -> int:
        """The quorum that it is for; -1 before the first."""
        ...

    @property
    def aborted(self) -> str | None:
        """Why it was aborted, if it was."""
        ...

    def configure(self, store: str, quorum_id: int, rank: int, world: int) -> None:
        """Make the group of a quorum."""
        ...

    def abort(self, reason: str, until: int | None = None) -> None:
        """End what it is doing; with `until` if its quorum is that one or one before, which are not joined any more either."""
        ...

    def averages(self, tensor: Any) -> bool:
        """Whether it can divide a tensor's sum by the number of members, too."""
        ...

    def allreduce(self, tensor: Any, *, averages: bool = False) -> Pending:
        """Begin to sum a tensor over the members, in place, or to average it where it can."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


class GlooGroup:
    """A gloo group that can be aborted from another thread; where all its members are on one host, they sum by memory that they share.

    `configure`, `allreduce` and `close` belong to the training thread, `abort` to any.

    Args:
        address: the numeric address that this process listens on and is reached by; nothing is looked up.
        timeout_s: how long making a group may take.
        proc: which proc of each replica this group is of: those of one number meet in a quorum's store.
    """

    def __init__(self, address: str, timeout_s: float, proc: int = 0) -> None:
        self._proc = proc
        self._address = address
        self._timeout = timedelta(seconds=timeout_s)
        self._quorum_id = -1
        self.rank, self.world = 0, 1
        """This member's place in the quorum's group, and how many there are."""
        # The quorum's, of one member, too: it can be aborted before it is connected, and says so when it was closed.
        self._gloo: Gloo | None = None
        self._host: HostGroup | None = None
        # Between whoever makes a group and whoever aborts it.
        self._lock = threading.Lock()
        # The last quorum that nothing will come of, and why.
        self._over: tuple[int, str] = -1, ""
        # Whether a thread of the library's is still in an operation that nobody waits for any more.
        self._is_left_behind = False

    @property
    def quorum_id(self) -> int:
        """The quorum that the group is for; -1 before the first."""
        return self._quorum_id

    @property
    def aborted(self) -> str | None:
        """Why it was aborted, if it was."""
        return None if self._gloo is None else self._gloo.aborted

    def configure(self, store: str, quorum_id: int, rank: int, world: int) -> None:
        """Make the group of a quorum, in place of the one before.

        Args:
            store: "host:port" of the quorum's own store, or "host:port/prefix" where it serves several.
            quorum_id: the quorum.
            rank: this member's place.
            world: how many members there are.

        Raises:
            CollectiveError: the group could not be made, or was aborted meanwhile.
        """
        self.close()
        gloo = Gloo(self._address)
        with self._lock:
            self._quorum_id, self._gloo = quorum_id, gloo
            over, why = self._over
        self.rank, self.world = rank, world
        if quorum_id <= over:
            gloo.abort(why)
        elif world > 1:
            try:
                self._connect(gloo, store, rank, world)
            except (RuntimeError, OSError) as error:
                why = self.aborted or str(error)
                self.abort(why)
                # Nor is it to listen: who comes late would find a group that looks whole.
                gloo.close()
                raise CollectiveError(
                    f"making the group of quorum {quorum_id} with {world} members failed: {why}"
                ) from error
        self._refuse_aborted()

    def _refuse_aborted(self) -> None:
        if self.aborted is not None:
            raise CollectiveError(f"the group of quorum {self._quorum_id} was aborted: {self.aborted}")

    def _connect(self, gloo: Gloo, store: str, rank: int, world: int) -> None:
        where, _, prefix = store.partition("/")
        gloo.reaches([port_of(where)])
        # Those of one number meet in a quorum's store.
        prefix = f"{prefix}/proc/{self._proc}"
        client = libraries.distributed().PrefixStore(prefix, connected_store(where, self._timeout))
        client.set(f"port/{rank}", str(gloo.port))
        gloo.reaches(int(client.get(f"port/{other}")) for other in range(world) if other != rank)
        gloo.connect(libraries.distributed().PrefixStore("gloo", client), rank, world, self._timeout)
        # Aborted meanwhile it is of no use, and refused.
        self._host = on_one_host(gloo.group, client, rank, world, self._timeout)

    def abort(self, reason: str, until: int | None = None) -> None:
        """End what the group is doing: whoever waits in it gets an error within milliseconds. Again and again is fine.

        Args:
            reason: why.
            until: the last quorum of which nothing will come: a later one's group is left alone, and one up to it is not made any more.
                None: whatever group there is, and no more.
        """
        with self._lock:
            if until is not None:
                self._over = max(self._over, (until, reason))
                if self._quorum_id > until:
                    return
            gloo, host = self._gloo, self._host
        if gloo is not None:
            gloo.abort(reason)
        if host is not None:
            host.abort(reason)

    def averages(self, tensor: Any) -> bool:
        """Whether it can divide a tensor's sum by the number of members, too: the same at all members."""
        return self._host is not None and tensor.is_floating_point() and self._is_for_memory(tensor)

    def allreduce(self, tensor: Any, *, averages: bool = False) -> Pending:
        """Begin to sum a tensor over the members, in place.

        Args:
            tensor: of the same shape and dtype at all members.
            averages: divide it by their number, too; for what `averages()` says yes to.

        Raises:
            CollectiveError: the group was aborted.
        """
        self._refuse_aborted()
        host = self._host
        if host is not None and self._is_for_memory(tensor):
            return self._by_memory(host, tensor, "average" if averages else "sum")
        assert not averages, "gloo has no average"
        group = None if self._gloo is None else self._gloo.group
        return _Done() if group is None else _Waiting(self, group.allreduce([tensor]))

    def _is_for_memory(self, tensor: Any) -> bool:
        return bool(tensor.is_cpu and tensor.is_contiguous() and kind_of(tensor.dtype) in _KINDS)

    def _by_memory(self, host: HostGroup, tensor: Any, op: str) -> Pending:
        called = Called(tensor)
        try:
            has_ended = host.reduce(_PURPOSE, (tensor.data_ptr(), tensor.numel(), kind_of(tensor.dtype)), op, called)
        except RuntimeError as error:
            raise self.failed(error) from error
        return _Done() if has_ended else _Summing(self, called)

    def failed(self, error: BaseException) -> CollectiveError:
        """What went wrong in a collective, as its waiter is told."""
        return CollectiveError(f"a collective of quorum {self._quorum_id} failed: {self.aborted or error}")

    def leave_behind(self) -> None:
        """Nobody waits any more for an operation that has not ended: closing the group is not to wait for it, either."""
        self._is_left_behind = True

    def close(self) -> None:
        """Let the group go."""
        with self._lock:
            gloo, self._host = self._gloo, None
        is_left_behind, self._is_left_behind = self._is_left_behind, False
        if gloo is None:
            return
        if is_left_behind:
            threading.Thread(target=gloo.close, name="roost-ft-close", daemon=True).start()
        else:
            gloo.close()


class _Done:
    def wait(self, timeout_s: float) -> None:
        """There is nobody to wait for."""


class _Waiting:
    def __init__(self, group: GlooGroup, work: Any) -> None:
        self._group = group
        self._work = work

    def wait(self, timeout_s: float) -> None:
        """Wait for the members.

        The end of its connections does not always wake the library: whoever waits looks up, and leaves it behind.
        """
        until = time.monotonic() + timeout_s
        was_aborted = False
        while True:
            left_s = until - time.monotonic()
            try:
                self._work.wait(timedelta(seconds=max(0.001, min(left_s, _LOOK_S))))
            except RuntimeError as error:
                is_over = self._work.is_completed() or left_s <= _LOOK_S
                if not is_over and not was_aborted:
                    was_aborted = self._group.aborted is not None
                    continue
                if not self._work.is_completed():
                    self._group.leave_behind()
                raise self._group.failed(error) from error
            else:
                return


class _Summing:
    def __init__(self, group: GlooGroup, called: Called) -> None:
        self._group = group
        # No `Event`: that is several locks, and Python around each.
        self._over = threading.Lock()
        self._over.acquire()
        self._error: BaseException | None = None
        called.then(self._ended)

    def _ended(self, error: BaseException | None) -> None:
        self._error = error
        self._over.release()

    def wait(self, timeout_s: float) -> None:
        """Wait for the members. When it returns or raises, nothing is written to the tensor any more."""
        if not self._over.acquire(timeout=timeout_s):
            self._group.abort(f"its members have not come within {timeout_s:g} s")
            self._over.acquire()
        if self._error is not None:
            raise self._group.failed(self._error) from self._error
