"""Nested containers as a list of arrays and tensors, and back; and where those lie in the memory that they share."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.rdma.lent import Lent, is_array, is_tensor, lend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from roost.rdma.layout import Layout

__all__ = ["Leaf", "Made", "Place", "Storage", "copy", "gather", "leaves", "of_dtype", "places", "rebuilt", "storages"]

_ALIGNMENT = 64  # every size of an element divides it


class Place(NamedTuple):
    """Stands, in a structure, for an array or tensor."""

    number: int


class Leaf(NamedTuple):
    """An array or tensor of a structure."""

    path: str
    """How it is reached, as Python writes it."""
    value: Any
    lent: Lent


class Storage(NamedTuple):
    """Memory that one or more leaves look at."""

    address: int
    size: int
    keep: Any


def leaves(values: object) -> tuple[object, list[Leaf]]:
    """The structure with a `Place` for each array and tensor, and these, in order.

    Raises:
        ValueError, Unavailable: one of them has no memory that can be lent; its path is named.
    """
    found: list[Leaf] = []

    def visit(path: str, value: Any) -> Place:
        found.append(Leaf(path, value, lend(value, path or "the value")))
        return Place(len(found) - 1)

    return gather(values, visit), found


def gather(values: object, leaf: Callable[[str, Any], object], path: str = "") -> Any:
    """A copy of nested dicts, lists and tuples with something else in place of each array and tensor."""
    if is_tensor(values) or is_array(values):
        return leaf(path, values)
    if isinstance(values, dict):
        items = [(key, gather(value, leaf, f"{path}[{key!r}]")) for key, value in values.items()]
        return _like_dict(values, items)
    if isinstance(values, list | tuple):
        made = [gather(value, leaf, f"{path}[{number}]") for number, value in enumerate(values)]
        if type(values) in (list, tuple):
            return type(values)(made)
        # A named tuple takes its fields one by one.
        return type(values)(*made) if hasattr(values, "_fields") else type(values)(made)
    return values


def _like_dict(like: dict[Any, Any], items: list[tuple[Any, Any]]) -> Any:
    from collections import OrderedDict, defaultdict

    if isinstance(like, defaultdict):
        return defaultdict(like.default_factory, items)
    # Of a class of the user's nothing is known but that it is a dict; a state dict's `_metadata` is torch's own.
    return OrderedDict(items) if isinstance(like, OrderedDict) else dict(items)


def places(structure: object) -> Iterator[tuple[str, Place]]:
    """Each `Place` of a structure with its path."""
    found: list[tuple[str, Place]] = []

    def look(path: str, value: object) -> None:
        if isinstance(value, Place):
            found.append((path, value))
        elif isinstance(value, dict):
            for key, inner in value.items():
                look(f"{path}[{key!r}]", inner)
        elif isinstance(value, list | tuple):
            for number, inner in enumerate(value):
                look(f"{path}[{number}]", inner)

    look("", structure)
    return iter(found)


def rebuilt(structure: object, values: Sequence[object]) -> Any:
    """The structure with a value in place of each `Place`."""
    if isinstance(structure, Place):
        return values[structure.number]
    if isinstance(structure, dict):
        return _like_dict(structure, [(key, rebuilt(value, values)) for key, value in structure.items()])
    if isinstance(structure, list | tuple):
        made = [rebuilt(value, values) for value in structure]
        if type(structure) in (list, tuple):
            return type(structure)(made)
        return type(structure)(*made) if hasattr(structure, "_fields") else type(structure)(made)
    return structure


def storages(found: Sequence[Leaf]) -> tuple[list[Storage], list[int], list[Layout]]:
    """The memory that leaves look at, each piece once; by leaf, which piece (-1 of what is empty) and where in it."""
    ends: dict[object, tuple[int, int, Any]] = {}
    keys: list[object] = []
    for leaf in found:
        key, address, layout = _owner(leaf.value), leaf.lent.address, leaf.lent.layout
        keys.append(key if layout.size else None)
        if layout.size:
            first, last = layout.extent
            begin = _aligned(leaf.value, address + first)
            low, high, keep = ends.get(key, (begin, 0, leaf.value))
            ends[key] = min(low, begin), max(high, address + last), keep
    numbers = {key: number for number, key in enumerate(ends)}
    pieces = [Storage(low, high - low, keep) for low, high, keep in ends.values()]
    which = [-1 if key is None else numbers[key] for key in keys]
    where = [
        leaf.lent.layout._replace(offset=leaf.lent.address - pieces[number].address if number >= 0 else 0)
        for leaf, number in zip(found, which, strict=True)
    ]
    return pieces, which, where


def _owner(value: Any) -> object:
    """What is one and the same for all that look at one piece of memory."""
    if is_tensor(value):
        return "torch", value.untyped_storage()._cdata
    while is_array(value.base):
        value = value.base
    return "numpy", value.__array_interface__["data"][0] if value.base is not None else id(value)


def _aligned(value: Any, address: int) -> int:
    """An address at or before that, at which elements of any type may begin; torch counts offsets in elements."""
    if not is_tensor(value):
        return address
    return address - (address - int(value.untyped_storage().data_ptr())) % _ALIGNMENT


class Made:
    """New memory for pieces, and leaves that look at it as others did at theirs."""

    def __init__(self, sizes: Sequence[int], kinds: Mapping[int, str]) -> None:
        self.memory: list[Any] = []
        for number, size in enumerate(sizes):
            module: Any = importlib.import_module(kinds[number])
            self.memory.append(module.empty(size, dtype=module.uint8))

    def look(self, number: int, kind: str, layout: Layout) -> Any:
        """An array or tensor over a piece; of its own where it is empty."""
        module: Any = importlib.import_module(kind)
        if kind == "numpy":
            memory = self.memory[number] if number >= 0 else b""
            return module.ndarray(layout.shape, layout.dtype, memory, layout.offset, layout.strides)
        dtype = getattr(module, layout.dtype)
        strides = tuple(stride // layout.item_bytes for stride in layout.strides)
        if number < 0:
            return module.empty_strided(layout.shape, strides, dtype=dtype)
        storage = self.memory[number].untyped_storage()
        return module.empty(0, dtype=dtype).set_(storage, layout.offset // layout.item_bytes, layout.shape, strides)


def of_dtype(like: Any, layout: Layout) -> Any:
    """New memory of these elements, side by side, of the library that another value is of."""
    if is_tensor(like):
        torch: Any = sys.modules["torch"]
        return torch.empty(layout.shape, dtype=getattr(torch, layout.dtype))
    return sys.modules["numpy"].empty(layout.shape, layout.dtype)


def copy(to: Any, value: Any) -> None:
    """Copy elements of another type, as each library casts them."""
    if is_tensor(to):
        with sys.modules["torch"].no_grad():
            to.copy_(value)
    else:
        to[...] = value
