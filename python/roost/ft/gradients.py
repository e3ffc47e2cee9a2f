"""`Gradients`: averages an optimizer's gradients over replicas, in buckets, while `backward()` still makes others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roost import libraries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Gradients"]

# The last layers' gradients come first; a small bucket is on its way sooner.
_FIRST_BUCKET_BYTES = 1 << 20


class _Bucket:
    """Parameters whose gradients travel together."""

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = parameters
        self.missing = 0
        self.flat: Any = None
        self.work: Any = None

    def pack(self) -> Any:
        """The gradients, one after the other."""
        torch = libraries.torch()
        with torch.no_grad():
            self.flat = torch.cat([
                (torch.zeros_like(one) if one.grad is None else one.grad).reshape(-1) for one in self.parameters
            ])  # fmt: skip
        return self.flat

    def unpack(self) -> None:
        """Give each parameter its part, without a copy where that can be."""
        self.work.wait()
        begin = 0
        for one in self.parameters:
            part = self.flat[begin : begin + one.numel()].view_as(one)
            begin += one.numel()
            if one.grad is None or one.grad.is_contiguous():
                one.grad = part
            else:
                one.grad.copy_(part)
        self.flat = self.work = None


class Gradients:
    """Between `begin()` and the end of a step's last `backward()` every gradient becomes the average.

    All members do the same collectives in the same order, whatever their steps do: each bucket once, the first one first.

    Args:
        optimizer: whose parameters.
        average: begins to average a tensor in place, and gives what can be waited for.
        bucket_bytes: how much is averaged at once.
        backwards: how many times a step calls `backward()`.
        all_sent: told when all buckets are on their way, before the first one is waited for.
    """

    def __init__(
        self,
        optimizer: Any,
        average: Callable[[Any], Any],
        bucket_bytes: int,
        backwards: int,
        all_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self._average = average
        self._all_sent = all_sent
        self.backwards = backwards
        """How many times the step that begins calls `backward()`."""
        self._buckets = [_Bucket(one) for one in _buckets(optimizer, bucket_bytes)]
        self._is_on = False
        # How many of the buckets are on their way or done, how many times `backward()` is over, and whether it is going on.
        self._sent = 0
        self._over = 0
        self._is_within = False
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._made(bucket))

    def begin(self) -> None:
        """A step begins whose gradients are to be averaged."""
        self._is_on, self._is_within = True, False
        self._sent = self._over = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    @property
    def is_on(self) -> bool:
        """Whether the gradients of a step are to be averaged, and are not yet."""
        return self._is_on

    def finish(self) -> None:
        """Average what has not been yet: all gradients are averages after it, until the next step begins."""
        self._flush()
        self._over = 0

    def _flush(self) -> None:
        if not self._is_on:
            return
        self._is_on = False
        self._send(len(self._buckets))
        self._all_sent()
        for bucket in self._buckets:
            bucket.unpack()

    def _made(self, bucket: _Bucket) -> None:
        """A gradient is there, in the midst of `backward()`."""
        if not self._is_on:
            if self._over:
                raise RuntimeError(
                    f"step() calls backward() more than {self._over} times before optimizer.step(): "
                    "say how many with EveryStep(backwards=…)"
                )
            return
        if not self._is_within:
            self._is_within = True
            libraries.torch().autograd.Variable._execution_engine.queue_callback(self._backward_is_over)
        if self._over + 1 < self.backwards:
            return
        bucket.missing -= 1
        ready = self._sent
        while ready < len(self._buckets) and not self._buckets[ready].missing:
            ready += 1
        self._send(ready)

    def _backward_is_over(self) -> None:
        self._is_within = False
        self._over += 1
        if self._over == self.backwards:
            self._flush()

    def _send(self, until: int) -> None:
        for bucket in self._buckets[self._sent : until]:
            bucket.work = self._average(bucket.pack())
        self._sent = until


def _buckets(optimizer: Any, bucket_bytes: int) -> Iterator[list[Any]]:
    """The parameters in the same order everywhere, the last ones first, those of one kind together."""
    kinds: dict[tuple[Any, Any], list[Any]] = {}
    for group in optimizer.param_groups:
        for one in group["params"]:
            if one.requires_grad:
                kinds.setdefault((one.dtype, one.device), []).append(one)
    limit = min(bucket_bytes, _FIRST_BUCKET_BYTES)
    for parameters in kinds.values():
        bucket: list[Any] = []
        size = 0
        for one in reversed(parameters):
            nbytes = one.numel() * one.element_size()
            if bucket and size + nbytes > limit:
                yield bucket
                bucket, size, limit = [], 0, bucket_bytes
            bucket.append(one)
            size += nbytes
        yield bucket
