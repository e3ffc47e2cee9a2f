"""Bad input: each raises at once, before anything is sent, says what was wrong and what to do, and everything else works on."""

# ruff: noqa: PLW0108 - what is refused is the whole of each line
import asyncio
import concurrent.futures
import functools
import math
import subprocess
import sys
import threading

import numpy as np
import pytest
from loops import in_the_job
from travelling import NeverPickles
from working import Worker

from roost import (
    Actor,
    Channel,
    Config,
    Probe,
    ProcessHosts,
    Restart,
    as_completed,
    configure,
    context,
    each,
    endpoint,
    handle,
    run,
    this_host,
    this_proc,
)
from roost.errors import MessageTooLargeError, StoppedError

pytestmark = pytest.mark.usefixtures("job")


def of_calls(workers):
    worker = workers.slice(gpus=0)
    return {
        # Arguments.
        "too few": (lambda: worker.add.call_one(), TypeError, r"Worker\.add\(a, b=10, \*, scale=1\): missing .* 'a'"),
        "too many": (lambda: worker.add.call_one(1, 2, 3), TypeError, "too many positional arguments"),
        "unknown keyword": (lambda: worker.add.call_one(1, c=2), TypeError, "unexpected keyword argument 'c'"),
        "twice": (lambda: worker.add.call_one(1, a=2), TypeError, "multiple values for argument 'a'"),
        "to a mesh": (lambda: workers.add.call(), TypeError, "missing a required argument"),
        "broadcast": (lambda: workers.note.broadcast(), TypeError, "missing a required argument"),
        "streamed": (lambda: workers.count.stream(), TypeError, "missing a required argument"),
        "chosen": (lambda: workers.add.choose(), TypeError, "missing a required argument"),
        "by class": (lambda: workers.call(Worker.add), TypeError, "missing a required argument"),
        "the port is Roost's": (lambda: worker.answer.call_one(1, port=2), TypeError, "argument"),
        # Values.
        "does not pickle": (
            lambda: worker.echo.call_one(NeverPickles()), TypeError, "argument 'value' of Worker.echo cannot be pickled: .*stays here",
        ),
        "a lock": (
            lambda: worker.add.call_one(1, scale=threading.Lock()), TypeError, "'scale' of Worker.add .*lock",
        ),
        "not awaited": (lambda: worker.echo.call_one(asyncio.Future()), TypeError, "a Future that was not awaited: await it first"),
        "a receiver": (lambda: worker.echo.call_one(Channel.open()[1]), TypeError, "a PortReceiver stays where its channel was opened"),
        "too many of each": (lambda: workers.echo.call(each([1, 2, 3, 4])), ValueError, r"each\(\) has 4 values for 3 ranks"),
        "too few of each": (lambda: workers.note.broadcast(each([1])), ValueError, r"each\(\) has 1 values for 3 ranks"),
        "each of no sequence": (lambda: workers.echo.call(each(3)), TypeError, r"each\(3\): give a sequence"),
        "no replies": (lambda: as_completed(workers.echo), TypeError, "as_completed.*: give a list of replies"),
        "each inside": (lambda: workers.echo.call([each([1, 2, 3])]), TypeError, r"each\(…\) must be an argument of a verb itself"),
        # Endpoints.
        "unknown": (lambda: worker.ad, AttributeError, "Worker has no endpoint 'ad'; it has: add, "),
        "unknown by name": (lambda: workers.call("ad", 1), AttributeError, "Worker has no endpoint 'ad'"),
        "undecorated": (lambda: worker.wait_at, AttributeError, "is not an endpoint: decorate it with @endpoint"),
        "undecorated by class": (lambda: workers.call(Worker.wait_at), (TypeError, AttributeError), "endpoint"),
        "of another class": (lambda: workers.call(Other.other), (TypeError, AttributeError), "'?other'?"),
        "no endpoint at all": (lambda: workers.call(3), TypeError, "3 is no endpoint: give Class.method or the method's name"),
        "a name of the mesh": (lambda: workers.call("stop"), (TypeError, AttributeError), "no endpoint 'stop'"),
        "called itself": (lambda: worker.add(1), TypeError, r"use one of its verbs: \.call"),
        "no verb": (lambda: worker.add.send(1), AttributeError, "has the verbs call, call_one, choose, stream, broadcast; not 'send'"),
        # Ranks.
        "call_one on many": (lambda: workers.add.call_one(1), ValueError, "call_one.* on 3 ranks of workers: slice the mesh to one rank"),
        "unknown dimension": (lambda: workers.slice(rows=0), ValueError, r"no dimension 'rows'; the mesh is \{'gpus': 3\}"),
        "out of range": (lambda: workers.slice(gpus=3), IndexError, "3 is outside dimension 'gpus', which has 3 places"),
        "empty": (lambda: workers.slice(gpus=slice(3, 9)), ValueError, "takes nothing of dimension 'gpus'"),
        "backwards": (lambda: workers.slice(gpus=slice(None, None, -1)), ValueError, "steps are positive"),
        "no number": (lambda: workers.slice(gpus="0"), TypeError, "must be a whole number, not '0'"),
        "uneven split": (lambda: workers.split(gpus=("a", "b"), b=2), ValueError, "do not divide"),
        "doubled by rename": (lambda: workers.split(gpus=("a", "b"), b=1).rename(a="b"), ValueError, "is there twice"),
        "unknown option": (lambda: worker.add.options(retries=3), TypeError, "retries"),
    }  # fmt: skip


def of_spawning(procs):
    host = this_host()
    return {
        "zero": (lambda: host.spawn_procs({"gpus": 0}), ValueError, "dimension 'gpus' has size 0; every size is at least 1"),
        "negative": (lambda: host.spawn_procs({"gpus": -2}), ValueError, "has size -2"),
        "no number": (lambda: host.spawn_procs({"gpus": 1.5}), TypeError, "must be a whole number, not 1.5"),
        "a flag": (lambda: host.spawn_procs({"gpus": True}), TypeError, "must be a whole number, not True"),
        "no name": (lambda: host.spawn_procs({"a b": 1}), ValueError, "'a b' cannot name a dimension"),
        "not a mapping": (lambda: host.spawn_procs(4), TypeError, r'\{"gpus": 4\}'),
        "unknown keyword": (lambda: host.spawn_procs({"gpus": 1}, respawn=1), TypeError, "respawn"),
        "no policy": (lambda: host.spawn_procs({"gpus": 1}, restart=3), TypeError, r"give a roost\.Restart"),
        "a channel of none": (lambda: Channel.open(limit=0), ValueError, "limit=0 is below 1; a channel holds at least one"),
        "a channel of a half": (lambda: Channel.open(limit=1.5), TypeError, "limit must be a whole number, not 1.5"),
        "a channel of no number": (lambda: Channel.open(limit=math.nan), TypeError, "limit must be a whole number, not nan"),
        "a channel of a text": (lambda: Channel.open(limit="9"), TypeError, "limit must be a whole number, not '9'"),
        "a channel without senders": (lambda: Channel.open(senders=0), ValueError, "senders=0 is below 1; a channel has at least one"),
        "a channel of many senders": (lambda: Channel.open(senders=None), TypeError, "senders must be a whole number"),
        "too many agents": (lambda: ProcessHosts(1 << 70), ValueError, "each is a process on this machine"),
        "a policy without restarts": (lambda: Restart(limit=0), ValueError, "limit=0 is below 1; leave restart= out"),
        "a negative limit": (lambda: Restart(limit=-1), ValueError, "limit=-1 is below 1"),
        "a window of nothing": (lambda: Restart(within_s=0), ValueError, "within_s=0 must be greater than 0; give the seconds"),
        "a negative pause": (lambda: Restart(backoff_s=(-1, 1)), ValueError, "backoff_s=-1 is below 0"),
        "a name that is a number": (lambda: host.spawn_procs(name=3), TypeError, "name=3 must be a str"),
        "half a character": (lambda: host.spawn_procs(name="\ud800"), ValueError, "surrogates"),
        "a place for logs": (lambda: host.spawn_procs(logs="here"), TypeError, "True or False"),
        "no such scope": (lambda: Restart(scope="some"), ValueError, "'one', 'all', 'rest'"),
        "negative spares": (lambda: host.spawn_procs(restart=Restart(), spares=-1), ValueError, "spares=-1 is below 0; 0 keeps none"),
        "a flag of spares": (lambda: host.spawn_procs(restart=Restart(), spares=True), TypeError, "must be a whole number"),
        "spares of nothing": (lambda: host.spawn_procs(spares=2), ValueError, r"spares=2 .* give restart=Restart\(…\) too"),
        "spares that start as a function says": (
            lambda: host.spawn_procs(restart=Restart(), spares=1, start=lambda point, life: "exec"), ValueError, "start= as a value",
        ),
        "spares that would be executed as a rank": (
            lambda: host.spawn_procs(restart=Restart(), spares=1, start="exec", gpus_per_proc=1), ValueError, "need the template",
        ),
        "a hook that is not async": (
            lambda: host.spawn_procs(supervise=lambda failure: True), TypeError, "give an `async def` that takes a failure",
        ),
        "a hook of actors that is not async": (
            lambda: procs.options(supervise=print).spawn("w", Worker), TypeError, "give an `async def` that takes a failure",
        ),
        "an actor's hook that is not async": (lambda: with_a_plain_hook(), TypeError, r"__supervise__ must be `async def`"),
        "one preload that is not in a list": (
            lambda: host.spawn_procs(preload="torch"), TypeError, r"preload='torch': give a list of names.*preload=\[\"torch\"\]",
        ),
        "a preload that is the module": (
            lambda: host.spawn_procs(preload=[threading]), TypeError, "<module 'threading'.* is no name of a module: give names",
        ),
        "no preloads": (lambda: host.spawn_procs(preload=None), TypeError, "preload=None: give a list"),
        "a CPU as bind": (lambda: host.spawn_procs(bind=0), TypeError, r"bind=0: give a roost.Bind\(cpus="),
        "a function that gives a CPU": (lambda: host.spawn_procs(bind=lambda point, life: 3), TypeError, r"bind=3: give a roost.Bind"),
        "no environment": (lambda: host.spawn_procs(env="A=1"), TypeError, "env='A=1' for procs: give a mapping of names"),
        "devices by name": (lambda: host.spawn_procs(gpus_per_proc="all"), TypeError, "gpus_per_proc must be a whole number"),
        **{
            f"{what} of the point alone": (
                lambda what=what: host.spawn_procs(**{what: lambda point: None}), TypeError,
                rf"{what}= is called with \(point, incarnation\), and .*<lambda>\(point\) does not take that: too many",
            ) for what in ("env", "bind", "start")
        },
        "setup by name": (lambda: host.spawn_procs(setup="x"), TypeError, "setup='x': give a function without arguments"),
        "setup with an argument": (
            lambda: host.spawn_procs(setup=lambda rank: None), TypeError, r"setup= is called without arguments, and .*missing .*'rank'",
        ),
        "an empty command": (lambda: host.spawn_procs(start=[]), ValueError, r"start=\[\]: give .*template.* or a command"),
        "a function that gives no start": (
            lambda: host.spawn_procs(start=lambda point, life: "cold"), ValueError, "start='cold': give",
        ),
        "no start": (lambda: host.spawn_procs({"gpus": 1}, start="cold"), ValueError, "start='cold'.*template.*exec"),
        "setup": (
            lambda: host.spawn_procs(setup=functools.partial(print, NeverPickles())), (TypeError, RuntimeError), "stays here",
        ),
        "per_proc zero": (lambda: procs.options(per_proc={"envs": 0}).spawn("w", Worker), ValueError, "'envs' has size 0"),
        "doubled dimension": (lambda: procs.options(per_proc={"gpus": 2}).spawn("w", Worker), ValueError, "'gpus' is there twice"),
        "unknown option": (lambda: procs.options(retries=3), TypeError, "knows no retries; it takes restart, probe, per_proc"),
        "no actor": (lambda: procs.spawn("w", dict), TypeError, "give a class that derives from roost.Actor"),
        "an instance": (lambda: procs.spawn("w", 3), TypeError, "give a class that derives from roost.Actor"),
        "no name of a mesh": (lambda: procs.spawn(Worker, Worker), TypeError, "the first argument is the mesh's name"),
        "constructor's arguments": (lambda: procs.spawn("o", Other, 1, 2), TypeError, r"Other\(size.*: too many positional"),
        "constructor's keyword": (lambda: procs.spawn("o", Other, shape=1), TypeError, "'shape'"),
        "an argument that does not pickle": (lambda: procs.spawn("w", Worker, NeverPickles()), (TypeError, RuntimeError), "stays here"),
        "a class that does not pickle": (lambda: procs.spawn("w", holds_a_lock()), TypeError, "lock"),
        "a probe that is none": (lambda: procs.options(probe=3).spawn("w", Worker), TypeError, r"give a roost\.Probe"),
        "a probe of nothing": (lambda: procs.options(probe=Probe(period_s=1)).spawn("w", Worker), TypeError, "__healthy__, which is not"),
        "a cleanup for ever": (
            lambda: procs.options(cleanup_timeout_s=math.inf).spawn("w", Worker), ValueError, "is not finite",
        ),
        "a cleanup of no time": (
            lambda: procs.options(cleanup_timeout_s=-1).spawn("w", Worker), ValueError, "is below 0",
        ),
        "a cleanup of a text": (
            lambda: procs.options(cleanup_timeout_s="x").spawn("w", Worker), TypeError, "must be a number",
        ),
        "a policy that is none": (lambda: procs.options(restart=3).spawn("w", Worker), TypeError, r"give a roost\.Restart"),
    }  # fmt: skip


class Other(Actor):
    def __init__(self, size=1):
        self.size = size

    @endpoint
    async def other(self):
        return 1


def with_a_plain_hook():
    class Hasty(Actor):
        def __supervise__(self, failure):
            return True

    return Hasty


def holds_a_lock():
    lock = threading.Lock()

    class Held(Actor):
        kept = lock

        @endpoint
        async def use(self):
            return lock

    return Held


async def refused(act, error, text):
    with pytest.raises(error, match=text):
        act()


@pytest.mark.parametrize("case", of_calls(type("Any", (), {"slice": lambda self, **_: None})()))
@in_the_job
async def test_a_call(workers, case):
    await refused(*of_calls(workers)[case])
    assert list(await workers.notes.call()) == [["started"]] * 3, "nothing was sent"
    assert list(await workers.add.call(1)) == [11] * 3


@pytest.mark.parametrize("case", of_spawning(None))
@in_the_job
async def test_a_spawn(procs, case):
    from roost import process

    before = set(process.running().owned)
    await refused(*of_spawning(procs)[case])
    assert set(process.running().owned) == before, "nothing was begun"
    other = await procs.spawn("other", Other)
    assert list(await other.other.call()) == [1] * 3
    await other.stop()


class TestTooLarge:
    def test_it_names_size_limit_and_setting_and_the_next_one_works(self):
        # Limits are of a whole job, so this is a program of its own.
        done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


class TestNotAwaited:
    @in_the_job
    async def test_a_reply_is_not_iterated(self, workers):
        with pytest.raises(TypeError, match="a reply is awaited, and what it gives is iterated"):
            for _ in workers.add.call(1):
                pass


class TestAfterTheStop:
    @in_the_job
    async def test_verbs_raise_and_say_why(self, procs, workers):
        mesh = procs.spawn("stopped", Worker)
        step = mesh.add
        await mesh.add.call(1)
        await mesh.stop("no longer needed")
        for verb in (step.call, step.choose, step.stream, step.broadcast, mesh.slice(gpus=0).add.call_one):
            with pytest.raises(StoppedError, match="stopped: no longer needed") as caught:
                verb(1)
            assert caught.value.failure.kind == "stopped"
        with pytest.raises(StoppedError, match="spawn a new one"):
            mesh.restart()
        stopping = procs.spawn("stopping", Worker)
        ends = stopping.stop("on its way out")
        with pytest.raises(StoppedError, match=r"on its way out.*spawn a new one"):
            stopping.restart()
        await ends
        assert [state.state for state in await mesh.states()] == ["stopped"] * 3
        await mesh.stop("again")
        assert list(await workers.add.call(1)) == [11] * 3

    @in_the_job
    async def test_so_does_the_restart_of_ranks_that_are_being_stopped(self, procs):
        mesh = procs.spawn("halted", Worker)
        first = mesh.slice(gpus=0)
        await mesh.add.call(1)
        ends = first.stop("on its way out")
        for stopping in (first, mesh):
            with pytest.raises(StoppedError, match=r"halted\[gpus=0\].* is being stopped; await that, then restart it"):
                stopping.restart()
        await ends
        await first.restart()
        assert list(await mesh.add.call(1)) == [11] * 3
        await mesh.stop()

    @in_the_job
    async def test_of_procs_too(self):
        async with this_host().spawn_procs() as procs:
            mesh = await procs.spawn("w", Worker)
        with pytest.raises(StoppedError, match="stopped"):
            mesh.add.call(1)
        with pytest.raises(StoppedError, match="stopped"):
            procs.spawn("w", Worker)


class TestWrongPlace:
    @in_the_job
    async def test_context_and_handle_outside_actors(self):
        assert context().actor_name == "driver"
        assert (dict(context().point), context().incarnation, context().mesh) == ({}, 0, None)
        with pytest.raises(RuntimeError, match="in the driver, stop the mesh instead"):
            context().stop()
        with pytest.raises(RuntimeError, match="inside the actor's own"):
            handle(Other())

    @in_the_job
    async def test_spawning_in_a_thread_of_ones_own(self, worker):
        with pytest.raises(RuntimeError, match="thread"):
            await worker.make.call_one(spawn_in_a_thread)
        assert await worker.add.call_one(1) == 11

    @in_the_job
    async def test_a_mesh_that_another_process_owns(self, workers):
        first, second, _ = workers
        with pytest.raises(RuntimeError, match="workers is owned by another process; only its owner may"):
            await first.make.call_one(stop_it, second)

    @in_the_job
    async def test_with_on_the_loop(self, procs):
        with pytest.raises(RuntimeError, match="async with"), procs:
            pass

    @in_the_job
    async def test_configure_and_run_after_the_start(self):
        with pytest.raises(RuntimeError, match="call it before spawning anything"):
            configure(grace_s=1)
        coroutine = asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="await the program there"):
            run(coroutine)

    def test_run_with_a_hook_that_is_not_async(self):
        coroutine = asyncio.sleep(0)
        with pytest.raises(TypeError, match="give an `async def` that takes a failure"):
            run(coroutine, supervise=print)
        assert coroutine.cr_frame is None, "it was closed"


def spawn_in_a_thread():
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return pool.submit(lambda: this_proc().spawn("w", Other)).result()


def stop_it(mesh):
    mesh.stop()


def too_large():
    async def main():
        async with this_host().spawn_procs() as procs:
            worker = procs.spawn("worker", Worker)
            for value in (b"x" * (1 << 20), np.zeros(1 << 20, np.uint8), "x" * (1 << 20), [0] * (1 << 20)):
                with pytest.raises(
                    MessageTooLargeError, match=r"passes the limit of 1000000.*configure\(message_bytes_max=…\)"
                ) as caught:
                    worker.echo.call_one(value)
                assert caught.value.size > caught.value.limit == 1_000_000
                assert caught.value.setting == "message_bytes_max"
                with pytest.raises(MessageTooLargeError):
                    worker.note.broadcast(value)
                with pytest.raises(MessageTooLargeError):
                    procs.spawn("worker", Worker, value)
            # An answer that is too large is its caller's error.
            with pytest.raises(MessageTooLargeError, match="passes the limit of 1000000"):
                await worker.make.call_one(bytes, 1 << 20)
            port, receiver = Channel.open()
            with pytest.raises(MessageTooLargeError):
                port.send(bytes(1 << 20))
            await port.send(1)
            assert await receiver.recv() == 1
            assert await worker.add.call_one(1) == 11

    run(main(), config=Config(message_bytes_max=1_000_000))
    print("done")


if __name__ == "__main__":
    too_large()
