"""Meshes' grids: places with named dimensions, and values laid out on them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, SupportsIndex, TypeAlias, TypeVar, Union, cast

__all__ = ["RANKS_MAX", "SCALAR", "Point", "Selection", "Shape", "ValueMesh", "rank_name"]

RANKS_MAX = 1 << 24
"""The most ranks of one mesh: a table of them must fit one process, and a rank is a u32 on the wire."""

Selection: TypeAlias = Union[SupportsIndex, slice]  # noqa: UP007  (a `|` is evaluated here, and slice has none)
"""What a dimension is sliced by: a number drops it, a `slice` keeps it."""

V_co = TypeVar("V_co", covariant=True)

_ALL = slice(None)


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
        names, lengths = _checked(sizes)
        rank = operator.index(rank)
        if not 0 <= rank < _product(lengths):
            raise ValueError(
                f"rank {rank} is not in {_text(names, lengths)}, which has ranks 0 to {_product(lengths) - 1}"
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
        return _product(self._lengths)

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
        return f"Point({_text(self._names, self._lengths)}, rank={self.rank})"


def rank_name(mesh: str, point: Mapping[str, int]) -> str:
    """The name of one rank of a mesh: `workers[gpus=3]`."""
    inside = ",".join(f"{name}={coordinate}" for name, coordinate in point.items())
    return f"{mesh}[{inside}]" if inside else mesh


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
        self.names, self.lengths = _checked({} if sizes is None else sizes)
        self.offset = 0
        self.strides = _dense_strides(self.lengths)
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
        return _product(self.lengths)

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
            return _runs_of(list(self.ranks()))
        lengths, strides = _merged(self.lengths, self.strides)
        if not lengths:
            return [(self.offset, 1, 1)]
        outer = [range(0, length * stride, stride) for length, stride in zip(lengths[:-1], strides[:-1], strict=True)]
        return [(self.offset + sum(steps), lengths[-1], strides[-1]) for steps in itertools.product(*outer)]

    def ranks(self) -> Iterable[int]:
        """The base ranks in the shape's own rank order; a `range` when one describes them."""
        lengths, strides = _merged(self.lengths, self.strides)
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
            raise IndexError(f"rank {rank} is not in {_text(self.names, self.lengths)}, which has {len(self)} ranks")
        return place if self._table is None else self._table[place]

    def point(self, rank: int) -> Point:
        """The place of the shape's own rank, in the shape's own dimensions."""
        if not 0 <= rank < len(self):
            raise IndexError(f"rank {rank} is not in {_text(self.names, self.lengths)}, which has {len(self)} ranks")
        return _point(self.names, self.lengths, rank)

    def points(self) -> Iterator[Point]:
        """Every place, in rank order."""
        names, lengths = self.names, self.lengths
        return (_point(names, lengths, rank) for rank in range(len(self)))

    # Views: each is a new shape over the same base.

    def at(self, rank: int) -> Shape:
        """One rank alone, without dimensions; a negative one counts from the end."""
        rank = _index(rank, len(self), _text(self.names, self.lengths))
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
                chosen = _chosen(name, selection, length)
                offset += chosen.start * stride
                names.append(name)
                lengths.append(len(chosen))
                strides.append(stride * chosen.step)
            else:
                offset += _index(selection, length, f"dimension {name!r}") * stride
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
                f"split() was given a size for {_listed(stray)}, which no dimension is split into; "
                f"write split(dimension=(…, {min(stray)!r}), {min(stray)}=…)"
            )
        names: list[str] = []
        lengths: list[int] = []
        strides: list[int] = []
        for name, length, stride in zip(self.names, self.lengths, self.strides, strict=True):
            group = parts.get(name, (name,))
            sizes = _part_sizes(name, length, group, given) if name in parts else (length,)
            names.extend(group)
            lengths.extend(sizes)
            strides.extend(inner * stride for inner in _dense_strides(sizes))
        _check_names(names)
        return Shape._of(names, lengths, self.offset, strides, self._table)

    def flatten(self, name: str) -> Shape:
        """All ranks in one dimension called `name`, in rank order."""
        _check_names((name,))
        lengths, strides = _merged(self.lengths, self.strides)
        if len(lengths) <= 1:
            return Shape._of((name,), lengths or (1,), self.offset, strides or (1,), self._table)
        table = tuple(self.ranks())
        return Shape._of((name,), (len(table),), 0, (1,), table)

    def rename(self, **names: str) -> Shape:
        """Give dimensions other names: `rename(gpus="workers")`."""
        self._check_known(names, "rename")
        renamed = [names.get(name, name) for name in self.names]
        _check_names(renamed)
        return Shape._of(renamed, self.lengths, self.offset, self.strides, self._table)

    def extend(self, sizes: Mapping[str, int]) -> Shape:
        """A new whole: one place for each rank of this shape and each of `sizes`, which run quickest."""
        if not sizes:
            return self.whole()
        names, lengths = _checked(sizes)
        _check_names((*self.names, *names))
        return Shape(dict(zip((*self.names, *names), (*self.lengths, *lengths), strict=True)))

    def whole(self) -> Shape:
        """A whole of the same dimensions; this very shape when it is one, and one for all that have no dimensions."""
        if not self.names:
            return SCALAR
        if self.offset == 0 and self._table is None and self.strides == _dense_strides(self.lengths):
            return self
        return Shape(self.sizes)

    def _check_known(self, given: Iterable[str], verb: str) -> None:
        unknown = [name for name in given if name not in self.names]
        if unknown:
            raise ValueError(
                f"{verb}() knows no dimension {_listed(unknown)}; the mesh is {_text(self.names, self.lengths)}"
            )


class ValueMesh(Generic[V_co]):
    """One value for each rank of a mesh.

    Args:
        sizes: The mesh's dimensions and how many places each has.
        values: The values in rank order.

    Raises:
        ValueError: There are more or fewer values than places.
    """

    __slots__ = ("_shape", "_values")

    def __init__(self, sizes: Mapping[str, int], values: Iterable[V_co]) -> None:
        self._shape = Shape(sizes)
        self._values = tuple(values)
        if len(self._values) != len(self._shape):
            raise ValueError(
                f"{len(self._values)} values do not fill {dict(sizes)}, which has {len(self._shape)} places"
            )

    @classmethod
    def _of(cls, shape: Shape, values: tuple[V_co, ...]) -> ValueMesh[V_co]:
        """A mesh over a shape that was checked before: `values` are in its rank order, and it is a whole."""
        mesh = cls.__new__(cls)
        mesh._shape = shape
        mesh._values = values
        return mesh

    @property
    def sizes(self) -> Mapping[str, int]:
        """The dimensions and how many places each has."""
        return self._shape.sizes

    def __iter__(self) -> Iterator[V_co]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rank: SupportsIndex) -> V_co:
        return self._values[operator.index(rank)]

    def values(self) -> Sequence[V_co]:
        """The values in rank order."""
        return self._values

    def items(self) -> Iterator[tuple[Point, V_co]]:
        """Each place with its value, in rank order."""
        return zip(self._shape.points(), self._values, strict=True)

    def item(self, **coordinates: SupportsIndex) -> V_co:
        """The value at one place, named by a coordinate in each dimension.

        Raises:
            ValueError: A dimension is missing or unknown.
            IndexError: A coordinate is outside its dimension.
        """
        shape = self._shape.slice(**coordinates)
        missing = [name for name, length in zip(shape.names, shape.lengths, strict=True) if length > 1]
        if missing:
            raise ValueError(
                f"item() needs {_listed(missing)} too: the values are {dict(self.sizes)}; slice() takes part of them"
            )
        return self._values[shape.base_rank(0)]

    def slice(self, **selections: Selection) -> ValueMesh[V_co]:
        """Part of the values: a number drops its dimension, a `slice` keeps it."""
        return self._view(self._shape.slice(**selections))

    def flatten(self, name: str) -> ValueMesh[V_co]:
        """The same values in one dimension called `name`."""
        return self._view(self._shape.flatten(name))

    def _view(self, shape: Shape) -> ValueMesh[V_co]:
        values = self._values
        return ValueMesh(shape.sizes, [values[rank] for rank in shape.ranks()])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueMesh):
            return NotImplemented
        mesh = cast("ValueMesh[object]", other)
        return self._shape == mesh._shape and self._values == mesh._values

    def __hash__(self) -> int:
        return hash((self._shape, self._values))

    def __reduce__(self) -> tuple[type[ValueMesh[V_co]], tuple[dict[str, int], Sequence[V_co]]]:
        return ValueMesh, (dict(self.sizes), self._values)

    def __repr__(self) -> str:
        return f"ValueMesh({dict(self.sizes)}, {list(self._values)!r})"


def _point(names: tuple[str, ...], lengths: tuple[int, ...], rank: int) -> Point:
    """A point of a shape that was checked before."""
    point = Point.__new__(Point)
    point._fill(names, lengths, rank)
    return point


def _checked(sizes: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if not isinstance(sizes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a type checker
        raise TypeError(f'dimensions are given as names and sizes, as in {{"gpus": 4}}, not as {sizes!r}')
    names = tuple(sizes)
    _check_names(names)
    lengths: list[int] = []
    for name, size in sizes.items():
        length = _whole(size, f"the size of dimension {name!r}")
        if length < 1:
            raise ValueError(
                f"dimension {name!r} has size {length}; every size is at least 1, so leave the dimension out"
            )
        lengths.append(length)
    if _product(lengths) > RANKS_MAX:
        raise ValueError(
            f"{dict(sizes)} has {_product(lengths)} ranks, which passes the limit of {RANKS_MAX}; use several meshes"
        )
    return names, tuple(lengths)


def _check_names(names: Iterable[object]) -> None:
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{name!r} cannot name a dimension: it is written as a keyword, as in slice(gpus=0)")
        if name in seen:
            raise ValueError(f'dimension {name!r} is there twice; rename one, as in rename({name}="{name}_2")')
        seen.add(name)


def _whole(value: object, what: str) -> int:
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    return operator.index(value)


def _index(value: object, length: int, what: str) -> int:
    index = _whole(value, f"what is taken of {what}")
    if not -length <= index < length:
        raise IndexError(f"{index} is outside {what}, which has {length} places (0 to {length - 1})")
    return index % length


def _chosen(name: str, selection: slice, length: int) -> range:
    if selection.step is not None and operator.index(selection.step) < 1:
        raise ValueError(f"slice({name}=…) has step {selection.step}; steps are positive, since ranks keep their order")
    chosen = range(length)[selection]
    if not chosen:
        raise ValueError(
            f"slice({name}=slice({selection.start}, {selection.stop}, {selection.step})) takes nothing"
            f" of dimension {name!r}, which has {length} places; a mesh has at least one rank"
        )
    return chosen


def _part_sizes(name: str, length: int, group: tuple[str, ...], given: Mapping[str, int]) -> tuple[int, ...]:
    known = [given[part] for part in group if part in given]
    unknown = [part for part in group if part not in given]
    if any(size < 1 for size in known):
        raise ValueError(f"split({name}={group}): sizes are at least 1, not {known}")
    if len(unknown) > 1 or not group:
        raise ValueError(f"split({name}={group}): give the sizes of all parts but one; {_listed(unknown)} have none")
    inner = _product(known)
    if (length % inner if unknown else length - inner) != 0:
        raise ValueError(f"split({name}={group}): {known} do not divide dimension {name!r} of {length} places evenly")
    return tuple(given.get(part, length // inner) for part in group)


def _dense_strides(lengths: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    stride = 1
    for length in reversed(lengths):
        strides.append(stride)
        stride *= length
    return tuple(reversed(strides))


def _merged(lengths: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The fewest dimensions that count the same ranks: neighbours joined, those of one place dropped."""
    out_lengths: list[int] = []
    out_strides: list[int] = []
    for length, stride in zip(lengths, strides, strict=True):
        if length == 1:
            continue
        if out_lengths and out_strides[-1] == length * stride:
            out_lengths[-1] *= length
            out_strides[-1] = stride
        else:
            out_lengths.append(length)
            out_strides.append(stride)
    return tuple(out_lengths), tuple(out_strides)


def _runs_of(ranks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Greedy runs of (first, count, stride) over any list of ranks."""
    runs: list[tuple[int, int, int]] = []
    first = 0
    while first < len(ranks):
        last = first
        stride = ranks[first + 1] - ranks[first] if first + 1 < len(ranks) else 1
        stride = max(stride, 1)
        while last + 1 < len(ranks) and ranks[last + 1] - ranks[last] == stride:
            last += 1
        runs.append((ranks[first], last - first + 1, stride))
        first = last + 1
    return runs


def _product(lengths: Iterable[int]) -> int:
    product = 1
    for length in lengths:
        product *= length
    return product


def _text(names: Sequence[str], lengths: Sequence[int]) -> str:
    return repr(dict(zip(names, lengths, strict=True)))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"


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
