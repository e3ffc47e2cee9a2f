"""Names and sizes of dimensions: what a user may give, and the arithmetic of strides and ranks."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

__all__ = [
    "RANKS_MAX",
    "check_names",
    "checked_sizes",
    "dense_strides",
    "index_in",
    "listed",
    "merged",
    "part_sizes",
    "places_taken",
    "product",
    "runs_of",
    "text_of",
]

RANKS_MAX = 1 << 24
"""The most ranks of one mesh: a table of them must fit one process, and a rank is a u32 on the wire."""


def checked_sizes(sizes: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and sizes of dimensions that a user gave."""
    if not isinstance(sizes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # users without a type checker
        raise TypeError(f'dimensions are given as names and sizes, as in {{"gpus": 4}}, not as {sizes!r}')
    names = tuple(sizes)
    check_names(names)
    lengths: list[int] = []
    for name, size in sizes.items():
        length = whole_number(size, f"the size of dimension {name!r}")
        if length < 1:
            raise ValueError(
                f"dimension {name!r} has size {length}; every size is at least 1, so leave the dimension out"
            )
        lengths.append(length)
    if product(lengths) > RANKS_MAX:
        raise ValueError(
            f"{dict(sizes)} has {product(lengths)} ranks, which passes the limit of {RANKS_MAX}; use several meshes"
        )
    return names, tuple(lengths)


def check_names(names: Iterable[object]) -> None:
    """Refuse what cannot name a dimension, and a name that is there twice."""
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{name!r} cannot name a dimension: it is written as a keyword, as in slice(gpus=0)")
        if name in seen:
            raise ValueError(f'dimension {name!r} is there twice; rename one, as in rename({name}="{name}_2")')
        seen.add(name)


def whole_number(value: object, what: str) -> int:
    """A whole number that a user gave."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    return operator.index(value)


def index_in(value: object, length: int, what: str) -> int:
    """A place in a dimension; a negative one counts from the end."""
    index = whole_number(value, f"what is taken of {what}")
    if not -length <= index < length:
        raise IndexError(f"{index} is outside {what}, which has {length} places (0 to {length - 1})")
    return index % length


def places_taken(name: str, selection: slice, length: int) -> range:
    """The places that a slice takes of a dimension."""
    if selection.step is not None and operator.index(selection.step) < 1:
        raise ValueError(f"slice({name}=…) has step {selection.step}; steps are positive, since ranks keep their order")
    chosen = range(length)[selection]
    if not chosen:
        raise ValueError(
            f"slice({name}=slice({selection.start}, {selection.stop}, {selection.step})) takes nothing"
            f" of dimension {name!r}, which has {length} places; a mesh has at least one rank"
        )
    return chosen


def part_sizes(name: str, length: int, group: tuple[str, ...], given: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes of the parts that a dimension is split in; one may be left out."""
    known = [given[part] for part in group if part in given]
    unknown = [part for part in group if part not in given]
    if any(size < 1 for size in known):
        raise ValueError(f"split({name}={group}): sizes are at least 1, not {known}")
    if len(unknown) > 1 or not group:
        raise ValueError(f"split({name}={group}): give the sizes of all parts but one; {listed(unknown)} have none")
    inner = product(known)
    if (length % inner if unknown else length - inner) != 0:
        raise ValueError(f"split({name}={group}): {known} do not divide dimension {name!r} of {length} places evenly")
    return tuple(given.get(part, length // inner) for part in group)


def dense_strides(lengths: Sequence[int]) -> tuple[int, ...]:
    """The strides of a whole, with the last dimension running quickest."""
    strides: list[int] = []
    stride = 1
    for length in reversed(lengths):
        strides.append(stride)
        stride *= length
    return tuple(reversed(strides))


def merged(lengths: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
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


def runs_of(ranks: Sequence[int]) -> list[tuple[int, int, int]]:
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


def product(lengths: Iterable[int]) -> int:
    """How many places there are."""
    product = 1
    for length in lengths:
        product *= length
    return product


def text_of(names: Sequence[str], lengths: Sequence[int]) -> str:
    """Dimensions, for people."""
    return repr(dict(zip(names, lengths, strict=True)))


def listed(names: Iterable[str]) -> str:
    """Names, for people."""
    return ", ".join(repr(name) for name in sorted(names)) or "none"
