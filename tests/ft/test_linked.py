"""How a thread that waits for an answer is told that there will be none."""

import asyncio
import threading
import time

import pytest

import roost
from roost import Actor, ActorDied, endpoint, this_host

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="module")]


class Never(Actor):
    """One that is asked, and does not answer."""

    def __init__(self):
        self.is_asked = asyncio.Event()

    @endpoint(concurrent=True)
    async def answer(self):
        self.is_asked.set()
        await asyncio.Event().wait()

    @endpoint(concurrent=True)
    async def asked(self):
        await self.is_asked.wait()


class Waits(Actor):
    """One whose thread waits, as that of a trainer does, while another thread of its process computes in Python."""

    @endpoint
    def wait_for(self, never):
        over = threading.Event()

        def compute():
            while not over.is_set():
                sum(range(1000))

        busy = threading.Thread(target=compute)
        busy.start()
        try:
            never.answer.call_one().result()
        except ActorDied:
            return time.monotonic()
        finally:
            over.set()
            busy.join()
        raise AssertionError("nobody answers")


async def handled(_):
    return True


async def test_a_thread_that_waits_for_an_answer_hears_of_a_death_while_another_computes(figures):
    took = []
    async with this_host().spawn_procs({"cpus": 1}) as own:
        waits = await own.spawn("waits", Waits)
        for _ in range(10):
            async with this_host().spawn_procs({"cpus": 1}, supervise=handled) as procs:
                never = await procs.spawn("never", Never)
                waiting = waits.wait_for.call_one(never)
                await never.asked.call_one()
                killed = time.monotonic()
                roost.testing.kill(procs)
                took.append(await waiting - killed)
    figures(f"median {1000 * sorted(took)[5]:.1f} ms, at most {1000 * max(took):.1f} ms")
    # A thread has the interpreter for 5 ms at a time; it takes it three times.
    assert sorted(took)[5] < 0.5
