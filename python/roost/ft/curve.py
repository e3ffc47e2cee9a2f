"""`Curve`: what replicas told of each step's loss, in some bytes a step: a long run has millions."""

from __future__ import annotations

from array import array
from itertools import chain, compress

__all__ = ["Curve"]

# Steps in one piece: they may begin at any number, of a checkpoint's.
_PIECE = 4096


class Curve:
    """Sums of losses and how many there are, by the numbers of steps. Its length is that of the steps that were told of."""

    def __init__(self) -> None:
        self._pieces: dict[int, tuple[array[float], array[int]]] = {}
        self._told = 0

    def __len__(self) -> int:
        return self._told

    def add(self, number: int, loss: float) -> None:
        """A replica's loss in a step."""
        piece, at = divmod(number, _PIECE)
        if piece not in self._pieces:
            self._pieces[piece] = array("d", bytes(8 * _PIECE)), array("I", bytes(array("I").itemsize * _PIECE))
        sums, counts = self._pieces[piece]
        self._told += not counts[at]
        sums[at] += loss
        counts[at] += 1

    def means(self) -> tuple[float, ...]:
        """The mean loss of each step that was told of, in their order."""
        pieces = [self._pieces[piece] for piece in sorted(self._pieces)]
        return tuple(
            total / count for sums, counts in pieces for total, count in zip(sums, counts, strict=True) if count
        )

    def participants(self) -> tuple[int, ...]:
        """How many replicas told of each of these steps."""
        counts = list(chain.from_iterable(self._pieces[piece][1] for piece in sorted(self._pieces)))
        return tuple(compress(counts, counts))
