"""`TorchftManager`: torchft's own manager and lighthouse decide who trains together; the rest is as with Roost's own quorum.

torchft's manager joins its lighthouse's quorums, says who takes a state from whom, and votes. Collectives are done in the same
group that can be aborted, and states travel by the same one-sided reads. What torchft's quorums do not know (who has nothing more to
train on, who has just taken a state, how many steps count) members tell each other by one small sum after each.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from roost import libraries
from roost.collectives.sockets import connections_since, shut
from roost.errors import RoostError
from roost.ft.averages import Averages
from roost.ft.ending import End, TrainingOver
from roost.ft.manifest import manifest_of
from roost.ft.quorum import Quorum
from roost.ft.torchft_settings import manager_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from roost.ft.group import GlooGroup
    from roost.ft.linked import LighthouseLink
    from roost.ft.torchft_settings import Settings

__all__ = ["TorchftManager"]

_logger = logging.getLogger("roost.ft")

_FAILURES_MOST = 3


class TorchftManager(Averages):
    """Takes part in torchft's quorums for one proc of a replica.

    Args:
        link: the way to the actor with the lighthouse.
        group: where collectives are done.
        settings: of torchft's managers, which are made anew with each life of the lighthouse.
        counts_healed: whether who has just taken its state adds to the average, because it computes with it.
    """

    def __init__(
        self, link: LighthouseLink, group: GlooGroup, settings: Settings, *, counts_healed: bool = False
    ) -> None:
        super().__init__(link, group, settings.timeouts, counts_healed=counts_healed)
        self._link = link
        self._gloo = group
        self._settings = settings
        self._torchft: Any = None
        self._is_healed = False
        self._told: tuple[int, ...] = ()
        # Between the training thread and the one that says that the lighthouse is gone.
        self._lock = threading.Lock()
        self._is_waiting = False
        # Whether a manager is to be made, for the first time or anew.
        self._is_stale = True
        self._manager_port = 0

    # ---- what torchft's classes call

    def current_step(self) -> int:
        """How many syncs are in the state."""
        return self._step if self._torchft is None else int(self._torchft.current_step())

    def start_quorum(
        self, allow_heal: bool = True, shrink_only: bool = False, timeout: timedelta | None = None
    ) -> None:
        """Join the lighthouse's next quorum, and take the state of a peer where torchft says so.

        What goes wrong is kept for the vote.

        Raises:
            TrainingOver: there is no next step.
            RoostError: no quorum can be had of a lighthouse that is there.
        """
        link = self._link
        self._quorum, self._error, self._open, self._joined = None, None, [], None
        link.mark("waiting for the others", None)
        self._wait_for_quorum()
        self._step = self.current_step()
        self._quorum = self._alone()
        failed = self._torchft.errored()
        if failed is None:
            self._try(self._agree, None)
        else:
            # Its members wait for this one below.
            self.report_error(failed.original_exception)
        if self._error is None:
            self._look_for_the_end(self._quorum)
        self._tell_of(self._quorum)
        self.joined(self._quorum)
        link.mark("training", self._timeouts.step_s)

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        """Vote, and hear whether the step counts for this replica; torchft does not promise that it does for the others."""
        quorum, link = self._quorum, self._link
        assert quorum is not None, "a vote without a quorum"
        self._wait_for_all()
        link.mark("waiting for the decision", None)
        try:
            is_yes = bool(self._torchft.should_commit())
        except Exception as error:  # noqa: BLE001 - its server is gone: nothing counts
            is_yes, self._error, self._is_stale = False, self._error or error, True
        if is_yes:
            self._step, self._batches = quorum.step + 1, self._batches + len(self.participants)
            self._has_state = True
            link.reached("first_step")
        elif self._error is not None:
            _logger.info("step %d does not count: %s", quorum.step, self._error)
        link.know(has_state=self._has_state, last=None)
        self._error = None
        self.decided(is_yes)
        link.mark("training", self._timeouts.step_s)
        return is_yes

    def report_error(self, error: Exception) -> None:
        """Have the step not count, and the others freed from the group: torchft leaves them there until their time is over."""
        is_first = self._error is None
        super().report_error(error)
        if is_first:
            self._torchft.report_error(error)
            self._link.failed(self._gloo.quorum_id, f"replica {self._link.replica}: {error}")

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        if self._torchft is not None:
            self._torchft.load_state_dict(state)

    def shutdown(self, wait: bool = True) -> None:
        """Let the group and torchft's manager go, which then sends no more heartbeats."""
        self._leave()
        super().shutdown(wait)

    # ---- our own

    def prepare(self) -> None:
        """Look at the state that training begins with.

        Raises:
            TypeError: something in it travels in no way.
        """
        manifest_of(self.whole_state())

    def renew(self, reason: str) -> None:
        """The lighthouse that this manager knows is gone, or will not answer; any thread."""
        with self._lock:
            self._is_stale = True
            if self._is_waiting:
                # torchft would wait on: its call ends with its connection.
                shut(connections_since({}, 0, frozenset({self._manager_port})))
        _logger.info("torchft's manager is made anew: %s", reason)

    def _wait_for_quorum(self) -> None:
        failures = 0
        while True:
            try:
                if self._is_stale:
                    self._enter()
                if self._begins_to_wait():
                    self._torchft.start_quorum()
                    return
            except Exception as error:  # the lighthouse is gone, or its answer came too late
                failures += not self._is_stale
                if failures > _FAILURES_MOST:
                    raise RoostError(f"torchft gives no quorum, after {failures} attempts: {error}") from error
                _logger.info("torchft gives no quorum: %s", error)
                self._is_stale = True
                self._give_up(f"replica {self._link.replica} begins anew: {error}")
            finally:
                with self._lock:
                    self._is_waiting = False

    def _give_up(self, reason: str) -> None:
        """Leave the quorum that there was, of which the others may be members yet."""
        quorum_id = self._gloo.quorum_id
        self._gloo.abort(reason)
        if quorum_id >= 0:
            self._link.failed(quorum_id, reason)

    def _begins_to_wait(self) -> bool:
        """From now on the training thread is to be freed where the lighthouse is gone; False where it is already."""
        with self._lock:
            self._is_healed = False
            self._is_waiting = not self._is_stale
            return self._is_waiting

    def _enter(self) -> None:
        """Make a manager that knows the lighthouse of now, and wait until all that train have theirs."""
        self._leave()
        self._is_stale = False
        entry = self._link.enter()
        if isinstance(entry, End):
            raise TrainingOver(entry)
        self._torchft, self._manager_port = manager_for(entry, self._settings, self._link, self._gloo)
        self._torchft.load_state_dict({"step": self._step, "batches_committed": self._batches})
        for key, (load_state_dict, state_dict) in self._states.items():
            self._torchft.register_state_dict_fn(key, self._noting(load_state_dict), state_dict)
        end = self._link.ready()
        if end is not None:
            raise TrainingOver(end)

    def _leave(self) -> None:
        before, self._torchft = self._torchft, None
        if before is not None:
            self._step = int(before.current_step())
            before.shutdown(wait=False)

    def _noting(self, load_state_dict: Callable[[Any], None]) -> Callable[[Any], None]:
        def load(state: Any) -> None:
            self._is_healed = True
            load_state_dict(state)

        return load

    def _alone(self) -> Quorum:
        """In place of a quorum whose members could not be asked: of its step nothing counts."""
        base, _ = self.brings()
        replica = self._link.replica
        return Quorum(self._gloo.quorum_id, self._step, (replica,), (0,), idle=(replica,), base=base)

    def _agree(self, _: None) -> None:
        """Have each member know what all of them bring."""
        group = self._gloo
        base, local = self.brings()
        rows = libraries.torch().zeros((group.world, 5), dtype=libraries.torch().int64)
        mine = (self._link.replica, self._is_healed, self.is_idle, base, local)
        rows[group.rank] = libraries.torch().tensor([int(one) for one in mine])
        # Those that take a state come later.
        limit_s = self._timeouts.collective_s(is_healing=True)
        self._link.mark("a collective", limit_s * 1.1)
        group.allreduce(rows).wait(limit_s)
        told = [_Row(*row) for row in rows.tolist()]
        # Who has just taken a state counts as those do that it is from.
        expected = [one for one in told if not one.is_healed] or told
        self._quorum = Quorum(
            group.quorum_id,
            self._step,
            members=tuple(one.replica for one in told),
            lives=(0,) * len(told),
            healing=tuple(one.replica for one in told if one.is_healed),
            idle=tuple(one.replica for one in told if one.is_idle),
            base=max(one.base for one in expected),
            steps=max(one.local for one in expected),
        )

    def _tell_of(self, quorum: Quorum) -> None:
        """One tells the job who trains, where that has changed."""
        is_first = (self._gloo.rank, self._settings.proc) == (0, 0) and self._error is None
        if is_first and quorum.learners != self._told:
            self._told = quorum.learners
            self._link.formed(quorum.learners)

    def _look_for_the_end(self, quorum: Quorum) -> None:
        """End with all others; and refuse a quorum of newcomers alone: they would train from the beginning, and nobody would be told."""
        if not quorum.step and not self._has_state and self._link.has_begun():
            end = self._link.without_state()
            if end is not None:
                raise TrainingOver(end)
            # Those that have the state sent their heartbeats too late: on a busy machine, say.
            self.report_error(RoostError("a quorum without those that have the trained state"))
        elif quorum.idle == quorum.members:
            raise TrainingOver(End(base=quorum.base, trained=quorum.members))


class _Row:
    """What a member tells the others."""

    def __init__(self, replica: int, is_healed: int, is_idle: int, base: int, local: int) -> None:
        self.replica, self.base, self.local = replica, base, local
        self.is_healed, self.is_idle = bool(is_healed), bool(is_idle)
