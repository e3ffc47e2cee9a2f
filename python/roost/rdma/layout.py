"""Where the elements of a piece of memory lie, and of the pieces that are cut out of it."""

from __future__ import annotations

import operator
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex, TypeAlias

if TYPE_CHECKING:
    from roost.rdma.buffer import Buffer

__all__ = ["Index", "Layout", "View", "contiguous"]

Index: TypeAlias = SupportsIndex | slice | EllipsisType | tuple[SupportsIndex | slice | EllipsisType, ...]


class Layout(NamedTuple):
    """Elements of one size in a grid."""

    offset: int
    """Bytes from the beginning of the memory to the first element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Bytes from one element to the next, a dimension each."""
    item_bytes: int
    dtype: str
    """The name of the elements' type; empty where it is not known."""

    @property
    def size(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.item_bytes

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one behind the other, the last dimension running quickest."""
        expected = self.item_bytes
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != expected:
                return 0 in self.shape
            expected *= length
        return True

    @property
    def extent(self) -> tuple[int, int]:
        """The first byte, and the one behind the last, from the beginning of the memory; both the offset when it is empty."""
        if 0 in self.shape:
            return self.offset, self.offset
        spans = [(length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True)]
        first = self.offset + sum(span for span in spans if span < 0)
        return first, self.offset + sum(span for span in spans if span > 0) + self.item_bytes

    def cut(self, index: Index) -> Layout:
        """The part that basic indexing takes.

        Raises:
            IndexError: it lies outside, or has more places than there are dimensions.
            TypeError: it is no basic index: a whole number, a slice, an ellipsis, or several of them.
        """
        places = index if isinstance(index, tuple) else (index,)
        given = [place for place in places if place is not Ellipsis]
        if len(places) - len(given) > 1:
            raise IndexError("an index has one ellipsis at most")
        missing = len(self.shape) - len(given)
        if missing < 0:
            raise IndexError(f"{len(given)} indices for memory of {len(self.shape)} dimensions")
        whole = [slice(None)] * missing
        at = next((number for number, place in enumerate(places) if place is Ellipsis), len(places))
        offset, shape, strides = self.offset, [], []
        for place, length, stride in zip(
            [*places[:at], *whole, *places[at + 1 :]], self.shape, self.strides, strict=True
        ):
            if isinstance(place, slice):
                start, stop, step = place.indices(length)
                count = len(range(start, stop, step))
                offset += start * stride if count else 0
                shape.append(count)
                strides.append(stride * step)
            else:
                offset += _position(place, length) * stride
        return Layout(offset, tuple(shape), tuple(strides), self.item_bytes, self.dtype)


def contiguous(shape: tuple[int, ...], item_bytes: int, dtype: str) -> Layout:
    """The layout of a whole array."""
    strides: list[int] = []
    step = item_bytes
    for length in reversed(shape):
        strides.insert(0, step)
        step *= max(length, 1)
    return Layout(0, shape, tuple(strides), item_bytes, dtype)


def _position(place: object, length: int) -> int:
    try:
        number = operator.index(place)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"a buffer is indexed by whole numbers, slices and an ellipsis, not by {place!r}; a view is what it gives"
        ) from None
    if not -length <= number < length:
        raise IndexError(f"index {number} is out of range for a dimension of {length}")
    return number + length if number < 0 else number


class View:
    """A part of a `Buffer`, cut out by basic indexing: `buffer[0:512, :]`. It is read and written in a `Batch`."""

    __slots__ = ("_buffer", "_layout")

    def __init__(self, buffer: Buffer, layout: Layout) -> None:
        self._buffer = buffer
        self._layout = layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Its length in each dimension."""
        return self._layout.shape

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._layout.size

    def __getitem__(self, index: Index) -> View:
        return View(self._buffer, self._layout.cut(index))

    def __reduce__(self) -> tuple[object, ...]:
        return View, (self._buffer, self._layout)

    def __repr__(self) -> str:
        return f"View({self._buffer!r}, shape={self._layout.shape})"
