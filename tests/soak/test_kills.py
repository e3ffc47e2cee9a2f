"""Procs are killed over and over: callers hear of it at once."""

import asyncio
import os
import signal
import time

import pytest
from loops import handled, on_a_loop
from mortal import Mortal
from times import percentile, shown

from roost import ActorDied, Restart, this_host

HEARD_WITHIN_S = 0.1
POLICY = Restart(limit=1_000_000, within_s=60, backoff_s=(0.001, 0.001))


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_a_caller_hears_of_each_kill_at_once(rounds, figures):
    seconds = []
    async with this_host().spawn_procs({"ranks": 2}, restart=POLICY, supervise=handled) as procs:
        mortals = procs.spawn("mortals", Mortal)
        for number in range(rounds(20, 1000)):
            one = mortals.slice(ranks=number % 2)
            await one.ready()
            pid = await one.pid.call_one()
            pending = one.sleep.call_one(60)
            await asyncio.sleep(0.005)
            begin = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(ActorDied) as caught:
                await pending
            seconds.append(time.perf_counter() - begin)
            assert (caught.value.failure.kind, caught.value.failure.signal) == ("signal", signal.SIGKILL)
    figures(f"from kill to the caller's exception: {shown(seconds)}")
    assert percentile(seconds, rounds(50, 99)) < HEARD_WITHIN_S
