"""`Training`: one life of a trainer, on its thread, from the build to the end that all reach together."""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from roost import libraries
from roost.addresses import address_towards
from roost.errors import RoostError
from roost.ft.data import shares
from roost.ft.draws import Draws
from roost.ft.ending import TrainingOver
from roost.ft.group import GlooGroup
from roost.ft.ledger import Settlement, positions
from roost.ft.linked import CoordinatorLink, LighthouseLink
from roost.ft.loops import loop_for
from roost.ft.manager import DRAWS, Manager
from roost.ft.quorum import Member
from roost.ft.seat import seat_here
from roost.ft.state import StateTransfer
from roost.ft.sync import EveryStep
from roost.ft.torchft_manager import TorchftManager
from roost.ft.torchft_settings import Settings
from roost.ft.transport import SeatTransport
from roost.last_resort import end_process
from roost.values import check_integer

if TYPE_CHECKING:
    from roost.ft.across import Asked
    from roost.ft.companion import Companion
    from roost.ft.coordinator import Coordinator
    from roost.ft.data import Item
    from roost.ft.ending import End
    from roost.ft.ledger import Ledger
    from roost.ft.lighthouse import Lighthouse
    from roost.ft.linked import ServiceLink
    from roost.ft.quorum import Quorum
    from roost.ft.service import Counts
    from roost.ft.sync import Sync
    from roost.ft.timeouts import Timeouts
    from roost.ft.trainer import Trainer

__all__ = ["Plan", "Training", "fail_process"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every trainer of a job is told."""

    quorum: Literal["roost", "torchft"]
    service: Coordinator | Lighthouse
    """What forms quorums."""
    companions: Companion
    ledger: Ledger
    sync: Sync
    timeouts: Timeouts
    home: str
    """The address of the host with the quorum service and the stores."""
    counts: Counts
    steps: int | None
    has_data: bool
    batch_size: int | None
    """Of a `GlobalBatch`."""


class Training:
    """Trains in one life of a proc.

    Args:
        trainer: the user's.
        plan: the job's.
        life: which life of the replica this is.
        first_step_s: how long its build, and its first step, may take.
    """

    def __init__(self, trainer: Trainer[Any], plan: Plan, life: int, first_step_s: float) -> None:
        self._seat = seat = seat_here()
        self._trainer = trainer
        self._plan = plan
        self._member = Member(seat.replica, seat.proc, life)
        is_torchfts = plan.quorum == "torchft"
        link = (LighthouseLink if is_torchfts else CoordinatorLink)(seat, self._member, plan.service, plan.ledger)
        self._link: ServiceLink = link
        link.news.times["process_up"] = seat.born_at
        self._first_step_s = first_step_s
        link.mark("building", first_step_s)
        began = time.monotonic()
        libraries.torch()
        libraries.distributed()
        if not isinstance(plan.sync, EveryStep):
            libraries.local_sgd()
        if is_torchfts:
            libraries.torchft()
        link.reached("libraries_imported")
        self._transfer = StateTransfer(
            self._member, seat.shelf, plan.companions, plan.ledger, link.news, plan.timeouts.heal_within_s, seat.aborted
        )
        self._manager = self._managed(link)
        self._manager.decided, self._manager.joined = self._decided, self._joined
        self._manager.brings = lambda: (self._base, self.loop.brings())
        if isinstance(plan.sync, EveryStep):
            self._manager.idles_next = self._idles_next
        trainer.model, trainer.optimizer = trainer.build()
        check_integer(type(trainer).__name__, "first_step", trainer.first_step, least=0)
        self._manager.register_state_dict_fn("trainer", trainer.load_state_dict, trainer.state_dict)
        draws = Draws(self._manager.current_step)
        self._manager.register_state_dict_fn(DRAWS, draws.load_state_dict, draws.state_dict)
        is_shared = plan.batch_size is not None
        self.loop = loop_for(plan.sync, self._manager, trainer.model, trainer.optimizer, is_shared=is_shared)
        # Inner steps that count, and those since the last sync with their items and losses.
        self._base = trainer.first_step
        self._items: list[int] = []
        self._losses: list[float] = []
        # Of each decision since the last step was over: whether it counts, own steps in it, and how many counted before.
        self._verdicts: list[tuple[bool, int, int]] = []
        self._built_s = time.monotonic() - began
        self._is_first = True
        # Items that are on their way.
        self._asked: deque[Asked] = deque()
        self._manager.prepare()
        draws.begin()

    def _managed(self, link: CoordinatorLink | LighthouseLink) -> Manager | TorchftManager:
        """The manager of the quorum that the job has."""
        plan, seat = self._plan, self._seat
        address = address_towards(plan.home)
        group = GlooGroup(address, plan.timeouts.group_s, seat.proc)
        counts_healed = isinstance(plan.sync, EveryStep)
        if isinstance(link, CoordinatorLink):
            seat.begin(self._member.life, group, None)
            return Manager(link, group, self._transfer, plan.timeouts, counts_healed=counts_healed)
        settings = Settings(
            address, seat.proc, plan.counts.procs, plan.counts.min_replicas, plan.timeouts,
            transport=lambda: SeatTransport(seat, plan.companions, plan.ledger, link),
        )  # fmt: skip
        manager = TorchftManager(link, group, settings, counts_healed=counts_healed)
        seat.begin(self._member.life, group, manager.renew)
        return manager

    def run(self) -> int | None:
        """Train to the end; how many steps count, or None for who came back when it was over, and nobody was there to take it from.

        Raises:
            RoostError: training cannot go on.
        """
        try:
            self._train()
        except TrainingOver as over:
            self._link.mark("at the end", None)
            self._link.ended(over.end)
            self._manager.shutdown()
            if over.end.error is not None:
                raise RoostError(over.end.error) from None
            return self._end(over.end)
        except BaseException:  # noqa: BLE001 - what the user's code raises ends the process, as any failure of a replica does
            fail_process()
        raise AssertionError("training ends by its end")

    def _end(self, end: End) -> int | None:
        manager, transfer = self._manager, self._transfer
        if not manager.has_state:
            if not manager.take_final(lambda own: transfer.take_final(end.trained, own)):
                return None
            self._base = end.base
        self._seat.ended.set_result(lambda: transfer.stage_final(manager.whole_state()))
        return self._base

    def _train(self) -> None:
        loop = self.loop
        loop.join()
        self._settle()
        while True:
            found, item = self._take()
            if not found:
                break
            loop.step(lambda item=item: self._inner_step(item))  # type: ignore[misc]
            self._settle()
        loop.drain()
        self._settle()
        self._manager.is_idle = True
        while True:
            loop.idle()
            self._settle()

    def _take(self) -> tuple[bool, Item[Any] | None]:
        """Whether there is another step, and what to learn from in it, or the first of that."""
        plan = self._plan
        if plan.steps is not None and self._base + self.loop.local() >= plan.steps:
            return False, None
        if not plan.has_data:
            return True, None
        (item,) = self._taken(1)
        return item is not None, item

    def _taken(self, count: int) -> list[Item[Any] | None]:
        """The next items, each None at the end of the data."""
        # One ahead, so that a step does not wait for it.
        while len(self._asked) <= count:
            self._asked.append(self._link.take())
        self._link.mark("waiting for data", None)
        return [self._asked.popleft().result() for _ in range(count)]

    def _batch(self, first: Item[Any] | None) -> tuple[list[Item[Any]], Any]:
        """What a step learns from: the items, and as the user's step gets them."""
        size = self._plan.batch_size
        if first is None:
            return [], None
        if size is None:
            return [first], first.value
        more = self._taken(self._share(size) - 1)
        items = [first, *(one for one in more if one is not None)]
        self.loop.learns_from(len(items))
        return items, [one.value for one in items]

    def _share(self, size: int) -> int:
        """How many items of a global batch are this replica's."""
        quorum = self._manager.quorum
        assert quorum is not None
        if self._manager.errored() is not None:
            # Of this step nothing counts.
            return 1
        return shares(size, len(quorum.learners))[quorum.learners.index(self._member.replica)]

    def _idles_next(self) -> bool | None:
        """Whether there is no step after this one; None when that is not known yet."""
        plan, quorum = self._plan, self._manager.quorum
        assert quorum is not None
        if self._manager.is_idle:
            return True
        if plan.steps is not None and quorum.base + quorum.steps >= plan.steps:
            return True
        if not plan.has_data:
            return False
        asked = self._asked[0] if self._asked else None
        return asked.result() is None if asked is not None and asked.done() else None

    def _inner_step(self, first: Item[Any] | None) -> None:
        number = self._base + self.loop.local()
        items, batch = self._batch(first)
        self._link.mark(f"step {number}", self._first_step_s if self._is_first else self._plan.timeouts.step_s)
        began = time.monotonic()
        loss = self._trainer.step(number, batch)
        if self._is_first:
            self._is_first = False
            self._plan.ledger.began.broadcast(max(self._built_s, time.monotonic() - began))
        self._losses.append(float(loss))
        self._items.extend(positions(items))

    def _joined(self, quorum: Quorum) -> None:
        """A newcomer counts from where the others are."""
        self._base = quorum.base

    def _decided(self, is_yes: bool) -> None:
        """A sync is decided; the step that it is part of is not over yet."""
        local, quorum = self.loop.local(), self._manager.quorum
        assert quorum is not None
        self._verdicts.append((is_yes, local, quorum.base))
        if is_yes:
            self._base = quorum.base + quorum.steps
        elif self.loop.keeps_on_no:
            self._base += local

    def _settle(self) -> None:
        """Tell of what was decided since, now that losses are known."""
        for is_yes, local, base in self._verdicts:
            if is_yes:
                # What an earlier sync has kept comes before what is of this one.
                self._tell(is_yes=True, first=base - (len(self._losses) - local))
            elif not self.loop.keeps_on_no:
                self._tell(is_yes=False, lost_steps=local)
        self._verdicts.clear()

    def _tell(self, *, is_yes: bool, first: int = 0, lost_steps: int = 0) -> None:
        items, losses = tuple(self._items), tuple(self._losses)
        self._items.clear()
        self._losses.clear()
        self._link.settle(
            Settlement(
                is_yes=is_yes,
                first=first,
                losses=losses if is_yes else (),
                counted=items if is_yes else (),
                discarded=() if is_yes else items,
                lost_steps=lost_steps,
                at=time.time(),
            )
        )


def fail_process() -> NoReturn:
    """End this process because of what is being handled: a replica's life is its procs'."""
    traceback.print_exc(file=sys.stderr)
    end_process("roost.ft", "its training raised (see above)")
