"""Ugly programs: exceptions that may not be looked at, clean-ups that end in a cancellation, requests that die with their process."""

import asyncio
import os
import signal
import time
import warnings
from pathlib import Path

import pytest
from loops import handled, on_a_loop
from mortal import Mortal

from roost import Actor, ActorDied, Restart, endpoint, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

QUICK = Restart(limit=5, within_s=60, backoff_s=(0.01, 0.05))


class StrRaisesError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class ReduceExitsError(Exception):
    def __reduce__(self):
        raise SystemExit(3)


class AnyNameRaisesError(Exception):
    def __getattr__(self, name):
        raise ValueError(name)


class NothingMayBeReadError(Exception):
    def __getattribute__(self, name):
        raise ValueError(name)


class Ugly(Actor):
    def __init__(self, kind=None):
        if kind is not None:
            raise kind

    @endpoint
    async def in_async(self, kind):
        raise kind

    @endpoint
    def in_thread(self, kind):
        raise kind

    @endpoint(concurrent=True)
    async def beside(self, kind):
        raise kind

    @endpoint
    async def streamed(self, kind):
        yield 1
        raise kind


KINDS = [
    StrRaisesError,
    ReduceExitsError,
    AnyNameRaisesError,
    NothingMayBeReadError,
    StopIteration,
    asyncio.CancelledError,
]


@on_a_loop
async def test_whatever_an_endpoint_raises_its_caller_hears_of_it_and_the_actor_lives():
    async with this_host().spawn_procs() as procs:
        ugly = procs.spawn("ugly", Ugly)
        for kind in KINDS:
            for name in ("in_async", "in_thread", "beside", "streamed"):
                with pytest.raises(Exception) as caught:
                    await getattr(ugly, name).options(timeout=20).call_one(kind)
                assert not isinstance(caught.value, (ActorDied, TimeoutError)), (kind, name)


@pytest.mark.parametrize("kind", KINDS[:4])
@on_a_loop
async def test_whatever_it_raises_without_a_caller_its_owner_hears_of_it(kind):
    async with this_host().spawn_procs() as procs:
        ugly = procs.options(supervise=handled).spawn("ugly", Ugly)
        ugly.in_async.broadcast(kind)
        states = await asyncio.wait_for(ugly.wait(), 20)
        assert kind.__name__ in states[0].failure.reason
        unborn = procs.options(supervise=handled).spawn("unborn", Ugly, kind)
        states = await asyncio.wait_for(unborn.wait(), 20)
        assert kind.__name__ in states[0].failure.reason


class Tidies(Actor):
    def __init__(self, kind):
        self.kind = kind

    @endpoint
    async def here(self):
        pass

    async def __cleanup__(self, exc):
        if self.kind is None:
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task
        else:
            raise self.kind


@pytest.mark.parametrize("kind", [None, GeneratorExit, BaseExceptionGroup("g", [GeneratorExit()])])
@on_a_loop
async def test_a_cleanup_that_ends_in_a_cancellation_does_not_hold_up_the_stop(kind):
    async with this_host().spawn_procs() as procs:
        tidies = procs.spawn("tidies", Tidies, kind)
        await tidies.here.call()
        await tidies.stop("enough")
        assert [state.reason for state in await tidies.states()] == ["enough"]


@pytest.mark.parametrize("whole", [True, False])
@on_a_loop
async def test_a_request_to_stop_that_dies_with_its_process_holds_nothing_up(whole):
    async with this_host().spawn_procs({"gpus": 2}, restart=QUICK) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = list(await mortals.pid.call())
        part = mortals if whole else mortals.slice(gpus=0)
        began = time.monotonic()
        for pid in pids if whole else pids[:1]:
            os.kill(pid, signal.SIGKILL)
        # Nobody has heard of the deaths yet: the requests go to who is dead.
        await part.stop("enough")
        assert time.monotonic() - began < procs_grace_s()
        await procs.ready()
        states = await mortals.states()
        assert [state.state for state in states] == ["stopped", "stopped" if whole else "up"]
        assert states[0].reason == "enough"


def procs_grace_s():
    from roost import Config

    return Config().grace_s


@on_a_loop
async def test_the_loop_forgets_the_socket_of_who_died_also_when_a_forked_child_holds_it():
    async with this_host().spawn_procs({"gpus": 2}, supervise=handled) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        held, let_go = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this process has threads
            child = os.fork()
        if child == 0:
            os.close(let_go)
            os.read(held, 1)
            os._exit(0)
        try:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            await mortals.wait()
            selector = asyncio.get_running_loop()._selector
            info = Path(f"/proc/self/fdinfo/{selector.fileno()}").read_text()
            in_kernel = {int(line.split()[1]) for line in info.splitlines() if line.startswith("tfd:")}
            # One more would wake the loop for ever.
            assert in_kernel == {key.fd for key in selector.get_map().values()}
        finally:
            os.close(let_go)
            os.close(held)
            os.waitpid(child, 0)
