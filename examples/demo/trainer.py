"""The trainer: a plain PyTorch loop. Nothing in it knows of failures."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import model
import torch
from text import Windows

from roost import context, endpoint
from roost.ft import Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from settings import Settings

HELD_OUT_WINDOWS = 512


class TextTrainer(Trainer[None]):
    """Learns to continue text.

    Args:
        settings: the run.
        train: the file to train on.
        held_out: the file to test with.
    """

    def __init__(self, settings: Settings, train: Path, held_out: Path) -> None:
        self.settings = settings
        self.files = train, held_out

    def build(self) -> tuple[Any, Any]:
        """The same for every replica."""
        torch.set_num_threads(1)
        settings, here = self.settings, context()
        self.windows = Windows(self.files[0], settings.context, settings.seed)
        # Each life of each replica reads a part of the text of its own, so that none is read twice.
        part = here.point["replicas"] + settings.replicas * here.incarnation
        self.places = itertools.count(part * settings.steps * settings.batch, settings.batch)
        return model.make(settings)

    def step(self, step: int, batch: None) -> float:  # noqa: ARG002 - the text is its own data
        """Learn from one batch."""
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = model.learning_rate(settings, step)
        place = next(self.places) % (len(self.windows) - settings.batch)
        loss = self.model(*self.windows.read(place, settings.batch))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    @endpoint(concurrent=True)
    async def node(self) -> str:
        """What the machine calls itself."""
        return os.uname().nodename

    @endpoint(concurrent=True)
    def test(self) -> float:
        """The loss on text that no replica has seen; on a thread beside the training loop's."""
        windows = Windows(self.files[1], self.settings.context, self.settings.seed)
        return model.held_out_loss(self.model, windows, HELD_OUT_WINDOWS)
