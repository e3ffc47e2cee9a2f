"""`HostedMesh`: the actors of one mesh that live in this process."""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import TYPE_CHECKING, Any

from roost import serialize
from roost.failure import Failure
from roost.runner import Runner
from roost.runtime import encode_sizes
from roost.shape import Point, rank_name

if TYPE_CHECKING:
    import asyncio

    from roost._roost import Cell, Message
    from roost.mesh import ActorMesh
    from roost.runtime import Runtime

__all__ = ["HostedMesh", "Hosting", "pack_spawn"]

_logger = logging.getLogger("roost")

# How long a message for a mesh that this process has not heard of waits for it.
_EARLY_WAIT_S = 10.0

Ranks = list[tuple[int, int]]


def pack_spawn(handle: ActorMesh, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> bytes:
    """What a proc needs to make its actors of a mesh; kept by the host for later incarnations, so everything is inside."""
    return pickle.dumps((serialize.dumps_alone(handle), serialize.dumps_alone((args, kwargs)), options), 5)


class Hosting:
    """All actors of this process, by mesh."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.meshes: dict[int, HostedMesh] = {}

    def spawn(self, mesh: int, owner: int, ranks: Ranks, payload: bytes) -> None:
        """Make the actors of a mesh that live here."""
        if mesh in self.meshes:
            return  # it came with this incarnation's start already
        try:
            hosted = HostedMesh(self._runtime, mesh, owner, payload, ranks)
        except Exception as error:
            self._refuse(mesh, owner, ranks, error)
            return
        self.meshes[mesh] = hosted
        self._runtime.members.note(hosted.handle._on)
        hosted.start()

    def _refuse(self, mesh: int, owner: int, ranks: Ranks, error: Exception) -> None:
        """The class or its arguments do not unpickle here."""
        runtime = self._runtime
        said = f"its class could not be loaded in the proc: {type(error).__name__}: {error}"
        failure = Failure(
            kind="error", origin="user", mesh=runtime.name, name=runtime.name, point=Point({}), host=runtime.host,
            incarnation=runtime.incarnation, reason=said, traceback="".join(traceback.format_exception(error)),
        )  # fmt: skip
        packed = pickle.dumps((failure, serialize.dump_exception(error)), 5)
        runtime.node.give_up_early(mesh, packed)
        news = [("failed", rank, said, packed) for _, rank in ranks]
        runtime.send_state(owner, mesh, pickle.dumps((runtime.incarnation, news), 5))

    def stop(self, mesh: int, _sender: int, ranks: Ranks, payload: bytes) -> None:
        """The owner stops actors."""
        hosted = self.meshes.get(mesh)
        if hosted is not None:
            hosted.stop_slots([slot for slot, _ in ranks], payload.decode())

    def early(self, mesh: int, _sender: int, _ranks: Ranks, _payload: bytes) -> None:
        """A message came for a mesh that is not here: it may still come, or have been stopped."""
        runtime = self._runtime

        def give_up() -> None:
            if mesh not in self.meshes and not runtime.closed:
                failure = Failure(
                    kind="stopped", origin="roost", mesh="", name="the actor", point=Point({}), host=runtime.host,
                    reason=f"this proc has no actors of mesh {mesh:x}",
                )  # fmt: skip
                runtime.node.give_up_early(mesh, pickle.dumps((failure, None), 5))

        runtime.loop.call_later(_EARLY_WAIT_S, give_up)


class HostedMesh:
    """The actors of one mesh in this process: made together, each with its own life."""

    __slots__ = ("_construct", "_news", "_ranks", "cells", "cleanup_timeout_s", "endpoints", "handle", "id", "order", "owner", "runners", "runtime", "sizes")

    def __init__(self, runtime: Runtime, mesh: int, owner: int, payload: bytes, ranks: Ranks) -> None:
        self.runtime = runtime
        self.id = mesh
        self.owner = owner
        handle, self._construct, options = pickle.loads(payload)
        self.handle: ActorMesh = serialize.loads(handle)
        self.cleanup_timeout_s: float = options.get("cleanup_timeout_s") or runtime.config.cleanup_timeout_s
        self.endpoints = self.handle._class.__roost_endpoints__  # type: ignore[attr-defined]
        self.sizes = encode_sizes(self.handle._whole)
        # News for the owner, sent together once a loop turn: 1,000 actors that come up are one message.
        self._news: list[tuple[str, int, str, bytes | None]] = []
        slots = [slot for slot, _ in ranks]
        self._ranks = dict(ranks)
        self.cells: list[Cell] = runtime.node.host(mesh, slots, self.endpoints)
        self.runners: dict[int, Runner] = {}
        for cell, (_, rank) in zip(self.cells, ranks, strict=True):
            runner = self.runners[rank] = Runner(self, rank, cell)
            cell.set_runner(runner)

    def start(self) -> None:
        """Construct every actor, each in its own task."""
        for runner in list(self.runners.values()):
            runner.start(self._make)

    def _make(self) -> Any:
        args, kwargs = serialize.loads(self._construct)
        return self.handle._class(*args, **kwargs)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.runtime.loop

    @property
    def name(self) -> str:
        return self.handle._name

    @property
    def class_name(self) -> str:
        kind = self.handle._class
        return f"{kind.__module__}.{kind.__qualname__}"

    def point(self, rank: int) -> Point:
        return self.handle._whole.point(rank)

    def rank_name(self, rank: int) -> str:
        return rank_name(self.name, self.point(rank))

    # What runners report -------------------------------------------------------------------------------------------------
    def up(self, runner: Runner) -> None:
        """An actor is constructed."""
        self._tell("up", runner.rank, "", None)

    def stopped(self, runner: Runner, reason: str) -> None:
        """An actor has ended in order."""
        if self.runners.pop(runner.rank, None) is not None:
            runner.cell.release()
            self._tell("stopped", runner.rank, reason, None)

    def failed(self, runner: Runner, error: BaseException, during: str) -> Failure:
        """An actor has failed: callers get its failure from now on, and the owner hears of it."""
        failure = self.failure(runner.rank, error, during)
        packed = pickle.dumps((failure, serialize.dump_exception(error)), 5)
        runner.cell.close(packed)
        self._tell("failed", runner.rank, failure.reason, packed)
        return failure

    def closing(self, runner: Runner, reason: str) -> None:
        """An actor takes no more messages, since it stops."""
        failure = Failure(
            kind="stopped", origin="user", mesh=self.name, name=self.rank_name(runner.rank), point=self.point(runner.rank),
            actor_class=self.class_name, host=self.runtime.host, incarnation=self.runtime.incarnation, reason=reason,
        )  # fmt: skip
        runner.cell.close(pickle.dumps((failure, None), 5))

    def failure(self, rank: int, error: BaseException, during: str) -> Failure:
        """What is told of an actor that raised."""
        said = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        return Failure(
            kind="error", origin="user", mesh=self.name, name=self.rank_name(rank), point=self.point(rank),
            actor_class=self.class_name, host=self.runtime.host, incarnation=self.runtime.incarnation,
            reason=f"{said} (in {during})", traceback="".join(traceback.format_exception(error)),
        )  # fmt: skip

    def _tell(self, state: str, rank: int, reason: str, packed: bytes | None) -> None:
        self._news.append((state, rank, reason, packed))
        if len(self._news) == 1:
            self.loop.call_soon(self._send_news)

    def _send_news(self) -> None:
        news, self._news = self._news, []
        self.runtime.send_state(self.owner, self.id, pickle.dumps((self.runtime.incarnation, news), 5))

    def exit_process(self, ending: SystemExit) -> None:
        """An endpoint raised SystemExit."""
        self.runtime.exit(ending)

    def dead_letter(self, message: Message, reason: str) -> None:
        """A broadcast that no endpoint takes."""
        self.runtime.letters.send_back(message, self.rank_name(message.rank), reason)

    def note(self, message: Message) -> str:
        """What is added to an exception that goes back to a caller."""
        return f"raised by {self.rank_name(message.runner.rank)} in endpoint {message.name}"

    def warn(self, text: str) -> None:
        _logger.warning("%s", text)

    def stop_slots(self, slots: list[int], reason: str) -> None:
        """Stop the actors in these slots; one that has ended is told of again."""
        for slot in slots:
            rank = self._ranks.get(slot)
            if rank is None:
                continue
            runner = self.runners.get(rank)
            if runner is not None:
                runner.stop(reason)
            else:
                self._tell("stopped", rank, reason, None)
