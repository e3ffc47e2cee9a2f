"""The seam to the data lane: what Rust calls in Python, with what, and where it puts answers. For type checkers alone.

`rust/roost-py/src/hooks.rs` takes each member of `Hooks` by its name, once; `roost.lane` lends them. All are called on the
loop's own thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Sequence

    from roost._roost import Done, Letters, Message, SegmentMap, Verb
    from roost.actor_mesh import ActorMesh
    from roost.endpoint_info import EndpointInfo
    from roost.gathered import GatheredReply
    from roost.reply import Reply
    from roost.runner import Runner

__all__ = ["Hooks", "Sink"]


class Sink(Protocol):
    """Where what comes of a call goes: a `Reply`, a `GatheredReply` or a `StreamSink`."""

    def open_ranks(self) -> Sequence[int]:
        """The ranks that still can be answered."""
        ...

    def fail_ranks(self, errors: Sequence[tuple[int, BaseException]]) -> None:
        """Some ranks failed, at the same moment."""
        ...

    def refuse(self, error: BaseException) -> None:
        """The call cannot be sent."""
        ...

    def may_be_heard(self) -> bool:
        """Whether there is, or may come, an error that nobody has looked at, and somebody still can."""
        ...


class Hooks(Protocol):
    """What Python lends to the data lane."""

    # Values ------------------------------------------------------------------------------------------------------------
    def dumps(self, value: Any, protocol: int, /) -> bytes:
        """`pickle.dumps`."""
        ...

    def loads(self, payload: bytes, /) -> Any:
        """`pickle.loads`."""
        ...

    def dumps_parts(self, value: Any, receiver: int, /) -> Any:
        """The careful way to pickle an answer for a proc: bytes, or bytes and large parts."""
        ...

    def loads_parts(self, payload: bytes, buffers: Sequence[Any], /) -> Any:
        """What `dumps_parts` made."""
        ...

    # Shared memory -----------------------------------------------------------------------------------------------------
    @property
    def map(self) -> SegmentMap:
        """What others sent."""
        ...

    def offer(self, proc: int, segment: int, size: int, fd: int, /) -> None:
        """Hand the descriptor of a segment of `size` bytes to a receiver, and close it."""
        ...

    def released(self) -> None:
        """Parts of received segments were let go."""
        ...

    # Calls -------------------------------------------------------------------------------------------------------------
    @property
    def reply(self) -> type[Reply[Any]]:
        """The reply of one rank's call."""
        ...

    @property
    def gathered_reply(self) -> type[GatheredReply[Any]]:
        """The reply of a mesh's call."""
        ...

    def begin(self, reply: GatheredReply[Any], mesh: ActorMesh, /) -> None:
        """Prepare the reply of a mesh's call."""
        ...

    def bounded(self, sink: Any, call: int, deadline: int, /) -> None:
        """This call has a deadline, in ns of the monotonic clock."""
        ...

    def errored(self, sink: Any, rank: int, payload: bytes, /) -> None:
        """The endpoint raised: `roost.serialize.dump_exception` made the payload."""
        ...

    def dropped(self, sink: Any, rank: int, payload: bytes, /) -> None:
        """The actor did not take the message, or ended while it handled it; the payload is its cell's, see `Hosted`."""
        ...

    def unloadable(self, sink: Any, rank: int, error: BaseException, /) -> None:
        """A value did not unpickle here."""
        ...

    def refused(
        self, sink: Any, mesh: ActorMesh, endpoint: str, gone: list[tuple[int, list[int]]], call: int, /
    ) -> None:
        """Procs of the mesh are gone, each with these ranks; a broadcast has no sink."""
        ...

    # Verbs -------------------------------------------------------------------------------------------------------------
    def pack(self, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any] | None, /) -> Any:
        """Pickle arguments that are not all plain: bytes, or bytes and large parts; a list of those by rank for `each`."""
        ...

    def elsewhere(self, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any] | None, /) -> Any:
        """A verb is used on another thread than the loop's; what it gives."""
        ...

    def handling(self) -> Any:
        """The message that the running endpoint handles, or what else `roost.context.handling` holds."""
        ...

    def stopped(self, mesh: ActorMesh, /) -> Any:
        """Raise: this process stopped that mesh of its own."""
        ...

    def too_large(self, size: int, inline: int, /) -> Any:
        """Raise: a message of so many bytes passes the limit, or so many of them outside shared memory."""
        ...

    def unsendable(self, what: str, size: int, /) -> bytes:
        """The error that travels in place of an answer or a value for a port that cannot be a frame."""
        ...

    def unsent(self, mesh: int, proc: int, slots: list[int], endpoint: str, size: int, /) -> None:
        """A broadcast cannot be a frame."""
        ...

    def room(self, mesh: ActorMesh, /) -> Any:
        """What a broadcast gives that had to be queued: an awaitable."""
        ...

    @property
    def sent(self) -> Done:
        """What a broadcast gives that has left: an awaitable that is done."""
        ...

    # Peers -------------------------------------------------------------------------------------------------------------
    @property
    def loop(self) -> AbstractEventLoop:
        """The loop that reads and writes the sockets."""
        ...

    def connect(self, proc: int, /) -> None:
        """A message waits for a connection."""
        ...

    def broken(self, proc: int, text: str, /) -> None:
        """The connection carries bytes that are no frames of ours."""
        ...

    def redial(self, proc: int, /) -> None:
        """There is no connection to a proc of another host, and there has to be one."""
        ...

    def post(self, letters: Letters, /) -> None:
        """These frames go along the tree of hosts."""
        ...

    def session_lost(self, proc: int, text: str, /) -> None:
        """What was sent to a proc of another host, and what it sent, cannot go on: nobody will answer."""
        ...

    def system(self, name: str, mesh: int, sender: int, ranks: list[tuple[int, int]], payload: bytes, /) -> None:
        """A message for Roost itself, with its (slot, rank) pairs."""
        ...

    # Actors ------------------------------------------------------------------------------------------------------------
    def work(self) -> None:
        """One more worker is wanted."""
        ...

    def say_news(self) -> None:
        """An actor answers: what there is to say of actors goes first."""
        ...

    def cancelled(self, runner: Runner, message: Message, /) -> None:
        """A caller cancelled a message that runs."""
        ...

    def suspect(
        self, running: Message, others: Sequence[EndpointInfo | None], endpoint: EndpointInfo | None, name: str,
        call: tuple[int, int, int], cycle: list[tuple[int, int, int, int]], /,
    ) -> None:  # fmt: skip
        """A message came for an actor whose running message waits for it."""
        ...

    def undelivered(self, sender: int, endpoint: str, reason: bytes, /) -> None:
        """A broadcast that its actor did not take."""
        ...

    # Ports -------------------------------------------------------------------------------------------------------------
    def port_item(self, port: int, sender: int, what: int, payload: bytes, buffers: Sequence[Any] | None, /) -> None:
        """A value for a port of this process, or the word that its sender closed it."""
        ...

    def port_taken(self, port: int, receiver: int, total: int, /) -> None:
        """The receiver of a port has taken so many values of ours."""
        ...

    def port_closed(self, port: int, receiver: int, /) -> None:
        """The receiver of a port takes no more."""
        ...
