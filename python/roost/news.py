"""News of actors: how those that live in a process are, for their owners."""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.owned_actors import OwnedActors
    from roost.runtime import Runtime

__all__ = ["News", "Word", "life", "proc_incarnation"]

# What an owner is told of a rank: the mesh, the rank's state, the rank, the reason, its life and its incarnation, and a
# failure with its exception.
Word = tuple[int, str, int, str, int, int, bytes | None]

_LIVES_MAX = 1 << 32
# The mesh and the rank of an actor whose first life in its process has begun: most news are that.
_FRESH = struct.Struct("<QI")


def life(incarnation: int, alone: int) -> int:
    """A number that grows with each life of an actor: its proc's incarnation, and how often it alone was restarted in that."""
    return incarnation * _LIVES_MAX + alone


def proc_incarnation(life: int) -> int:
    """The incarnation of its proc, in the life of an actor."""
    return life // _LIVES_MAX


class News:
    """News of this process's actors, and of those that it owns elsewhere: sent together, at the latest at the end of the loop's turn."""

    __slots__ = ("_runtime", "_unsent")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By owner: who is up for the first time, and all other words. Nobody else can have said anything of the former before.
        self._unsent: dict[int, tuple[bytearray, list[Word]]] = {}

    def _for(self, owner: int) -> tuple[bytearray, list[Word]]:
        unsent = self._unsent.get(owner)
        if unsent is None:
            if not self._unsent:
                self._runtime.loop.call_soon(self.say)
                self._runtime.node.owe_news()
            unsent = self._unsent[owner] = (bytearray(), [])
        return unsent

    def tell_fresh(self, owner: int, mesh: int, rank: int) -> None:
        """An actor is up that was not here before."""
        self._for(owner)[0].extend(_FRESH.pack(mesh, rank))

    def tell(self, owner: int, word: Word) -> None:
        """An actor is up, or restarts, or has ended."""
        self._for(owner)[1].append(word)

    def say(self) -> None:
        """Send them: at the end of the turn, or before an answer that would tell the same."""
        runtime = self._runtime
        all_news, self._unsent = self._unsent, {}
        for owner, (fresh, words) in all_news.items():
            payload = pickle.dumps((runtime.pid, runtime.incarnation, bytes(fresh), words), 5)
            if owner == runtime.proc:
                self.hear(1, owner, [], payload)
            else:
                runtime.send_system(owner, 1, ".state", payload, [])

    def hear(self, _mesh: int, _sender: int, _ranks: list[tuple[int, int]], payload: bytes) -> None:
        """A process says how some actors in it are."""
        # Actors alone have news; the host tells of procs.
        owned = cast("Mapping[int, OwnedActors]", self._runtime.owned)
        pid, incarnation, fresh, words = pickle.loads(payload)
        first = life(incarnation, 0)
        for mesh, rank in _FRESH.iter_unpack(fresh):
            record = owned.get(mesh)
            if record is not None:
                record.hear_news(pid, "up", rank, "", first, incarnation, None)
        for mesh, *word in words:
            record = owned.get(mesh)
            if record is not None:
                record.hear_news(pid, *word)
