"""What does not start is named, at once, and stops its neighbours."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from loops import handled, on_a_loop, until
from mortal import Mortal

from roost import Actor, ActorDied, Config, MeshError, endpoint, run, this_host
from roost.errors import StoppedError

pytestmark = pytest.mark.usefixtures("nothing_left")


class Halting(Actor):
    async def __start__(self):
        await asyncio.sleep(0)
        raise KeyError("not here")

    @endpoint
    async def nothing(self):
        pass


def refuse(text):
    """A setup function that fails in one process only."""

    def setup():
        import os
        import sys

        print("about to fail", file=sys.stderr)
        if os.environ.get("FAILS"):
            raise RuntimeError(text)

    return setup


def fails_at(rank):
    return lambda point, _: {"FAILS": "1"} if point["gpus"] == rank else {}


@on_a_loop
async def test_a_setup_that_raises_names_the_rank_and_stops_the_others():
    start = time.perf_counter()
    with pytest.raises(ActorDied) as caught:
        async with this_host().spawn_procs({"gpus": 3}, name="workers", env=fails_at(1), setup=refuse("no such disk")):
            raise AssertionError("unreachable")
    assert time.perf_counter() - start < 8
    failure = caught.value.failure
    assert (failure.kind, failure.name, dict(failure.point)) == ("start", "workers[gpus=1]", {"gpus": 1})
    assert "no such disk" in failure.reason
    assert "about to fail" in failure.stderr
    assert "Traceback" in failure.stderr


@on_a_loop
async def test_the_others_are_stopped_and_say_why():
    procs = this_host().spawn_procs({"gpus": 3}, env=fails_at(1), setup=refuse("no such disk"), supervise=handled)
    mortals = procs.spawn("mortals", Mortal)
    pending = mortals.sleep.call(60)
    states = await procs.wait()
    assert [state.state for state in states] == ["stopped", "failed", "stopped"]
    assert "procs[gpus=1] did not start" in states[0].reason
    with pytest.raises(MeshError) as caught:
        await pending
    assert any(failure.kind == "start" for failure in caught.value.failures)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["/no/such/interpreter"], "/no/such/interpreter"),
        (["sh", "-c", "echo it is closed today >&2; exit 9"], "code 9"),
        (["true"], "code 0"),
    ],
)
@on_a_loop
async def test_a_command_that_is_no_interpreter_is_named(command, text):
    begin = time.perf_counter()
    with pytest.raises(ActorDied) as caught:
        await this_host().spawn_procs({"gpus": 2}, start=command, supervise=handled).ready()
    assert time.perf_counter() - begin < 8
    failure = caught.value.failures[0] if isinstance(caught.value, MeshError) else caught.value.failure
    assert failure.kind == "start"
    assert text in str(failure)
    assert command[0] in str(failure)
    if "9" in text:
        assert "it is closed today" in failure.stderr


@on_a_loop
async def test_a_constructor_that_raises_is_kind_error_in_ready_and_in_calls():
    async with this_host().spawn_procs({"gpus": 2}, name="workers") as procs:
        mortals = procs.options(supervise=handled).spawn("mortals", Mortal, "raise")
        early = mortals.echo.call(1)
        with pytest.raises(ActorDied) as caught:
            await mortals.slice(gpus=1).ready()
        failure = caught.value.failure
        assert (failure.kind, failure.name) == ("error", "mortals[gpus=1]")
        assert (failure.origin, failure.actor_class) == ("user", "mortal.Mortal")
        assert "the constructor said no" in failure.traceback
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(MeshError) as caught:
            await early
        assert caught.value.failures[0].kind == "error"
        with pytest.raises(MeshError) as caught:
            await mortals.echo.call(1)
        assert caught.value.failures[0].kind == "error"
        # Their processes live.
        assert list(await procs.spawn("others", Mortal).echo.call(3)) == [3, 3]


@on_a_loop
async def test_a_constructor_that_ends_its_process_is_the_procs_failure():
    async with this_host().spawn_procs(supervise=handled) as procs:
        mortal = procs.spawn("mortal", Mortal, "exit")
        with pytest.raises(ActorDied) as caught:
            await mortal.ready()
        assert (caught.value.failure.kind, caught.value.failure.exit_code) == ("exit", 7)


@on_a_loop
async def test_start_is_an_error_of_the_constructor_too():
    async with this_host().spawn_procs() as procs:
        halting = procs.options(supervise=handled).spawn("halting", Halting)
        with pytest.raises(ActorDied) as caught:
            await halting
        assert "(in its constructor)" in caught.value.failure.reason
        assert isinstance(caught.value.__cause__, KeyError)


@on_a_loop
async def test_use_after_a_stop_raises_from_the_verb():
    async with this_host().spawn_procs({"gpus": 2}) as procs:
        mortals = procs.spawn("mortals", Mortal)
        await mortals
        await mortals.stop("enough")
        one = mortals.slice(gpus=0)
        for verb in (mortals.echo.call, mortals.echo.broadcast, mortals.echo.stream, one.echo.call_one):
            with pytest.raises(StoppedError, match=r"mortals stopped: enough"):
                verb(1)
        others = procs.spawn("others", Mortal)
        await others
    with pytest.raises(StoppedError, match="its async with block ended"):
        others.echo.call(1)
    with pytest.raises(StoppedError):
        procs.spawn("late", Mortal).echo.call(1)


def test_a_template_that_stands_still_is_a_failed_start_and_holds_up_no_stop():
    async def main():
        async with this_host().spawn_procs() as procs:
            pid = await procs.spawn("mortal", Mortal).pid.call_one()
            template = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(template, signal.SIGSTOP)
            try:
                late = this_host().spawn_procs(name="late", supervise=handled)
                stopping = this_host().spawn_procs(name="stopped").stop("not needed")
                with pytest.raises(ActorDied, match="did not start within 6 s") as caught:
                    await late
                assert caught.value.failure.kind == "start"
                await stopping
            finally:
                os.kill(template, signal.SIGCONT)
            # What was made all the same was killed, and the next comes up.
            async with this_host().spawn_procs(name="next") as others:
                assert await others.spawn("mortal", Mortal).echo.call_one(1) == 1
            children = Path(f"/proc/{template}/task/{template}/children")
            await until(lambda: children.read_text().split() == [str(pid)])

    run(main(), config=Config(start_timeout_s=6))
