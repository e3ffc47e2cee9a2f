"""The actor: one copy of the model, trained on its own part of the text; its process may be killed at any moment."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import model
import torch
from text import Windows

from roost import Actor, context, endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from settings import Settings


_TRAINING_NICENESS = 15


@dataclass
class Step:
    """What a replica tells of one step."""

    number: int
    loss: float
    at: float
    """When it was done, on the clock that all processes of a machine share."""


@dataclass
class HandedIn:
    """A replica's weights, and the steps that they have learnt from since the replica last took weights."""

    first: int
    end: int
    weights: dict[str, torch.Tensor]


@dataclass
class Everything:
    """All that a newcomer needs to go on where a healthy replica is."""

    step: int
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


class Replica(Actor):
    """Trains alone for some steps, hands its weights in, takes the average, and so on.

    A step runs in a thread, so the loop stays free for messages, and each reads or writes the model between two steps.

    Args:
        settings: the run.
        text: the file to train on.
    """

    def __init__(self, settings: Settings, text: Path) -> None:
        torch.set_num_threads(1)
        self.settings = settings
        self.rank = context().point.rank
        self.windows = Windows(text, settings.context, settings.seed)
        self.model, self.optimizer = model.make(settings)
        # Also the data position: which windows a step reads follows from its number and the rank.
        self.step = 0
        self.learnt_from = 0
        self.training = False
        # One that was restarted knows nothing until it has adopted the state of another.
        self.knows = context().incarnation == 0
        self.between_steps = asyncio.Lock()

    @endpoint(concurrent=True)
    async def train(self, until: int) -> AsyncIterator[Step]:
        """Train up to step `until`, or until the weights are wanted."""
        assert self.knows, "a replica that was restarted was asked to train before it had a state"
        self.training = True
        while self.training and self.step < until:
            async with self.between_steps:
                loss = await asyncio.to_thread(self.learn)
                done = Step(self.step, loss, time.monotonic())
            yield done

    def learn(self) -> float:
        """One step of plain PyTorch."""
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = model.learning_rate(settings, self.step)
        place = (self.step * settings.replicas + self.rank) * settings.batch
        loss = self.model(*self.windows.read(place, settings.batch))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        # Of this thread alone, which has done its first step: where replicas share cores, those that come back go first.
        os.setpriority(os.PRIO_PROCESS, 0, _TRAINING_NICENESS)
        return float(loss.detach())

    @endpoint(concurrent=True)
    async def hand_in(self) -> HandedIn:
        """Stop training, and give the weights for the average."""
        self.training = False
        async with self.between_steps:
            return HandedIn(self.learnt_from, self.step, self.model.state_dict())

    @endpoint(concurrent=True)
    async def take(self, step: int, weights: dict[str, torch.Tensor]) -> None:
        """Go on from the average of the replicas."""
        async with self.between_steps:
            self.model.load_state_dict(weights)
            self.step = self.learnt_from = step

    @endpoint(concurrent=True)
    async def everything(self) -> Everything:
        """Model, optimizer and data position, for a newcomer."""
        async with self.between_steps:
            return Everything(self.step, self.model.state_dict(), self.optimizer.state_dict())

    @endpoint
    async def adopt(self, donor: Replica) -> int:
        """Take everything from a healthy replica, and say at which step it is."""
        state = await donor.everything.call_one()
        self.model.load_state_dict(state.weights)
        self.optimizer.load_state_dict(state.optimizer)
        self.step = self.learnt_from = state.step
        self.knows = True
        return self.step
