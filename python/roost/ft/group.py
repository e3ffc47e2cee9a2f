"""`GlooGroup`: the process group of one quorum, made anew for each and aborted the moment that a member's death is known."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from roost import libraries
from roost.collectives.gloo import Gloo, connected_store, port_of
from roost.errors import CollectiveError

__all__ = ["GlooGroup", "Group", "Pending"]


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

    def abort(self, reason: str) -> None:
        """End what it is doing."""
        ...

    def allreduce(self, tensor: Any) -> Pending:
        """Begin to sum a tensor over the members, in place."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


class GlooGroup:
    """A gloo group that can be aborted from another thread.

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
        self._quorum_id, self._gloo = quorum_id, Gloo(self._address)
        self.rank, self.world = rank, world
        if world == 1:
            return
        try:
            self._connect(self._gloo, store, rank, world)
        except (RuntimeError, OSError) as error:
            why = self.aborted or str(error)
            self.abort(why)
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

    def abort(self, reason: str) -> None:
        """End what the group is doing: whoever waits in it gets an error within milliseconds. Again and again is fine."""
        if self._gloo is not None:
            self._gloo.abort(reason)

    def allreduce(self, tensor: Any) -> Pending:
        """Begin to sum a tensor over the members, in place.

        Raises:
            CollectiveError: the group was aborted.
        """
        self._refuse_aborted()
        group = None if self._gloo is None else self._gloo.group
        return _Done() if group is None else _Waiting(self, group.allreduce([tensor]))

    def close(self) -> None:
        """Let the group go."""
        if self._gloo is not None:
            self._gloo.close()


class _Done:
    def wait(self, timeout_s: float) -> None:
        """There is nobody to wait for."""


class _Waiting:
    def __init__(self, group: GlooGroup, work: Any) -> None:
        self._group = group
        self._work = work

    def wait(self, timeout_s: float) -> None:
        """Wait for the members."""
        try:
            self._work.wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            why = self._group.aborted or str(error)
            raise CollectiveError(f"a collective of quorum {self._group.quorum_id} failed: {why}") from error
