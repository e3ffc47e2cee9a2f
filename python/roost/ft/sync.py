"""How replicas keep together: `EveryStep`, `LocalSGD`, `DiLoCo`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from roost.values import check_finite, check_integer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DiLoCo", "EveryStep", "LocalSGD", "Sync"]


@dataclass(frozen=True, slots=True)
class EveryStep:
    """Gradients are averaged at each step, as data-parallel training does. A step that fails is lost, and no more.

    They travel while `backward()` goes on, and are averages when it returns; they are to be changed (clipped, say) after it alone.
    """

    bucket_bytes: int = 25 << 20
    """How much is averaged at once."""
    backwards: int | None = 1
    """How many times a step calls `backward()`, to add up the gradients of several batches: they travel with the last of them.
    None: once for each item of its share of a `GlobalBatch`."""

    def __post_init__(self) -> None:
        check_integer("EveryStep", "bucket_bytes", self.bucket_bytes, least=1)
        if self.backwards is not None:
            check_integer("EveryStep", "backwards", self.backwards, least=1)


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """Parameters are averaged every so many steps. A sync that fails loses nothing; a replica that dies, its steps since the last."""

    every: int

    def __post_init__(self) -> None:
        check_integer("LocalSGD", "every", self.every, least=1)


@dataclass(frozen=True, slots=True)
class DiLoCo:
    """What replicas have learnt in `every` steps is averaged, and an outer optimizer (SGD with Nesterov momentum) goes that way.

    With fragments each is synced once in `every` steps, one after the other (streaming DiLoCo), with an outer optimizer of its own.
    """

    every: int
    fragments: Sequence[str] = ()
    """Names of submodules that together have all parameters; none for the whole model."""
    outer_lr: float = 0.7
    outer_momentum: float = 0.9

    def __post_init__(self) -> None:
        check_integer("DiLoCo", "every", self.every, least=1)
        check_finite("DiLoCo", "outer_lr", self.outer_lr, above=0)
        if not 0 <= self.outer_momentum < 1:
            raise ValueError(f"DiLoCo outer_momentum={self.outer_momentum!r}: at least 0 and less than 1")
        if isinstance(self.fragments, str):
            raise TypeError(f"DiLoCo fragments={self.fragments!r}: give a list of names of submodules")
        object.__setattr__(self, "fragments", tuple(self.fragments))
        count = max(1, len(self.fragments))
        if self.every % count:
            raise ValueError(
                f"DiLoCo every={self.every} with {count} fragments: each is synced once in `every` steps, so give a multiple of {count}"
            )


Sync: TypeAlias = EveryStep | LocalSGD | DiLoCo
