"""What a run of the demo is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """One training run. Its seed decides the first weights, which modules are held out, and the order of the text."""

    seed: int = 1
    replicas: int = 4
    rounds: int = 60
    """How often the replicas' weights are averaged."""
    steps_per_round: int = 15
    """Steps that each replica takes alone between two averages."""
    batch: int = 8
    context: int = 64
    """Characters that the model sees at once."""
    width: int = 96
    layers: int = 2
    heads: int = 4
    learning_rate: float = 4e-3
    evaluated_rounds: int = 3
    """The final loss is the mean over the averages of so many last rounds."""

    @property
    def steps(self) -> int:
        """Steps of each replica in the whole run."""
        return self.rounds * self.steps_per_round
