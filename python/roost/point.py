"""`Point`: a place in a mesh."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from roost.dimensions import checked_sizes, product, text_of

__all__ = ["Point", "point_of", "rank_name"]


class Point(Mapping[str, int]):
    """A place in a mesh: its coordinate in each dimension, as a mapping.

    Args:
        sizes: The mesh's dimensions and how many places each has.
        rank: The place's number, counted with the last dimension running quickest.

    Raises:
        ValueError: A size is not positive, or the mesh has no such rank.
    """

    __slots__ = ("_lengths", "_names", "rank")

    rank: int
    """The place's number in the mesh, from 0."""
    _names: tuple[str, ...]
    _lengths: tuple[int, ...]

    def __init__(self, sizes: Mapping[str, int], rank: int = 0) -> None:
        names, lengths = checked_sizes(sizes)
        rank = operator.index(rank)
        if not 0 <= rank < product(lengths):
            raise ValueError(
                f"rank {rank} is not in {text_of(names, lengths)}, which has ranks 0 to {product(lengths) - 1}"
            )
        self._fill(names, lengths, rank)

    def _fill(self, names: tuple[str, ...], lengths: tuple[int, ...], rank: int) -> None:
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "_lengths", lengths)
        object.__setattr__(self, "rank", rank)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The mesh's dimensions and how many places each has."""
        return MappingProxyType(dict(zip(self._names, self._lengths, strict=True)))

    @property
    def size(self) -> int:
        """How many places the mesh has."""
        return product(self._lengths)

    def __getitem__(self, name: str) -> int:
        rest = self.rank
        for own, length in zip(reversed(self._names), reversed(self._lengths), strict=True):
            rest, coordinate = divmod(rest, length)
            if own == name:
                return coordinate
        raise KeyError(f"no dimension {name!r}; there is {', '.join(self._names) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Point):
            return self.rank == other.rank and self._lengths == other._lengths and self._names == other._names
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self._names, self._lengths, self.rank))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Point is frozen: {name!r} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Point is frozen: {name!r} cannot be deleted")

    def __reduce__(self) -> tuple[type[Point], tuple[dict[str, int], int]]:
        return Point, (dict(zip(self._names, self._lengths, strict=True)), self.rank)

    def __str__(self) -> str:
        return ",".join(f"{name}={coordinate}" for name, coordinate in self.items())

    def __repr__(self) -> str:
        return f"Point({text_of(self._names, self._lengths)}, rank={self.rank})"


def rank_name(mesh: str, point: Mapping[str, int]) -> str:
    """The name of one rank of a mesh: `workers[gpus=3]`."""
    inside = ",".join(f"{name}={coordinate}" for name, coordinate in point.items())
    return f"{mesh}[{inside}]" if inside else mesh


def point_of(names: tuple[str, ...], lengths: tuple[int, ...], rank: int) -> Point:
    """A point of a shape that was checked before."""
    point = Point.__new__(Point)
    point._fill(names, lengths, rank)
    return point
