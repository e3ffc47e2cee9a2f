"""What a training thread does between its data and the user's `step`, by the kind of sync."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from roost import libraries
from roost.ft.gradients import Gradients
from roost.ft.sync import DiLoCo, EveryStep, LocalSGD

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.ft.manager import Manager
    from roost.ft.sync import Sync
    from roost.ft.torchft_manager import TorchftManager

    AnyManager: TypeAlias = Manager | TorchftManager

__all__ = ["SyncLoop", "loop_for"]


class SyncLoop(Protocol):
    """One kind of sync."""

    keeps_on_no: bool
    """Whether inner steps of a sync that does not count stay in the model."""

    def local(self) -> int:
        """Inner steps since the last sync."""
        ...

    def brings(self) -> int:
        """Inner steps that the sync that begins now will count."""
        ...

    def join(self) -> None:
        """Have the state that all begin with, or that a peer has."""
        ...

    def step(self, inner: Callable[[], None]) -> None:
        """Do one inner step, and the sync that is due with it."""
        ...

    def learns_from(self, items: int) -> None:
        """Say how many items of a global batch the step that begins learns from."""
        ...

    def drain(self) -> None:
        """Bring in what is not synced yet: there are no more steps of this member's own."""
        ...

    def idle(self) -> None:
        """Take part in others' syncs without adding."""
        ...

    def outer_state(self) -> dict[str, dict[str, Any]]:
        """Outer parameters and momentum by name."""
        ...


def loop_for(sync: Sync, manager: AnyManager, model: Any, optimizer: Any, *, is_shared: bool = False) -> SyncLoop:
    """The loop of a kind of sync; `is_shared` where replicas learn from shares of a global batch."""
    if isinstance(sync, EveryStep):
        return _EveryStepLoop(manager, optimizer, sync, is_shared=is_shared)
    if isinstance(sync, LocalSGD):
        return _LocalSGDLoop(manager, model, optimizer, sync.every)
    return _DiLoCoLoop(manager, model, optimizer, sync)


class _EveryStepLoop:
    """Averages gradients as `backward()` makes them, votes when all are there, and waits for the decision inside `optimizer.step()`.

    A "no" leaves that step undone.
    """

    keeps_on_no = False

    def __init__(self, manager: AnyManager, optimizer: Any, sync: EveryStep, *, is_shared: bool) -> None:
        self._manager = manager
        self._optimizer = optimizer
        self._gradients = Gradients(
            optimizer, self._average, sync.bucket_bytes, sync.backwards or 1, manager.end_collectives
        )
        self._is_shared = is_shared
        self._calls_for_each = sync.backwards is None
        # How many items this member learns from in this step, and all together: a sum that is there when it is waited for.
        self._items = 0
        self._all_items: tuple[Any, Any] | None = None
        self._plain_step = optimizer.step
        self._has_voted = False
        optimizer.step = self._synced_step

    def local(self) -> int:
        """A step is synced as soon as it is done."""
        return int(self._has_voted)

    def brings(self) -> int:
        """The step that follows the quorum."""
        return int(not self._manager.is_idle)

    def join(self) -> None:
        """Each step begins with a quorum."""

    def step(self, inner: Callable[[], None]) -> None:
        """Join a quorum, compute, and go on together or not at all."""
        self._has_voted = False
        self._begin()
        inner()
        if not self._has_voted:
            raise RuntimeError("step() has not called self.optimizer.step(), where EveryStep counts")
        self._has_voted = False

    def learns_from(self, items: int) -> None:
        """Begin to add up how many items all learn from: gradients count by their share of that."""
        self._items, self._all_items = items, None
        if self._calls_for_each:
            self._gradients.backwards = max(1, items)
        if self._is_shared and self._gradients.is_on:
            total = libraries.torch().tensor([float(items)])
            self._all_items = total, self._manager.allreduce(total, reduce_op=libraries.distributed().ReduceOp.SUM)

    def drain(self) -> None:
        """Nothing is left between steps."""

    def idle(self) -> None:
        """Add nothing, and go where the others go."""
        self._begin()
        self.learns_from(0)
        self._optimizer.zero_grad()
        self._vote()

    def outer_state(self) -> dict[str, dict[str, Any]]:
        """There is none."""
        return {"parameters": {}, "momentum": {}}

    def _begin(self) -> None:
        manager = self._manager
        manager.start_quorum()
        quorum = manager.quorum
        if quorum is not None and (len(quorum.members) > 1 or manager.is_idle):
            self._gradients.begin()

    def _synced_step(self, closure: None = None) -> None:
        if closure is not None:
            raise TypeError("optimizer.step(closure) computes several times: EveryStep averages once")
        if self._has_voted:
            raise RuntimeError("step() has called self.optimizer.step() twice: EveryStep averages once a step")
        self._has_voted = True
        self._vote()

    def _average(self, flat: Any) -> Any:
        if self._all_items is None:
            return self._manager.allreduce(flat)
        total, work = self._all_items
        work.wait()
        # After an error there is nothing of use in it, nor in the average.
        flat.mul_(self._items / max(1.0, float(total)))
        return self._manager.allreduce(flat, reduce_op=libraries.distributed().ReduceOp.SUM)

    def _vote(self) -> None:
        self._gradients.finish()
        if self._manager.should_commit():
            self._plain_step()


class _LocalSGDLoop:
    """torchft's LocalSGD, with a sync of its own for newcomers and at the end."""

    keeps_on_no = True

    def __init__(self, manager: AnyManager, model: Any, optimizer: Any, every: int) -> None:
        self._manager = manager
        self._sgd = libraries.local_sgd().LocalSGD(manager, model, optimizer, every)
        manager.joins_small = True
        self._sgd.__enter__()

    def local(self) -> int:
        """Inner steps since the last sync."""
        return int(self._sgd._local_step)

    def brings(self) -> int:
        """Those since the last sync."""
        return self.local()

    def join(self) -> None:
        """Sync until one counts: from then on this member has the state."""
        while not self._manager.has_state:
            self._sgd.sync()

    def step(self, inner: Callable[[], None]) -> None:
        """The optimizer's hooks sync."""
        inner()

    def learns_from(self, items: int) -> None:
        """Parameters are averaged, each replica's alike."""

    def drain(self) -> None:
        """Sync the steps that are left."""
        if self.local():
            self._sgd.sync()

    def idle(self) -> None:
        """Take the others' average."""
        self._sgd.sync()

    def outer_state(self) -> dict[str, dict[str, Any]]:
        """There is none."""
        return {"parameters": {}, "momentum": {}}


class _DiLoCoLoop:
    """torchft's DiLoCo, with syncs of its own for newcomers and at the end."""

    keeps_on_no = False

    def __init__(self, manager: AnyManager, model: Any, optimizer: Any, sync: DiLoCo) -> None:
        self._manager = manager
        self._names = tuple(sync.fragments) or ("",)
        modules = _fragments(model, self._names)
        sgd = libraries.torch().optim.SGD
        # One for each: a shared one would step the other fragments too, with their inner gradients.
        outer = [
            sgd(one.parameters(), lr=sync.outer_lr, momentum=sync.outer_momentum, nesterov=sync.outer_momentum > 0)
            for one in modules
        ]
        self._diloco = libraries.local_sgd().DiLoCo(manager, modules, optimizer, outer, sync.every)
        manager.joins_small = True
        self._diloco.__enter__()

    def local(self) -> int:
        """Inner steps since the last sync."""
        return int(self._diloco._local_step)

    def brings(self) -> int:
        """Those since the last sync."""
        return self.local()

    def join(self) -> None:
        """Sync until one counts: from then on this member has the state."""
        while not self._manager.has_state:
            self._sync_now()

    def step(self, inner: Callable[[], None]) -> None:
        """The optimizer's hooks sync."""
        inner()

    def learns_from(self, items: int) -> None:
        """What was learnt is averaged, each replica's alike."""

    def drain(self) -> None:
        """Sync what is left, of each fragment."""
        if len(self._names) > 1 or self.local():
            for _ in self._names:
                self._sync_now()

    def idle(self) -> None:
        """Go where the others go."""
        self._sync_now()

    def outer_state(self) -> dict[str, dict[str, Any]]:
        """Outer parameters and momentum by name."""
        parameters: dict[str, Any] = {}
        momentum: dict[str, Any] = {}
        for prefix, fragment in zip(self._names, self._diloco._fragments, strict=True):
            state = fragment._outer_optimizer.state
            for name, parameter in fragment._model_fragment.named_parameters():
                whole = f"{prefix}.{name}" if prefix else name
                parameters[whole] = fragment.original_parameters[name].clone()
                buffer = state.get(parameter, {}).get("momentum_buffer")
                momentum[whole] = None if buffer is None else buffer.clone()
        return {"parameters": parameters, "momentum": momentum}

    def _sync_now(self) -> None:
        """The sync that the optimizer's hook does when it is due."""
        diloco = self._diloco
        self._manager.start_quorum()
        fragment = diloco._fragments[diloco._current_fragment()]
        fragment.prepare_sync()
        fragment.perform_sync()
        diloco._local_step = 0


def _fragments(model: Any, names: tuple[str, ...]) -> list[Any]:
    """The modules of these names, which have each parameter once."""
    try:
        modules = [model.get_submodule(name) for name in names]
    except AttributeError as error:
        known = ", ".join(name for name, _ in model.named_children())
        raise ValueError(f"DiLoCo fragments={names!r}: {error}; the model's parts are {known}") from None
    seen: set[int] = set()
    for name, module in zip(names, modules, strict=True):
        for parameter, value in module.named_parameters():
            if id(value) in seen:
                raise ValueError(f"DiLoCo fragments: {name}.{parameter} is in two fragments")
            seen.add(id(value))
    missing = [name for name, value in model.named_parameters() if id(value) not in seen]
    if missing:
        raise ValueError(f"DiLoCo fragments={names!r} leave out {', '.join(missing)}")
    return modules
