"""`Draws`: the random numbers that a trainer's process draws, as a part of its state."""

from __future__ import annotations

import hashlib
import pickle
import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roost import libraries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Draws"]

_SEED_BYTES = 8
_SEED_OF_NUMPY_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Generator:
    """One source of random numbers."""

    state: Callable[[], bytes]
    go_on: Callable[[bytes], object]
    """Draw on from a state."""
    seed: Callable[[bytes], object]
    """Begin with a number of these bytes."""


class Draws:
    """Python's random numbers, numpy's where it is imported, torch's, and those of each GPU that this process uses.

    Replicas that are built with the same numbers ahead mean to draw alike, and who recovers goes on with its peer's. Replicas that
    are built with different ones mean not to: who recovers draws neither its peer's nor its own from the beginning again.

    Args:
        step: says how many syncs are in the state that these belong to.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._born: dict[str, bytes] = {}

    def begin(self) -> None:
        """The model is built: what is drawn next is what this replica begins with."""
        self._born = {name: _digest(one.state()) for name, one in _generators().items()}

    def state_dict(self) -> dict[str, Any]:
        """What was ahead when training began, by its digest, and what is now."""
        now = {name: one.state() for name, one in _generators().items()}
        return {"step": self._step(), "born": self._born, "now": now}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after a peer's state was taken; before the first step has counted all keep what they were built with."""
        if not state["step"]:
            return
        for name, one in _generators().items():
            now, born = state["now"].get(name), self._born.get(name, b"")
            if now is None:
                continue
            if state["born"].get(name) == born:
                one.go_on(now)
            else:
                one.seed(_digest(born + now))


def _digest(state: bytes) -> bytes:
    return hashlib.blake2b(state, digest_size=_SEED_BYTES).digest()


def _generators() -> dict[str, _Generator]:
    found = {
        "python": _Generator(
            lambda: pickle.dumps(random.getstate()),
            lambda state: random.setstate(pickle.loads(state)),
            random.seed,
        )
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numbers = numpy.random
        found["numpy"] = _Generator(
            lambda: pickle.dumps(numbers.get_state()),
            lambda state: numbers.set_state(pickle.loads(state)),
            lambda seed: numbers.seed(int.from_bytes(seed[:_SEED_OF_NUMPY_BYTES], "little")),
        )
    torch = libraries.torch()
    found["torch"] = _of_torch(torch.default_generator)
    # A GPU that this process has not used yet has nothing to go on with.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for number, generator in enumerate(torch.cuda.default_generators):
            found[f"cuda:{number}"] = _of_torch(generator)
    return found


def _of_torch(generator: Any) -> _Generator:
    torch = libraries.torch()
    return _Generator(
        lambda: bytes(generator.get_state().numpy()),
        lambda state: generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
        lambda seed: generator.manual_seed(int.from_bytes(seed, "little") >> 1),
    )
