"""A state as it travels: its tensors as bytes, each once, and all else as what they hang in."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from roost import libraries

__all__ = ["Checksum", "Leaf", "Manifest", "manifest_of", "sum_of", "tensors_of"]

SMALL_BYTES = 1024
"""Tensors of no more bytes, such as the step counts of optimizers, are packed and read at once."""
_ALIGNMENT = 64
_WORD = 8
_WORDS = 1 << 64


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor."""

    path: str
    """Where it hangs, such as "trainer.model.0.weight"."""
    shape: tuple[int, ...]
    dtype: str
    offset: int
    """Where its bytes lie."""
    nbytes: int

    @property
    def is_small(self) -> bool:
        """Whether it is packed with others."""
        return self.nbytes <= SMALL_BYTES


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a state is made of."""

    leaves: tuple[Leaf, ...]
    small_bytes: int
    """The packed ones come first, in so many bytes."""
    nbytes: int
    tree: bytes
    """All else, with a `_Place` for each tensor; pickled."""

    def rebuild(self, tensors: list[Any]) -> dict[str, Any]:
        """The state, with these tensors for its leaves."""
        state: dict[str, Any] = _replaced(pickle.loads(self.tree), tensors)
        return state


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor hangs."""

    leaf: int


def tensors_of(state: Any) -> dict[str, Any]:
    """The tensors of a state, by their paths."""
    found: dict[str, Any] = {}
    _walk(state, "", found)
    return found


def manifest_of(state: dict[str, Any]) -> tuple[Manifest, list[Any]]:
    """What a state is made of, and its tensors in the order of the leaves; what is tied together is one leaf.

    Raises:
        TypeError: something in it travels in no way; the text says where it hangs.
    """
    by_identity: dict[tuple[Any, ...], int] = {}
    paths: list[str] = []
    tensors: list[Any] = []

    def place(path: str, tensor: Any) -> _Place:
        key = (tensor.data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        number = by_identity.get(key) if tensor.numel() else None
        if number is None:
            number = by_identity[key] = len(tensors)
            paths.append(path)
            tensors.append(tensor.detach())
        return _Place(number)

    tree = _walk(state, "", {}, place)
    small, nbytes = 0, 0
    sizes = [one.numel() * one.element_size() for one in tensors]
    offsets: list[int] = [0] * len(sizes)
    for number, size in sorted(enumerate(sizes), key=lambda one: one[1] > SMALL_BYTES):
        offsets[number] = nbytes
        nbytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        if size <= SMALL_BYTES:
            small = nbytes
    leaves = tuple(
        Leaf(path, tuple(one.shape), str(one.dtype).removeprefix("torch."), offset, size)
        for path, one, offset, size in zip(paths, tensors, offsets, sizes, strict=True)
    )
    return Manifest(leaves, small, nbytes, _pickled(tree, state)), tensors


class Checksum:
    """Of tensors of bytes: any changed or misplaced word shows. As quick as memory, which a state of gigabytes wants."""

    def __init__(self) -> None:
        self._sums: dict[int, int] = {}

    def add(self, number: int, piece: Any) -> None:
        """Add a piece of tensor `number`, of whole words unless it is the tensor's last: pieces may come in any order."""
        self._sums[number] = self._sums.get(number, 0) + sum_of(piece)

    def sums(self, count: int) -> tuple[int, ...]:
        """Of each of so many tensors."""
        return tuple(self._sums.get(number, 0) % _WORDS for number in range(count))

    @property
    def text(self) -> str:
        """Of all together."""
        return f"{sum((number + 1) * one for number, one in self._sums.items()) % _WORDS:016x}"


def sum_of(piece: Any) -> int:
    """The sum of the words of a tensor of bytes, which begins at one."""
    torch = libraries.torch()
    words = piece.numel() // _WORD * _WORD
    # What begins between two words in memory is rare, and copied.
    whole = piece[:words] if piece.data_ptr() % _WORD == 0 else piece[:words].clone()
    return int(whole.view(torch.int64).sum().item()) + int(piece[words:].sum(dtype=torch.int64).item())


def _walk(value: Any, path: str, found: dict[str, Any], place: Any = None) -> Any:
    """A copy of a tree, its tensors replaced by what `place` says."""
    if hasattr(value, "data_ptr"):
        found[path] = value
        return value if place is None else place(path, value)
    if isinstance(value, dict):
        return {key: _walk(one, f"{path}.{key}" if path else str(key), found, place) for key, one in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_walk(one, f"{path}.{number}", found, place) for number, one in enumerate(value))
    return value


def _replaced(tree: Any, tensors: list[Any]) -> Any:
    if isinstance(tree, _Place):
        return tensors[tree.leaf]
    if isinstance(tree, dict):
        return {key: _replaced(one, tensors) for key, one in tree.items()}
    if isinstance(tree, list | tuple) and not hasattr(tree, "_fields"):
        return type(tree)(_replaced(one, tensors) for one in tree)
    return tree


def _pickled(tree: Any, state: dict[str, Any]) -> bytes:
    try:
        return pickle.dumps(tree, 5)
    except Exception as error:
        where = _first_that_fails(state, "")
        raise TypeError(f"the state of a trainer has to pickle, and {where} does not: {error}") from error


def _first_that_fails(value: Any, path: str) -> str:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    for key, one in items:
        try:
            pickle.dumps(one, 5)
        except Exception:  # noqa: BLE001 - whatever it is, it does not pickle
            return _first_that_fails(one, f"{path}.{key}" if path else str(key))
    return path
