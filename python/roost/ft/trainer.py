"""`Trainer`: what users write. A plain torch loop, one step at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost.actor import Actor
from roost.endpoint import endpoint

if TYPE_CHECKING:
    from roost.ft.training import Plan, Training

__all__ = ["Trainer"]

B = TypeVar("B")


class Trainer(Actor, Generic[B]):
    """One proc of a replica: subclass it, give it `build` and `step`.

    `self.model` and `self.optimizer` are what `build` gave. Everything runs on the actor's thread, so endpoints of your own that are
    to be answered during training need `concurrent=True`.
    """

    model: Any
    optimizer: Any
    first_step: int = 0
    """How many steps the model that `build` gave has learnt already: set it there when it comes from a checkpoint."""
    _training: Training | None = None

    def build(self) -> tuple[Any, Any]:
        """Make the model and its optimizer; once in each life of the proc.

        Replicas that build the same need take nothing from each other at the start, so set a seed.
        """
        raise NotImplementedError(f"{type(self).__name__} needs build(self) -> (model, optimizer)")

    def step(self, step: int, batch: B) -> float:
        """Learn from one batch, as in any torch loop: forward, backward, `self.optimizer.step()`; gives the loss.

        Args:
            step: how many steps the model has learnt from that count, those of other replicas at the same time not added.
            batch: an item of the job's data; None without data.
        """
        raise NotImplementedError(f"{type(self).__name__} needs step(self, step, batch) -> float")

    def state_dict(self) -> dict[str, Any]:
        """All that a newcomer needs beside what Roost adds: model, optimizer, and `self.scheduler` if there is one.

        Nested dicts, lists and tuples of tensors and of values that pickle.
        """
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        scheduler = getattr(self, "scheduler", None)
        if scheduler is not None:
            state["scheduler"] = scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of another replica, whose tensors are this one's to keep."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        scheduler = getattr(self, "scheduler", None)
        if scheduler is not None:
            scheduler.load_state_dict(state["scheduler"])

    def outer_state(self) -> dict[str, dict[str, Any]]:
        """DiLoCo's outer `parameters` and `momentum`, copies by name; both empty with other kinds of sync."""
        if self._training is None:
            raise RuntimeError("outer_state() before training has begun")
        return self._training.loop.outer_state()

    # Beside others, so that the user's own concurrent endpoints answer during training.
    @endpoint(concurrent=True)
    def ft_train(self, plan: Plan, life: int, first_step_s: float) -> int | None:
        """Train until all end together; how many steps count. For `FaultTolerantJob`."""
        from roost.ft.training import Training, fail_process

        try:
            self._training = Training(self, plan, life, first_step_s)
        except Exception:
            if not life:
                # What the first life cannot do is not mended by another one.
                raise
            fail_process()
        return self._training.run()
