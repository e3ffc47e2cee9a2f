"""A spare's life: it prepares what it can, and waits until it is a rank's next incarnation."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import traceback
from typing import TYPE_CHECKING, Any

from roost import process, serialize
from roost._exceptions import one_line
from roost.constructing import load_plan, unpack
from roost.failure import Bind

if TYPE_CHECKING:
    from roost._roost import Control

__all__ = ["bind", "set_up", "setup_failed", "wait_for_rank"]

_logger = logging.getLogger("roost")

_Notices = list[tuple[Any, ...]]

# Notices that hold for a rank, too: how this host's clock stands to the driver's.
_LASTING = ("clock",)


async def wait_for_rank(spare: dict[str, Any], control: Control) -> int | tuple[dict[str, Any], _Notices]:
    """Be ready, and wait. Gives what the rank is started with, and what came after that; or the exit code of an end without one."""
    is_set_up = False
    process.wait_for_rank(waits=True)
    if spare["setup"] is not None:
        try:
            await set_up(spare)
            is_set_up = True
        except BaseException as error:  # noqa: BLE001 - the user's function, whatever it raises
            if not _asked_who_it_is(error):
                setup_failed(control, error)
                return 1
    control.up()
    given = await _told(control)
    if given is None:
        return 0
    spec, notices = given
    process.wait_for_rank(waits=False)
    _take_over(spare, spec)
    if is_set_up:
        spec["setup"] = None
    return spec, notices


async def set_up(spec: dict[str, Any]) -> None:
    """Run the user's `setup`."""
    result = serialize.loads(spec["setup"])()
    if asyncio.iscoroutine(result):
        await result


def setup_failed(control: Control, error: BaseException) -> None:
    """It raised: this process does not start."""
    traceback.print_exception(error)
    control.start_failed(f"setup raised {one_line(error)}")


def _asked_who_it_is(error: BaseException | None) -> bool:
    """Whether a `setup` needs what only a rank has: then it is run once that is known."""
    while error is not None:
        if isinstance(error, process.NoRankYetError):
            return True
        error = error.__cause__ or error.__context__
    return False


async def _told(control: Control) -> tuple[dict[str, Any], _Notices] | None:
    """The rank, once there is one; None when none will be."""
    loop = asyncio.get_running_loop()
    is_told = asyncio.Event()
    kept: _Notices = []
    loop.add_reader(control.fd, is_told.set)
    try:
        while True:
            is_told.clear()
            notices = control.drain()
            for at, (what, *details) in enumerate(notices):
                if what == "become":
                    incarnation, packed, recorded = details
                    spec = pickle.loads(packed)
                    spec["incarnation"] = incarnation
                    spec["actors"] += recorded
                    return spec, kept + notices[at + 1 :]
                if what == "stop":
                    return None
                if what == "prepare":
                    _prepare(details[0])
                elif what in _LASTING:
                    kept.append(notices[at])
            await is_told.wait()
    finally:
        loop.remove_reader(control.fd)


def _prepare(start: bytes) -> None:
    """Import what an actor's class needs: what fails here fails again, and is told of, when the actor is made."""
    try:
        load_plan(unpack(start)[0])
    except Exception as error:  # noqa: BLE001 - the user's module, whatever it raises
        _logger.debug("a class could not be loaded ahead: %s", one_line(error))


def _take_over(spare: dict[str, Any], spec: dict[str, Any]) -> None:
    """Change what is the rank's own; what `setup` has changed stays."""
    names = "changes" if spec["environ"] is None else "environ"
    before, after = spare[names], spec[names]
    for name in before.keys() - after.keys():
        os.environ.pop(name, None)
    for name, value in after.items():
        if value is None:
            os.environ.pop(name, None)
        elif before.get(name) != value:
            os.environ[name] = value
    if (spec["cpus"], spec["bind"]) != (spare["cpus"], spare["bind"]):
        bind(spec)


def bind(spec: dict[str, Any]) -> None:
    """Run on the CPUs that are asked for.

    Raises:
        ValueError: this host has no such CPUs.
    """
    cpus = spec["cpus"]
    if spec["bind"] is not None:
        from roost.placing import cpus_of

        numbers, numa_node, near_gpu = spec["bind"]
        cpus = cpus_of(Bind(cpus=numbers, numa_node=numa_node, near_gpu=near_gpu))
    if cpus:
        os.sched_setaffinity(0, cpus)
