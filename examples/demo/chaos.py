"""Who is killed and when: a seeded plan, and the hand that carries it out with SIGKILL."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from settings import Settings
    from train import Training

Moment = Literal["training", "handing in", "taking"]
"""In the midst of a round, while weights go to the driver, or while the average comes back."""

SURVIVORS_MIN = 2
"""A kill waits while fewer than so many would be left."""


@dataclass(frozen=True)
class Kill:
    """One planned kill, of one replica or of two together."""

    step: int
    """The first step told by any replica that sets it off; in an exchange, the first exchange from there on."""
    ranks: tuple[int, ...]
    moment: Moment

    def __str__(self) -> str:
        who = " and ".join(str(rank) for rank in self.ranks)
        return f"step {self.step:4}: replica{'s' * (len(self.ranks) > 1)} {who}, {self.moment}"


@dataclass
class Incident:
    """What came of one kill; times are seconds on the monotonic clock."""

    rank: int
    step: int
    moment: Moment
    killed: float
    seen: float = 0.0
    heard: str = ""
    up: float = 0.0
    state_taken: float = 0.0
    first_step: float = 0.0
    donor: int = -1
    lost_steps: int = 0
    """Its steps that are in no average: done since the last one and lost with it, or missed while it was away."""


def plan(settings: Settings, singles: int, pairs: int, handing_in: int, taking: int) -> list[Kill]:
    """Kills spread over the run: each at a random step of a stretch of its own, of random replicas."""
    rng = random.Random(settings.seed)
    kinds: list[tuple[Moment, int]] = []
    kinds.extend(("training", 1) for _ in range(singles))
    kinds.extend(("training", 2) for _ in range(pairs))
    kinds.extend(("handing in", 1) for _ in range(handing_in))
    kinds.extend(("taking", 1) for _ in range(taking))
    rng.shuffle(kinds)
    # The first round and the last two are left in peace, so that each kill's whole story is in the run.
    begin, end = settings.steps_per_round, settings.steps - 2 * settings.steps_per_round
    stretch = (end - begin) / len(kinds)
    kills: list[Kill] = []
    for number, (moment, count) in enumerate(kinds):
        step = begin + int(stretch * (number + 0.7 * rng.random()))
        kills.append(Kill(step, tuple(sorted(rng.sample(range(settings.replicas), count))), moment))
    return kills


class Killer:
    """Carries a plan out."""

    def __init__(self, kills: list[Kill]) -> None:
        self._left = list(kills)

    def strike(self, training: Training, moment: Moment) -> None:
        """Kill whose time has come."""
        for kill in [one for one in self._left if one.moment == moment and one.step <= training.progress]:
            healthy = training.pids.keys()
            if healthy >= set(kill.ranks) and len(healthy) - len(kill.ranks) >= SURVIVORS_MIN:
                self._left.remove(kill)
                for rank in kill.ranks:
                    pid = training.pids.pop(rank)
                    training.incidents.append(Incident(rank, training.progress, moment, time.monotonic()))
                    os.kill(pid, signal.SIGKILL)
