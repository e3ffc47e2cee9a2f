"""`Shape`: a mesh's grid of ranks, and every slice of it."""

from __future__ import annotations

import itertools
import operator
from types import MappingProxyType
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias, Union

from roost.dimensions import (
    check_names,
    checked_sizes,
    dense_strides,
    index_in,
    listed,
    merged,
    part_sizes,
    places_taken,
    product,
    runs_of,
    text_of,
)
from roost.point import point_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from roost.point import Point

__all__ = ["SCALAR", "Selection", "Shape", "decode_sizes", "encode_sizes"]

Selection: TypeAlias = Union[SupportsIndex, slice]  # noqa: UP007  (a `|` is evaluated here, and slice has none)
"""What a dimension is sliced by: a number drops it, a `slice` keeps it."""

_ALL = slice(None)


class Shape:
    """A grid of ranks with named dimensions: all of a mesh, or a slice of it.

    A rank of the slice (its number in the slice's own order) stands for a rank of the base, the whole that
    the slice was taken from. Without a table that is `offset + Σ coordinate·stride`; flattening a slice that
    has no single stride gives a table of base ranks, into which offset and strides then point.
    """

    __slots__ = ("_table", "lengths", "names", "offset", "strides")

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self.names, self.lengths = checked_sizes({} if sizes is None else sizes)
        self.offset = 0
        self.strides = dense_strides(self.lengths)
        self._table: tuple[int, ...] | None = None

    @classmethod
    def _of(
        cls,
        names: Iterable[str],
        lengths: Iterable[int],
        offset: int,
        strides: Iterable[int],
        table: tuple[int, ...] | None,
    ) -> Shape:
        shape = cls.__new__(cls)
        shape.names = tuple(names)
        shape.lengths = tuple(lengths)
        shape.offset = offset
        shape.strides = tuple(strides)
        shape._table = table
        return shape

    @property
    def sizes(self) -> Mapping[str, int]:
        """The dimensions and how many places each has."""
        return MappingProxyType(dict(zip(self.names, self.lengths, strict=True)))

    def __len__(self) -> int:
        return product(self.lengths)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shape):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self.names, self.lengths, self.offset, self.strides, self._table

    def __repr__(self) -> str:
        if self == Shape(self.sizes):
            return f"Shape({dict(self.sizes)})"
        return f"Shape({dict(self.sizes)}, offset={self.offset}, strides={self.strides})"

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Shape._of, (self.names, self.lengths, self.offset, self.strides, self._table)

    # Ranks and places.

    def runs(self) -> list[tuple[int, int, int]]:
        """The base ranks as runs of (first, count, stride), in the shape's own rank order."""
        if self._table is not None:
            return runs_of(list(self.ranks()))
        lengths, strides = merged(self.lengths, self.strides)
        if not lengths:
            return [(self.offset, 1, 1)]
        outer = [range(0, length * stride, stride) for length, stride in zip(lengths[:-1], strides[:-1], strict=True)]
        return [(self.offset + sum(steps), lengths[-1], strides[-1]) for steps in itertools.product(*outer)]

    def ranks(self) -> Iterable[int]:
        """The base ranks in the shape's own rank order; a `range` when one describes them."""
        lengths, strides = merged(self.lengths, self.strides)
        if len(lengths) == 0:
            places: Iterable[int] = range(self.offset, self.offset + 1)
        elif len(lengths) == 1:
            places = range(self.offset, self.offset + lengths[0] * strides[0], strides[0])
        else:
            steps = [range(0, length * stride, stride) for length, stride in zip(lengths, strides, strict=True)]
            places = (self.offset + sum(step) for step in itertools.product(*steps))
        table = self._table
        return places if table is None else (table[place] for place in places)

    def base_rank(self, rank: int) -> int:
        """The base rank of the shape's own rank."""
        place = self.offset
        rest = rank
        for length, stride in zip(reversed(self.lengths), reversed(self.strides), strict=True):
            rest, coordinate = divmod(rest, length)
            place += coordinate * stride
        if rest:
            raise IndexError(f"rank {rank} is not in {text_of(self.names, self.lengths)}, which has {len(self)} ranks")
        return place if self._table is None else self._table[place]

    def point(self, rank: int) -> Point:
        """The place of the shape's own rank, in the shape's own dimensions."""
        if not 0 <= rank < len(self):
            raise IndexError(f"rank {rank} is not in {text_of(self.names, self.lengths)}, which has {len(self)} ranks")
        return point_of(self.names, self.lengths, rank)

    def points(self) -> Iterator[Point]:
        """Every place, in rank order."""
        names, lengths = self.names, self.lengths
        return (point_of(names, lengths, rank) for rank in range(len(self)))

    # Views: each is a new shape over the same base.

    def at(self, rank: int) -> Shape:
        """One rank alone, without dimensions; a negative one counts from the end."""
        rank = index_in(rank, len(self), text_of(self.names, self.lengths))
        if self._table is not None:
            return Shape._of((), (), 0, (), (self.base_rank(rank),))
        return Shape._of((), (), self.base_rank(rank), (), None)

    def slice(self, **selections: Selection) -> Shape:
        """Take part of the grid: a number drops its dimension, a `slice` keeps it.

        Raises:
            ValueError: No such dimension, an empty slice or a step that is not positive.
            IndexError: A number outside the dimension.
            TypeError: Neither a number nor a slice.
        """
        self._check_known(selections, "slice")
        names: list[str] = []
        lengths: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for name, length, stride in zip(self.names, self.lengths, self.strides, strict=True):
            selection = selections.get(name, _ALL)
            if isinstance(selection, slice):
                chosen = places_taken(name, selection, length)
                offset += chosen.start * stride
                names.append(name)
                lengths.append(len(chosen))
                strides.append(stride * chosen.step)
            else:
                offset += index_in(selection, length, f"dimension {name!r}") * stride
        return Shape._of(names, lengths, offset, strides, self._table)

    def split(self, **into: Sequence[str] | SupportsIndex) -> Shape:
        """Split dimensions in parts: `split(gpus=("nodes", "local"), local=4)`; one part's size may be left out.

        Raises:
            ValueError: No such dimension, a size that does not divide it, or a name that is there already.
            TypeError: A part's size that is not a whole number.
        """
        parts: dict[str, tuple[str, ...]] = {}
        given: dict[str, int] = {}
        for name, value in into.items():
            if isinstance(value, SupportsIndex):
                given[name] = operator.index(value)
            elif isinstance(value, str):
                raise TypeError(f'split({name}={value!r}): give names, as in {name}=("a", "b"), or a size')
            else:
                parts[name] = tuple(value)
        self._check_known(parts, "split")
        stray = set(given) - {part for group in parts.values() for part in group}
        if stray:
            raise ValueError(
                f"split() was given a size for {listed(stray)}, which no dimension is split into; "
                f"write split(dimension=(…, {min(stray)!r}), {min(stray)}=…)"
            )
        names: list[str] = []
        lengths: list[int] = []
        strides: list[int] = []
        for name, length, stride in zip(self.names, self.lengths, self.strides, strict=True):
            group = parts.get(name, (name,))
            sizes = part_sizes(name, length, group, given) if name in parts else (length,)
            names.extend(group)
            lengths.extend(sizes)
            strides.extend(inner * stride for inner in dense_strides(sizes))
        check_names(names)
        return Shape._of(names, lengths, self.offset, strides, self._table)

    def flatten(self, name: str) -> Shape:
        """All ranks in one dimension called `name`, in rank order."""
        check_names((name,))
        lengths, strides = merged(self.lengths, self.strides)
        if len(lengths) <= 1:
            return Shape._of((name,), lengths or (1,), self.offset, strides or (1,), self._table)
        table = tuple(self.ranks())
        return Shape._of((name,), (len(table),), 0, (1,), table)

    def rename(self, **names: str) -> Shape:
        """Give dimensions other names: `rename(gpus="workers")`."""
        self._check_known(names, "rename")
        renamed = [names.get(name, name) for name in self.names]
        check_names(renamed)
        return Shape._of(renamed, self.lengths, self.offset, self.strides, self._table)

    def extend(self, sizes: Mapping[str, int]) -> Shape:
        """A new whole: one place for each rank of this shape and each of `sizes`, which run quickest."""
        if not sizes:
            return self.whole()
        names, lengths = checked_sizes(sizes)
        check_names((*self.names, *names))
        return Shape(dict(zip((*self.names, *names), (*self.lengths, *lengths), strict=True)))

    def whole(self) -> Shape:
        """A whole of the same dimensions; this very shape when it is one, and one for all that have no dimensions."""
        if not self.names:
            return SCALAR
        if self.offset == 0 and self._table is None and self.strides == dense_strides(self.lengths):
            return self
        return Shape(self.sizes)

    def _check_known(self, given: Iterable[str], verb: str) -> None:
        unknown = [name for name in given if name not in self.names]
        if unknown:
            raise ValueError(
                f"{verb}() knows no dimension {listed(unknown)}; the mesh is {text_of(self.names, self.lengths)}"
            )


SCALAR = Shape()
"""The shape of a single rank."""


def encode_sizes(shape: Shape) -> bytes:
    """Names and sizes of a mesh, for a message's header."""
    return ",".join(f"{name}={size}" for name, size in shape.sizes.items()).encode()


def decode_sizes(sizes: bytes) -> dict[str, int]:
    """What `encode_sizes` encoded."""
    if not sizes:
        return {}
    return {name: int(size) for name, _, size in (one.partition("=") for one in sizes.decode().split(","))}
