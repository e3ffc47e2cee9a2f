"""Stopping: in order, bounded, idempotent, with a reason that can be read."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from loops import handled, on_a_loop, process_state, until
from mortal import Mortal

from roost import Actor, ActorDied, Config, MeshError, ProcessHosts, context, endpoint, this_host, this_proc
from roost.config import using
from roost.errors import StoppedError

pytestmark = pytest.mark.usefixtures("nothing_left")

MIB = 1 << 20


class Tidy(Actor):
    """Writes down what happens to it."""

    def __init__(self, path, name="tidy", cleanup_s=0.0):
        self.path = path
        self.name = name
        self.cleanup_s = cleanup_s

    def write(self, text):
        with open(self.path, "a") as file:
            file.write(f"{self.name} {text}\n")

    @endpoint
    async def work(self):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.write("cancelled")
            raise

    @endpoint(concurrent=True)
    async def beside(self):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.write("beside cancelled")
            raise

    @endpoint
    def in_thread(self, seconds):
        time.sleep(seconds)
        self.write("thread done")

    @endpoint
    async def stubborn(self, seconds):
        self.write("began")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                self.write("not yet")

    @endpoint
    async def fail(self):
        raise ValueError("its own fault")

    async def __cleanup__(self, exc):
        self.write(f"cleanup of {context().actor_name} after {exc!r}")
        await asyncio.sleep(self.cleanup_s)
        self.write("clean")


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


@on_a_loop
async def test_running_endpoints_are_cancelled_and_queued_ones_go_back(tmp_path):
    path = tmp_path / "log"
    async with this_host().spawn_procs() as procs:
        tidy = procs.spawn("tidy", Tidy, str(path))
        await tidy
        beside = tidy.beside.call_one()
        running = tidy.work.call_one()
        queued = tidy.work.call_one()
        await asyncio.sleep(0.2)
        start = time.perf_counter()
        await tidy.stop("enough")
        assert time.perf_counter() - start < 2
        for reply, executed in ((running, True), (beside, True), (queued, False)):
            with pytest.raises(StoppedError, match="enough") as caught:
                await reply
            assert caught.value.maybe_executed is executed or reply is running
        assert lines(path)[-2:] == ["tidy cleanup of tidy after None", "tidy clean"]
        assert "tidy beside cancelled" in lines(path)
        # The process lives.
        assert await procs.spawn("other", Mortal).echo.call_one(1) == 1


@on_a_loop
async def test_actors_stop_in_the_reverse_order_of_their_start(tmp_path):
    path = tmp_path / "log"
    async with this_host().spawn_procs() as procs:
        for name in ("first", "second", "third"):
            await procs.spawn(name, Tidy, str(path), name)
    assert [line for line in lines(path) if line.endswith("clean")] == ["third clean", "second clean", "first clean"]


@on_a_loop
async def test_cleanup_hears_how_the_actor_failed(tmp_path):
    path = tmp_path / "log"
    async with this_host().spawn_procs(supervise=handled) as procs:
        tidy = procs.options(supervise=handled).spawn("tidy", Tidy, str(path))
        tidy.fail.broadcast()
        assert (await tidy.wait())[0].state == "failed"
        await tidy.stop()
    assert lines(path) == ["tidy cleanup of tidy after ValueError('its own fault')", "tidy clean"]


@on_a_loop
async def test_cleanup_has_a_time_limit(tmp_path):
    path = tmp_path / "log"
    start = time.perf_counter()
    async with this_host().spawn_procs() as procs:
        await procs.options(cleanup_timeout_s=0.2).spawn("slow", Tidy, str(path), "slow", 60)
        await procs.spawn("quick", Tidy, str(path), "quick")
    assert time.perf_counter() - start < 6
    assert "slow clean" not in lines(path)
    assert lines(path)[0].startswith("quick cleanup")


@on_a_loop
async def test_the_grace_is_for_threads(tmp_path):
    path = tmp_path / "log"
    async with this_host().spawn_procs() as procs:
        tidy = procs.spawn("tidy", Tidy, str(path))
        await tidy
        running = tidy.in_thread.call_one(1.0)
        await asyncio.sleep(0.2)
    with pytest.raises(ActorDied):
        await running
    assert lines(path) == ["tidy thread done", "tidy cleanup of tidy after None", "tidy clean"]


@pytest.mark.slow
@on_a_loop
async def test_a_stop_is_over_in_time_whatever_its_procs_do(tmp_path, caplog):
    """Blocked in C, holding the GIL, deaf to SIGTERM, never giving in."""
    procs = this_host().spawn_procs({"gpus": 4})
    mortals = procs.spawn("mortals", Mortal)
    tidies = procs.spawn("tidies", Tidy, str(tmp_path / "log"))
    pids = await mortals.pid.call()
    stuck = [
        mortals.slice(gpus=0).block_loop.call_one(60),
        mortals.slice(gpus=1).hold_gil.call_one(60),
        mortals.slice(gpus=2).deaf.call_one(60),
        tidies.slice(gpus=3).stubborn.call_one(60),
    ]
    await asyncio.sleep(0.5)
    start = time.perf_counter()
    await procs.stop("too long")
    assert time.perf_counter() - start < 8 + 3
    for reply in stuck:
        with pytest.raises(StoppedError, match="too long"):
            await reply
    # Its memory is free too, and what it held of other devices.
    assert all(process_state(pid) in "XZ" for pid in pids)
    # Who had to be ended by SIGTERM has told where it was stuck, the GIL held or not.
    states = await procs.states()
    assert [state.failure.signal for state in states] == [15, 15, 9, 15]
    assert "in block_loop" in states[0].failure.stderr
    assert "in hold_gil" in states[1].failure.stderr
    ended = [record.message for record in caplog.records if "did not end by itself" in record.message]
    assert len(ended) == 4


@on_a_loop
async def test_who_is_killed_by_others_while_it_stops_was_not_stuck(tmp_path, caplog):
    procs = this_host().spawn_procs()
    tidy = procs.spawn("tidy", Tidy, str(tmp_path / "log"))
    await tidy.ready()
    pid = (await procs.states()).item().pid
    tidy.stubborn.broadcast(60)
    await until(lambda: "tidy began" in lines(tmp_path / "log"))
    stopping = asyncio.ensure_future(procs.stop("enough"))
    await until(lambda: "tidy not yet" in lines(tmp_path / "log"))
    os.kill(pid, signal.SIGKILL)
    await stopping
    state = (await procs.states()).item()
    assert (state.state, state.reason, state.failure.signal) == ("stopped", "enough", signal.SIGKILL)
    assert "did not end by itself" not in caplog.text


@on_a_loop
async def test_who_holds_the_gil_delays_the_stop_of_nobody_else():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        mortals = procs.spawn("mortals", Mortal)
        await mortals.pid.call()
        stuck = mortals.slice(gpus=0).hold_gil.call_one(4)
        await asyncio.sleep(0.2)
        start = time.perf_counter()
        await procs.slice(gpus=1).stop("enough")
        assert time.perf_counter() - start < 3
        assert not stuck.done()
        assert await stuck == "held"


class Giver(Actor):
    @endpoint
    async def give(self, path, size):
        with open(path, "w"):
            pass
        time.sleep(0.3)  # the stop comes meanwhile
        return bytes(size)


@on_a_loop
async def test_an_answer_that_was_made_arrives_however_busy_its_caller_is(tmp_path):
    # What is in shared memory is mapped only once this loop turns again.
    async with ProcessHosts(1) as hosts:
        for name, place in (("here", this_host()), ("there", hosts)):
            procs = place.spawn_procs()
            giver = procs.spawn("giver", Giver)
            await giver
            answer = giver.give.call_one(str(tmp_path / name), 32 * MIB)
            await until(lambda begun=tmp_path / name: begun.exists())
            stopped = asyncio.create_task(procs.stop())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            time.sleep(1)
            assert len(await answer) == 32 * MIB
            await stopped


class Parting(Actor):
    """Says something at its end, to one that it has never spoken with."""

    def __init__(self, to):
        self.to = to

    async def __cleanup__(self, exc):
        self.to.note.broadcast(bytes(MIB))


class Heir(Actor):
    def __init__(self):
        self.noted = 0

    @endpoint
    async def note(self, words):
        self.noted += len(words)

    @endpoint
    async def all(self):
        return self.noted


@on_a_loop
async def test_last_words_reach_one_that_was_never_spoken_with():
    async with ProcessHosts(2) as hosts, this_host().spawn_procs() as near, hosts.slice(hosts=0).spawn_procs() as far:
        for place, other in ((this_host(), near), (hosts.slice(hosts=1), far)):
            heir = other.spawn("heir", Heir)
            await heir.all.call_one()
            procs = place.spawn_procs()
            await procs.spawn("parting", Parting, heir)
            await procs.stop()
            assert await heir.all.call_one() == MIB


@on_a_loop
async def test_stop_is_idempotent_and_its_first_reason_stays():
    procs = this_host().spawn_procs({"gpus": 2})
    mortals = procs.spawn("mortals", Mortal)
    await mortals
    await asyncio.gather(procs.stop("first"), procs.stop("second"), mortals.stop("third"))
    await procs.stop("fourth")
    assert [state.reason for state in await procs.states()] == ["first", "first"]
    assert [state.state for state in await mortals.states()] == ["stopped", "stopped"]
    with pytest.raises(StoppedError, match="first"):
        await procs.slice(gpus=1).ready()


@on_a_loop
async def test_stop_works_on_a_failed_mesh():
    procs = this_host().spawn_procs({"gpus": 2}, supervise=handled)
    mortals = procs.spawn("mortals", Mortal)
    pids = await mortals.pid.call()
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(MeshError):
        await mortals.sleep.call(60)
    await mortals.stop("it failed")
    await procs.stop("it failed")
    states = await procs.states()
    assert [state.state for state in states] == ["failed", "stopped"]
    assert states[0].failure.signal == 9
    assert states[1].reason == "it failed"


@on_a_loop
async def test_part_of_a_mesh_may_be_stopped():
    async with this_host().spawn_procs({"gpus": 3}) as procs:
        mortals = procs.spawn("mortals", Mortal)
        await mortals
        await procs.slice(gpus=1).stop("not needed")
        assert [state.state for state in await procs.states()] == ["up", "stopped", "up"]
        with pytest.raises(MeshError) as caught:
            await mortals.echo.call(1)
        assert isinstance(caught.value.exceptions[0], StoppedError)
        assert "not needed" in str(caught.value.exceptions[0])
        await mortals.slice(gpus=2).stop("nor this")
        assert [state.state for state in await mortals.states()] == ["up", "stopped", "stopped"]
        with pytest.raises(StoppedError, match="nor this"):
            await mortals.slice(gpus=2).echo.call_one(1)
        assert await mortals.slice(gpus=0).echo.call_one(1) == 1


@on_a_loop
async def test_an_actor_may_stop_or_abort_itself():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        mortals = procs.options(supervise=handled).spawn("mortals", Mortal)
        assert await mortals.slice(gpus=0).stop_self.call_one("done with it") == "stopping"
        assert await mortals.slice(gpus=1).abort_self.call_one("cannot go on") == "aborting"
        states = await mortals.wait()
        assert [(state.state, state.reason) for state in states] == [
            ("stopped", "done with it"),
            ("failed", "RuntimeError: cannot go on (in abort())"),
        ]
        assert (states[1].failure.kind, states[1].failure.origin) == ("error", "user")
        with pytest.raises(StoppedError, match="done with it"):
            await mortals.slice(gpus=0).echo.call_one(1)
        with pytest.raises(ActorDied, match="cannot go on"):
            await mortals.slice(gpus=1).echo.call_one(1)


@on_a_loop
async def test_actors_of_the_driver_itself_stop_too(tmp_path):
    path = tmp_path / "log"
    async with this_proc().spawn("tidy", Tidy, str(path)) as tidy:
        running = tidy.work.call_one()
        await asyncio.sleep(0)
    with pytest.raises(StoppedError):
        await running
    assert lines(path) == ["tidy cancelled", "tidy cleanup of tidy after None", "tidy clean"]


class Owning(Actor):
    """Owns a proc that only a signal ends."""

    @endpoint
    async def own(self):
        mortal = this_host().spawn_procs().spawn("mortal", Mortal)
        await mortal
        mortal.block_loop.broadcast(60)
        # A stop would overtake it.
        while not (await mortal.states())[0].running:
            await asyncio.sleep(0.001)


def test_one_that_only_waits_for_what_it_owns_is_not_said_to_run_an_endpoint(caplog):
    async def program():
        own = this_proc().spawn("own", Owning)
        await own.own.call_one()
        await own.stop("enough")

    with using(Config(grace_s=0.3, sigterm_s=0.5)):
        asyncio.run(program())
    said = [record.getMessage() for record in caplog.records if "told to stop" in record.getMessage()]
    assert said == ["own was told to stop (enough), but it still waits for meshes that it owns to stop"]


class Replacing(Actor):
    """Has a replacement for what fails, also while it ends itself."""

    def __init__(self, path):
        self.path = path

    async def __supervise__(self, _failure):
        self.stop_begins.set()
        await asyncio.sleep(0.2)
        Path(self.path).write_text(str(await this_host().spawn_procs().spawn("again", Mortal).pid.call_one()))
        return True

    @endpoint
    async def own(self):
        self.stop_begins = asyncio.Event()
        below = await this_host().spawn_procs().spawn("below", Tidy, self.path + ".log", cleanup_s=1.5)
        failing = this_proc().spawn("failing", Mortal)
        await failing
        failing.boom.broadcast()
        await self.stop_begins.wait()
        return below


@on_a_loop
async def test_what_a_hook_spawns_while_its_actor_ends_ends_with_it(tmp_path):
    path = tmp_path / "pid"
    async with this_host().spawn_procs() as procs:
        owner = procs.spawn("owner", Replacing, str(path))
        await owner.own.call_one()
        await owner.stop()
        assert process_state(int(path.read_text())) in "XZ"
