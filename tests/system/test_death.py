"""A proc dies: who hears of it, how soon, and what they are told."""

import asyncio
import os
import pickle
import signal
import socket
import time
from pathlib import Path

import pytest
from loops import handled, on_a_loop, process_state, wait_until_gone, wait_until_idle
from mortal import Mortal

from roost import Actor, ActorDied, MeshError, Restart, endpoint, this_host
from roost.errors import StoppedError

pytestmark = pytest.mark.usefixtures("nothing_left")


async def died(reply):
    with pytest.raises(ActorDied) as caught:
        await reply
    return caught.value


def control_thread_seconds():
    """What the control thread of this process has used of the processor, with all that came before it."""
    seconds = 0.0
    for stat in Path("/proc/self/task").glob("*/stat"):
        name, _, rest = stat.read_text().rpartition(")")
        if name.endswith("(roost-control"):
            user, system = rest.split()[11:13]
            seconds += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return seconds


@on_a_loop
async def test_an_exit_in_a_task_of_its_own_is_told_as_what_it_is():
    """It ends the loop, and with that cancels the endpoint that runs beside it."""
    async with this_host().spawn_procs() as procs:
        mortal = procs.spawn("mortal", Mortal)
        error = await died(mortal.exit_in_a_task.call_one(7))
        assert (error.failure.kind, error.failure.exit_code) == ("exit", 7)


@on_a_loop
async def test_a_death_that_nobody_reaps_yet_costs_no_processor():
    async with this_host().spawn_procs(supervise=handled) as procs:
        mortal = procs.spawn("mortal", Mortal)
        pid = await mortal.pid.call_one()
        template = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert template != os.getpid()
        os.kill(template, signal.SIGSTOP)
        try:
            pending = mortal.sleep.call_one(60)
            os.kill(pid, signal.SIGKILL)
            await died(pending)
            before = control_thread_seconds()
            await asyncio.sleep(1.0)
            assert control_thread_seconds() - before < 0.2
            assert process_state(pid) == "Z"
        finally:
            os.kill(template, signal.SIGCONT)


@on_a_loop
async def test_a_kill_fails_pending_calls_with_a_structured_failure():
    async with this_host().spawn_procs({"gpus": 2}, name="workers") as procs:
        mortals = procs.spawn("mortals", Mortal)
        first, second = await mortals.pid.call()
        one = mortals.slice(gpus=1)
        await one.say.call_one("these were the last words")
        pending = [one.sleep.call_one(60) for _ in range(3)]
        healthy = mortals.slice(gpus=0).sleep.call_one(0.1)
        before = time.time()
        os.kill(second, signal.SIGKILL)
        errors = [await died(reply) for reply in pending]
        assert await healthy == "slept"
        failure = errors[0].failure
        assert all(error.failure is failure for error in errors)
        assert (failure.kind, failure.origin, failure.signal, failure.exit_code) == ("signal", "process", 9, None)
        assert (failure.mesh, failure.name, dict(failure.point), failure.incarnation) == (
            "workers",
            "workers[gpus=1]",
            {"gpus": 1},
            0,
        )
        assert failure.host == socket.gethostname()
        assert "these were the last words" in failure.stderr
        assert before - 0.1 <= failure.times["died_at"] <= failure.times["detected_at"] <= time.time()
        assert failure.times["started_at"] <= failure.times["up_at"] <= failure.times["died_at"]
        (followed,) = failure.consequences
        assert (followed.mesh, followed.name, followed.actor_class) == ("mortals", "mortals[gpus=1]", "mortal.Mortal")
        assert followed.cause is failure
        text = str(errors[0])
        assert "workers[gpus=1] was killed by SIGKILL" in text
        assert "these were the last words" in text
        assert text.count("SIGKILL") == 1
        copy = pickle.loads(pickle.dumps(errors[0]))
        assert copy.failure == failure
        assert '"signal": 9' in failure.to_json()
        assert first


@on_a_loop
async def test_maybe_executed_is_right_for_running_and_queued_calls():
    async with this_host().spawn_procs() as procs:
        mortal = procs.spawn("mortal", Mortal)
        pid = await mortal.pid.call_one()
        running = mortal.sleep.call_one(60)
        queued = [mortal.echo.call_one(number) for number in range(5)]
        await asyncio.sleep(0)  # they leave at the end of this turn
        wait_until_idle(pid)
        os.kill(pid, signal.SIGKILL)
        assert (await died(running)).maybe_executed
        assert [(await died(reply)).maybe_executed for reply in queued] == [False] * 5
        assert "the call may have been executed" in str(running.exception())


@pytest.mark.parametrize("blocked", ["block_loop", "block_thread", "hold_gil"])
@on_a_loop
async def test_calls_fail_at_once_while_other_ranks_are_blocked_in_c(blocked):
    async with this_host().spawn_procs({"gpus": 3}) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        assert await mortals.slice(gpus=0).echo.call_one("warm") == "warm"
        stuck = mortals.slice(gpus=0).call_one(blocked, 2)
        waiting = mortals.sleep.call(60)
        victim = mortals.slice(gpus=1).sleep.call_one(60)
        start = time.perf_counter()
        os.kill(pids[1], signal.SIGKILL)
        await died(victim)
        with pytest.raises(MeshError) as caught:
            await waiting
        assert time.perf_counter() - start < 0.5
        assert [dict(point) for point, _ in caught.value.items()] == [{"gpus": 1}]
        assert not stuck.done()
        waiting.cancel()
        assert await stuck in ("blocked", "held")


@on_a_loop
async def test_a_call_names_all_dead_ranks_at_once():
    async with this_host().spawn_procs({"gpus": 4}) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        for rank in (1, 3):
            os.kill(pids[rank], signal.SIGKILL)
        for rank in (1, 3):
            await died(mortals.slice(gpus=rank).sleep.call_one(60))
        with pytest.raises(MeshError) as caught:
            await mortals.echo.call(1)
        assert [dict(point) for point, _ in caught.value.items()] == [{"gpus": 1}, {"gpus": 3}]
        assert {failure.name for failure in caught.value.failures} == {"procs[gpus=1]", "procs[gpus=3]"}
        outcomes = await mortals.echo.call(2).outcomes()
        assert [isinstance(value, ActorDied) for value in outcomes] == [False, True, False, True]
        assert outcomes[0] == 2
        assert {await mortals.echo.choose(rank) for rank in range(20)} == set(range(20))


@on_a_loop
async def test_a_reply_in_the_socket_of_a_killed_peer_counts():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        mortals = procs.spawn("mortals", Mortal)
        pids = await mortals.pid.call()
        for round_ in range(10):
            replies = [mortals.slice(gpus=0).echo.call_one(number) for number in range(50)]
            if round_ == 9:
                await asyncio.sleep(0)  # they leave at the end of this turn
                # Nothing of this loop runs now, while the peer answers and dies.
                wait_until_idle(pids[0])
                os.kill(pids[0], signal.SIGKILL)
                wait_until_gone(pids[0])
            assert await asyncio.gather(*replies) == list(range(50))
        await died(mortals.slice(gpus=0).echo.call_one(1))


@pytest.mark.parametrize(
    ("endpoint", "argument", "kind", "code", "number"),
    [
        ("os_exit", 3, "exit", 3, None),
        ("exit", 4, "exit", 4, None),
        ("exit", "with a text", "exit", 1, None),
        ("kill", signal.SIGTERM, "signal", None, 15),
        ("segfault", None, "signal", None, 11),
    ],
)
@on_a_loop
async def test_how_it_ended_is_told(endpoint, argument, kind, code, number):
    async with this_host().spawn_procs() as procs:
        mortal = procs.spawn("mortal", Mortal)
        await mortal
        last = mortal.call_one(endpoint, *(() if argument is None else (argument,)))
        queued_behind = mortal.echo.call_one(1)
        error = await died(last)
        assert not isinstance(error, StoppedError)
        assert (error.failure.kind, error.failure.exit_code, error.failure.signal) == (kind, code, number)
        assert error.maybe_executed
        behind = await died(queued_behind)
        assert behind.failure is error.failure
        if argument == "with a text":
            assert "with a text" in error.failure.stderr


@on_a_loop
async def test_an_exit_with_code_0_is_no_failure_but_ends_the_calls():
    async with this_host().spawn_procs() as procs:
        mortal = procs.spawn("mortal", Mortal)
        error = await died(mortal.exit.call_one(0))
        assert (error.failure.kind, error.failure.exit_code) == ("exit", 0)
        assert (await procs.wait())[0].state == "stopped"
        await died(mortal.echo.call_one(1))


@on_a_loop
async def test_a_peer_that_does_not_own_the_dead_hears_too():
    async with this_host().spawn_procs({"gpus": 2}, supervise=handled) as procs:
        mortals = procs.spawn("mortals", Mortal)
        caller = procs.slice(gpus=0).spawn("caller", Caller)
        pids = await mortals.pid.call()
        calling = caller.ask.call_one(mortals.slice(gpus=1))
        await caller.has_asked.call_one()
        start = time.perf_counter()
        os.kill(pids[1], signal.SIGKILL)
        # Whether the call had begun when its receiver died is open: only that it was on its way is known.
        assert (await calling)[:3] == ("ActorDied", "signal", "procs[gpus=1]")
        assert time.perf_counter() - start < 0.5


class Caller(Actor):
    """Travels by value: its module is not there in procs."""

    def __init__(self):
        self.asked = asyncio.Event()

    @endpoint(concurrent=True)
    async def ask(self, mortal):
        reply = mortal.sleep.call_one(60)
        self.asked.set()
        try:
            await reply
        except ActorDied as error:
            return type(error).__name__, error.failure.kind, error.failure.name, error.maybe_executed
        return None

    @endpoint(concurrent=True)
    async def has_asked(self):
        await self.asked.wait()


@on_a_loop
async def test_also_who_does_not_own_a_proc_is_told_why_it_is_down():
    slow = Restart(limit=1, within_s=60, backoff_s=(20, 20))
    async with this_host().spawn_procs({"gpus": 2}, restart=slow) as procs:
        first, second = procs.spawn("mortals", Mortal)
        os.kill(await second.pid.call_one(), signal.SIGKILL)
        # The second time it is known to be down before anything is sent.
        for _ in range(2):
            error = await died(first.relay.call_one(second, "echo", 1))
            assert (error.failure.name, error.failure.signal) == ("procs[gpus=1]", signal.SIGKILL)
            assert not error.maybe_executed
