"""The text: the source of Python's own standard library, and who reads which part of it when.

The text is cut into windows. Each is read once at most in a run: its place in a seeded order follows from the step and
the rank, so the data position of a replica is one number, its step.
"""

from __future__ import annotations

import math
import random
import sysconfig
from pathlib import Path

import torch

CHARACTERS = 128
"""ASCII; anything else becomes a question mark."""

# Tests, and what is not the standard library's own.
_LEFT_OUT = {"test", "tests", "idle_test", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
_HELD_OUT_EVERY = 20


def library_sources() -> list[bytes]:
    """The source of each module of the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = [path for path in sorted(library.rglob("*.py")) if not _LEFT_OUT & set(path.relative_to(library).parts)]
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in modules)
    return [text.encode("ascii", errors="replace") for text in texts]


def write_text(sources: list[bytes], folder: Path, seed: int) -> tuple[Path, Path]:
    """Leave two files in a folder: what is trained on, and one module in 20, held out to test with."""
    shuffled = random.Random(seed).sample(sources, len(sources))
    count = len(shuffled) // _HELD_OUT_EVERY
    held_out, train = folder / f"held_out_{seed}.txt", folder / f"train_{seed}.txt"
    held_out.write_bytes(b"\n".join(shuffled[:count]))
    train.write_bytes(b"\n".join(shuffled[count:]))
    return train, held_out


class Windows:
    """A text file as windows of `context` characters, each with the one that follows.

    Args:
        path: the text.
        context: how many characters the model sees at once.
        seed: the order in which the windows are read.
    """

    def __init__(self, path: Path, context: int, seed: int = 0) -> None:
        size = path.stat().st_size
        # Mapped, not read: a restarted process pays only for the pages that it touches.
        self._text = torch.from_file(str(path), size=size, dtype=torch.uint8)
        self._context = context
        self._count = (size - 1) // context
        # Strides without a common divisor with the count meet each window once, and need no list of them.
        rng = random.Random(seed)
        strides = iter(lambda: rng.randrange(self._count // 3, self._count), None)
        self._stride = next(stride for stride in strides if math.gcd(stride, self._count) == 1)
        self._begin = rng.randrange(self._count)

    def __len__(self) -> int:
        return self._count

    def read(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`count` windows from place `first` of the order on: what the model sees, and what it should say."""
        if first + count > len(self):
            raise ValueError(f"windows {first} to {first + count} of {len(self)}: the text is too short for this run")
        places = (self._begin + self._stride * torch.arange(first, first + count)) % self._count
        characters = self._text[places[:, None] * self._context + torch.arange(self._context + 1)].long()
        return characters[:, :-1], characters[:, 1:]
