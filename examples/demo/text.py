"""The text: the source of Python's own standard library, and who reads which part of it when.

The text is cut into windows. Each is read once at most in a run: its place in a seeded order follows from the step and
the rank, so the data position of a replica is one number, its step.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

CHARACTERS = 128
"""ASCII; anything else becomes a question mark."""

# Tests, and what is not the standard library's own.
_LEFT_OUT = {"test", "tests", "idle_test", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
_HELD_OUT_EVERY = 20


def write_text(folder: Path) -> tuple[Path, Path]:
    """Collect the text into two files: one to train on, and one with every 20th module, held out to test with."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = [path for path in sorted(library.rglob("*.py")) if not _LEFT_OUT & set(path.relative_to(library).parts)]
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for number, path in enumerate(modules):
        source = path.read_text(encoding="utf-8", errors="replace").encode("ascii", errors="replace")
        parts[number % _HELD_OUT_EVERY == 0].append(source)
    names = folder / "train.txt", folder / "held_out.txt"
    for name, sources in zip(names, parts, strict=True):
        name.write_bytes(b"\n".join(sources))
    return names


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
        self._offsets = torch.arange(context + 1)
        count = (size - 1) // context
        self._starts = torch.randperm(count, generator=torch.Generator().manual_seed(seed)) * context

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`count` windows from place `first` of the order on: what the model sees, and what it should say."""
        starts = self._starts[first : first + count]
        if len(starts) < count:
            raise ValueError(f"windows {first} to {first + count} of {len(self)}: the text is too short for this run")
        characters = self._text[starts[:, None] + self._offsets].long()
        return characters[:, :-1], characters[:, 1:]
