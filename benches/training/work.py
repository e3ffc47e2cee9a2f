"""What is trained in every measurement: the same model, the same steps, however replicas keep together."""

from __future__ import annotations

import time
from typing import Any

from roost import endpoint
from roost.ft import Trainer

WIDTH = 384


def model() -> tuple[Any, Any]:
    """A small network, the same everywhere, and its optimizer."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Tanh(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Tanh(),
        torch.nn.Linear(WIDTH, 1),
    ]
    built = torch.nn.Sequential(*layers)
    return built, torch.optim.AdamW(built.parameters(), lr=1e-3)


def learn(net: Any, optimizer: Any, pace_s: float) -> float:
    """Forward, backward, step; `pace_s` stands for the work of an accelerator, which leaves the processor free."""
    import torch

    # torchft's optimizer joins the quorum, and takes a peer's weights, here.
    optimizer.zero_grad()
    time.sleep(pace_s)
    x = torch.randn(32, WIDTH)
    loss = torch.nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    return float(loss.detach())


class Work(Trainer[Any]):
    """It, for `roost.ft`."""

    def __init__(self, pace_s: float) -> None:
        self.pace_s = pace_s
        self.times: list[float] = []

    def build(self) -> tuple[Any, Any]:
        """The model."""
        return model()

    def step(self, step: int, batch: Any) -> float:
        """One step."""
        loss = learn(self.model, self.optimizer, self.pace_s)
        self.times.append(time.monotonic())
        return loss

    @endpoint(concurrent=True)
    def rate(self, first: int) -> float:
        """Steps a second after the first ones."""
        return (len(self.times) - first) / (self.times[-1] - self.times[first - 1])
