"""`Training`: one life of a trainer, on its thread, from the build to the end that all reach together."""

from __future__ import annotations

import sys
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from roost import libraries
from roost.addresses import address_towards
from roost.errors import RoostError
from roost.ft.coordinator import Member
from roost.ft.ending import TrainingOver
from roost.ft.group import GlooGroup
from roost.ft.ledger import Settlement
from roost.ft.linked import CoordinatorLink
from roost.ft.loops import loop_for
from roost.ft.manager import Manager
from roost.ft.seat import seat_here
from roost.ft.state import StateTransfer
from roost.ft.sync import EveryStep
from roost.last_resort import end_process
from roost.values import check_integer

if TYPE_CHECKING:
    from roost.ft.companion import Companion
    from roost.ft.coordinator import Coordinator
    from roost.ft.data import Item
    from roost.ft.ending import End
    from roost.ft.ledger import Ledger
    from roost.ft.quorum import Quorum
    from roost.ft.sync import Sync
    from roost.ft.timeouts import Timeouts
    from roost.ft.trainer import Trainer
    from roost.reply import Reply

__all__ = ["Plan", "Training", "fail_process"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every trainer of a job is told."""

    coordinator: Coordinator
    companions: Companion
    ledger: Ledger
    sync: Sync
    timeouts: Timeouts
    home: str
    """The address of the host with the quorum service and the stores."""
    steps: int | None
    has_data: bool


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
        self._link = CoordinatorLink(seat, self._member, plan.coordinator, plan.ledger)
        self._link.news.times["process_up"] = seat.born_at
        self._first_step_s = first_step_s
        self._link.mark("building", first_step_s)
        began = time.monotonic()
        libraries.torch()
        libraries.distributed()
        if not isinstance(plan.sync, EveryStep):
            libraries.local_sgd()
        self._link.reached("libraries_imported")
        group = GlooGroup(address_towards(plan.home), plan.timeouts.group_s, seat.proc)
        self._transfer = transfer = StateTransfer(
            self._member, seat.shelf, plan.companions, plan.ledger, self._link.news, plan.timeouts.heal_within_s
        )
        seat.begin(life, group)
        self._manager = Manager(
            self._link, group, transfer, plan.timeouts, counts_healed=isinstance(plan.sync, EveryStep)
        )
        self._manager.decided, self._manager.joined = self._decided, self._joined
        self._manager.brings = lambda: (self._base, self.loop.brings())
        if isinstance(plan.sync, EveryStep):
            self._manager.idles_next = self._idles_next
        trainer.model, trainer.optimizer = trainer.build()
        check_integer(type(trainer).__name__, "first_step", trainer.first_step, least=0)
        self._manager.register_state_dict_fn("trainer", trainer.load_state_dict, trainer.state_dict)
        self.loop = loop_for(plan.sync, self._manager, trainer.model, trainer.optimizer)
        # Inner steps that count, and those since the last sync with their items and losses.
        self._base = trainer.first_step
        self._items: list[int] = []
        self._losses: list[float] = []
        # Of each decision since the last step was over: whether it counts, own steps in it, and how many counted before.
        self._verdicts: list[tuple[bool, int, int]] = []
        self._built_s = time.monotonic() - began
        self._is_first = True
        self._next_item: Reply[Item[Any] | None] | None = None
        self._manager.prepare()

    def run(self) -> int | None:
        """Train to the end; how many steps count, or None for who came back when it was over, and nobody was there to take it from.

        Raises:
            RoostError: training cannot go on.
        """
        try:
            self._train()
        except TrainingOver as over:
            self._link.mark("at the end", None)
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
        """Whether there is another step, and what to learn from in it."""
        plan = self._plan
        if plan.steps is not None and self._base + self.loop.local() >= plan.steps:
            return False, None
        if not plan.has_data:
            return True, None
        asked = self._next_item or plan.ledger.take.call_one(self._member)
        self._link.mark("waiting for data", None)
        item = asked.result()
        # One ahead, so that a step does not wait for it.
        self._next_item = plan.ledger.take.call_one(self._member)
        return item is not None, item

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
        asked = self._next_item
        return asked.result() is None if asked is not None and asked.done() else None

    def _inner_step(self, item: Item[Any] | None) -> None:
        number = self._base + self.loop.local()
        self._link.mark(f"step {number}", self._first_step_s if self._is_first else self._plan.timeouts.step_s)
        began = time.monotonic()
        loss = self._trainer.step(number, None if item is None else item.value)
        if self._is_first:
            self._is_first = False
            self._plan.ledger.began.broadcast(max(self._built_s, time.monotonic() - began))
        self._losses.append(float(loss))
        if item is not None:
            self._items.append(item.position)

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
        self._plan.ledger.settle.broadcast(
            self._member,
            Settlement(
                is_yes=is_yes,
                first=first,
                losses=losses if is_yes else (),
                counted=items if is_yes else (),
                discarded=() if is_yes else items,
                lost_steps=lost_steps,
                at=time.time(),
            ),
        )


def fail_process() -> NoReturn:
    """End this process because of what is being handled: a replica's life is its procs'."""
    traceback.print_exc(file=sys.stderr)
    end_process("roost.ft", "its training raised (see above)")
