"""What `Manager.allreduce` returns: a torch `Work` that never raises, since what went wrong is a matter of the vote."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from roost import libraries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["averaging", "finished"]


class _Future:
    """As much of a future as torchft's classes use of it."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait
        # torchft's data-parallel class hands this one to torch.
        self._fut: Any = libraries.torch().futures.Future()
        self._callbacks: list[Callable[[Any], Any]] = []

    def complete(self, value: Any) -> None:
        """The average is there, or will never be."""
        self._fut.set_result(value)
        for callback in self._callbacks:
            callback(self)

    def then(self, callback: Callable[[Any], Any]) -> _Future:
        """Call it when the average is there."""
        if self._fut.done():
            callback(self)
        else:
            self._callbacks.append(callback)
        return self

    def wait(self) -> Any:
        """Wait for the average."""
        self._wait()
        return self._fut.value()

    def value(self) -> Any:
        """The average."""
        return self._fut.value()

    def done(self) -> bool:
        """Whether it is there."""
        return bool(self._fut.done())


@functools.cache
def _averaging_class() -> Any:
    class Averaging(libraries.distributed().Work):  # type: ignore[misc]
        """A sum on its way, which becomes an average when it is waited for."""

        def __init__(self, tensor: Any, arrive: Callable[[], object], finish: Callable[[Any], None]) -> None:
            super().__init__()
            self._tensor = tensor
            # What waits and keeps the error, and what divides; None once that is done.
            self._arrive: Callable[[], object] | None = arrive
            self._finish: Callable[[Any], None] | None = finish
            self._future = _Future(self.wait)

        def arrive(self) -> None:
            """Wait until the tensor has the sum, or nothing of use."""
            arrive, self._arrive = self._arrive, None
            if arrive is not None:
                arrive()

        def wait(self, timeout: Any = None) -> bool:
            """Wait until the tensor has the average, or nothing of use."""
            self.arrive()
            finish, self._finish = self._finish, None
            if finish is not None:
                finish(self._tensor)
                self._future.complete(self._tensor)
            return True

        def get_future(self) -> Any:
            """A future of the tensor."""
            return self._future

    return Averaging


def averaging(tensor: Any, arrive: Callable[[], object], finish: Callable[[Any], None]) -> Any:
    """A work that calls `arrive()` and then `finish(tensor)`, each once, when it is waited for."""
    return _averaging_class()(tensor, arrive, finish)


def finished(tensor: Any) -> Any:
    """A work that is done."""
    work = averaging(tensor, lambda: None, lambda _: None)
    work.wait()
    return work
