"""`ValueMesh`: one value for each rank of a mesh."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Generic, SupportsIndex, TypeVar, cast

from roost.dimensions import listed
from roost.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from roost.point import Point
    from roost.shape import Selection

__all__ = ["ValueMesh"]

V_co = TypeVar("V_co", covariant=True)


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
                f"item() needs {listed(missing)} too: the values are {dict(self.sizes)}; slice() takes part of them"
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
