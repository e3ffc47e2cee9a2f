"""Programs as users write them, each run as a script of its own: `python plain.py NAME`."""

import asyncio
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import typing
from typing import Generic, NewType, TypeVar

from roost import Accumulator, Actor, Channel, as_completed, context, endpoint, monitor, this_host
from roost.errors import BlockingWaitError, StoppedError


class Local(Actor):
    """Defined in `__main__`, which no proc imports again."""

    def __init__(self, function):
        self.function = function

    @endpoint
    async def apply(self, *args):
        return self.function(*args)

    @endpoint
    async def fail(self):
        raise LocalError(3)

    @endpoint
    async def count(self, stop):
        for number in range(stop):
            yield number

    @endpoint
    async def linger(self, seconds):
        await asyncio.sleep(seconds)
        return "lingered"

    @endpoint
    async def nest(self):
        procs = this_host().spawn_procs({"gpus": 2})
        return procs, await procs.spawn("nested", Local, self.function)


class Forking(Actor):
    """Its children are ended as a pool ends its workers."""

    @endpoint
    async def end_a_child(self):
        return await asyncio.to_thread(status_of_an_ended_child)

    @endpoint
    async def end_a_child_by_a_handler(self):
        signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
        return await asyncio.to_thread(status_of_an_ended_child)

    @endpoint
    async def end_itself_in_a_child(self):
        """How many ways to end the actor its child was refused."""
        pid = os.fork()
        if pid == 0:
            os._exit(sum(map(is_refused, (lambda: context().stop("child"), lambda: context().abort("child")))))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def status_of_an_ended_child():
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writable, b"1")
        while True:
            # A signal that comes between the interpreter's look for one and the call does not end a long sleep.
            time.sleep(0.05)
    os.read(readable, 1)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Broken(Actor):
    """As its argument says, its constructor or an endpoint fails."""

    def __init__(self, broken=False):
        if broken:
            raise LocalError(1)  # in the constructor

    @endpoint
    async def fail(self):
        raise LocalError(2)  # in an endpoint

    @endpoint
    def fail_on_a_thread(self):
        return max([0], key=lambda number: 1 // number)  # in a lambda


def fail_in_setup():
    raise LocalError(3)  # in setup


class LocalError(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code


def without_a_loop():
    """Everything that may wait is a reply, and a thread of Roost's drives the loop."""
    with this_host().spawn_procs({"gpus": 2}) as procs:
        mesh = procs.spawn("local", Local, lambda number: number * 2)
        mesh.ready().result(20)
        assert list(mesh.apply.call(4).result(20)) == [8, 8]
        one = mesh.slice(gpus=1)
        assert sorted(
            reply.result() for reply in as_completed([one.apply.call_one(n) for n in range(3)], timeout=20)
        ) == [0, 2, 4]
        mesh.apply.broadcast(1)
        slow = one.linger.call_one(60)
        try:
            slow.result(0.01)
        except TimeoutError:
            assert slow.cancel()
        assert one.apply.call_one(5).result(20) == 10
        failed = one.fail.call_one().exception(20)
        assert isinstance(failed, LocalError)
        assert failed.code == 3
        outcomes = asyncio.run_coroutine_threadsafe(mesh.apply.call(1).outcomes(), slow.get_loop()).result(20)
        assert list(outcomes) == [2, 2]
        assert context().actor_name == "driver"
        assert [state.state for state in mesh.states().result(20)] == ["up", "up"]
        assert mesh.stop("done").result(20) is None


Id = NewType("Id", int)
T = TypeVar("T", bound=LocalError)


class Holds(Generic[T]):
    """A class of `__main__` that names forms of `__main__`."""

    ids: list[Id]


def types_of_main():
    """What annotations are made of travels too, and is one and the same at home."""
    with this_host().spawn_procs() as procs:
        mesh = procs.spawn("local", Local, lambda *args: args)
        for value in (T, Id, list[T], dict[str, Id], Holds[T], typing.Callable[[Id], T]):
            assert mesh.apply.call_one(value).result(20) == (value,), value
        said = procs.spawn("said", Local, lambda kind: (Id(3), kind.__args__[0].__bound__ is LocalError))
        assert said.apply.call_one(list[T]).result(20) == (3, True)
        same = procs.spawn("same", Same)
        assert same.keep.call_one(list[T]).result(20) is None
        assert same.is_kept.call_one(list[T]).result(20)


class Same(Actor):
    @endpoint
    async def keep(self, value):
        self.value = value

    @endpoint
    async def is_kept(self, value):
        return self.value == value


def tracebacks_of_main():
    """They show this file and its lines, though procs have their code by value."""
    with this_host().spawn_procs() as procs:
        broken = procs.spawn("broken", Broken)
        endpoints = broken.fail.call_one().exception(20), broken.fail_on_a_thread.call_one().exception(20)
        said = [str(error.__cause__) for error in endpoints]
        died = procs.spawn("unborn", Broken, broken=True).fail.call_one().exception(20)
        said.append(str(died))
    unready = this_host().spawn_procs(setup=fail_in_setup, logs=False)
    said.append(str(unready.ready().exception(20)))
    where = ("in an endpoint", "in a lambda", "in the constructor", "in setup")
    for text, comment in zip(said, where, strict=True):
        assert f'File "{__file__}", line ' in text, text
        assert f"# {comment}" in text, text


def arguments_of_the_program():
    """A proc has them too, from its `setup` on: libraries and users' hooks read them."""
    sys.argv += ["--steps", "3"]
    wanted = list(sys.argv)

    def check():
        assert sys.argv == wanted, sys.argv

    for start in ("template", "exec", ["env", sys.executable]):
        with this_host().spawn_procs(start=start, setup=check) as procs:
            assert procs.spawn("local", Local, lambda: sys.argv).apply.call_one().result(20) == wanted


def in_a_removed_directory():
    """Procs start in /, and the log says so."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("roost").addHandler(handler)
    where = tempfile.mkdtemp()
    os.chdir(where)
    os.rmdir(where)
    with this_host().spawn_procs() as procs:
        assert procs.spawn("local", Local, os.getcwd).apply.call_one().result(20) == "/"
    with this_host().spawn_procs(start="exec") as procs:
        assert procs.spawn("local", Local, os.getcwd).apply.call_one().result(20) == "/"
    assert said == ["this program's working directory was removed: its procs start in /"] * 2, said


def whose_directory_goes():
    """A proc that starts again after its directory went starts in /."""
    where = tempfile.mkdtemp()
    os.chdir(where)
    with this_host().spawn_procs(logs=False) as procs:
        local = procs.spawn("local", Local, os.getcwd)
        assert local.apply.call_one().result(20) == os.path.realpath(where)
        os.rmdir(where)
        procs.restart().result(20)
        local.ready().result(20)
        assert local.apply.call_one().result(20) == "/"


def from_threads():
    """Verbs of any thread, each in the order of its thread."""
    with this_host().spawn_procs() as procs:
        mesh = procs.spawn("local", Local, lambda *args: args)
        got = []
        threads = [
            threading.Thread(target=lambda at=at: got.append(mesh.apply.call_one(at).result(20))) for at in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == [(at,) for at in range(8)]


def one_loop_after_the_other():
    """The second job begins when the first loop is closed."""

    async def main():
        async with this_host().spawn_procs() as procs:
            return await procs.spawn("local", Local, abs).apply.call_one(-3)

    assert [asyncio.run(main()) for _ in range(2)] == [3, 3]


def two_loops():
    """Another loop is refused while the first lives: in its own thread and in another."""
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def begin():
        procs = await this_host().spawn_procs()
        mesh = procs.spawn("local", Local, abs)
        assert await mesh.apply.call_one(-1) == 1
        return procs, mesh

    procs, mesh = first.run_until_complete(begin())

    async def use():
        refused = 0
        again = mesh.flatten("all")
        for act in (
            lambda: again.apply.call_one(-1),
            this_host().spawn_procs,
            lambda: again.apply.broadcast(1),
            Channel.open,
        ):
            try:
                act()
            except RuntimeError as error:
                refused += "another event loop" in str(error)
        return refused

    assert second.run_until_complete(use()) == 4
    refused = []
    thread = threading.Thread(target=lambda: refused.append(asyncio.run(use())))
    thread.start()
    thread.join()
    assert refused == [4], refused

    async def end():
        assert await mesh.apply.call_one(-2) == 2
        await procs.stop()

    first.run_until_complete(end())
    first.run_until_complete(first.shutdown_asyncgens())
    first.close()
    second.close()


def handles_of_an_ended_job():
    """They are refused, and start nothing that stands in the way of the next job."""

    async def main():
        procs = this_host().spawn_procs({"gpus": 2})
        mesh = procs.spawn("local", Local, abs)
        assert list(await mesh.apply.call(-1)) == [1, 1]
        nested = await mesh.slice(gpus=0).nest.call_one()
        assert list(await nested[1].apply.call(-1)) == [1, 1]
        port, receiver = Channel.open()
        return [(procs, mesh, port), (*nested, port)], receiver

    def refused(made):
        for one in made:
            refuse_all(*one)

    async def again(made):
        async with this_host().spawn_procs() as procs:
            refused(made)
            assert await procs.spawn("local", Local, abs).apply.call_one(-1) == 1

    for loop in (None, asyncio.new_event_loop()):
        if loop is None:
            made, receiver = asyncio.run(main())
        else:
            made, receiver = loop.run_until_complete(main())
            loop.close()
        refused(made)
        thread = threading.Thread(target=refused, args=(made,))
        thread.start()
        thread.join()
        assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
        asyncio.run(again(made))
        del receiver


def refuse_all(procs, mesh, port):
    one = mesh.slice(gpus=0)
    acts = (
        procs.stop, procs.states, procs.ready, procs.wait, procs.restart, procs.events, mesh.stop, mesh.states,
        procs.__enter__, lambda: procs.spawn("more", Local, abs), lambda: procs.get_or_spawn("service", Local, abs),
        lambda: mesh.apply.call(1), lambda: mesh.apply.broadcast(1), lambda: mesh.apply.choose(1), lambda: mesh.count.stream(1),
        lambda: one.apply.call_one(1), lambda: monitor(one), lambda: port.send(1),
        Accumulator(mesh.apply, 0, max).accumulate,
    )  # fmt: skip
    for at, act in enumerate(acts):
        try:
            done = act()
        except StoppedError:
            continue
        raise AssertionError(f"act {at} was not refused: {done}")


def forked():
    """A forked child gets an error from everything, and disturbs nothing of its parent's, also by what it drops."""

    async def main():
        async with this_host().spawn_procs() as procs:
            mesh = procs.spawn("local", Local, abs)
            stream, pending = mesh.count.stream(1000), mesh.linger.call_one(0.2)
            assert (await anext(stream))[1] == 0
            port, receiver = Channel.open()
            pid = os.fork()
            if pid == 0:
                os._exit(in_the_child(mesh, stream, pending, port, receiver))
            status = await asyncio.to_thread(os.waitpid, pid, 0)
            assert status[1] == 0, status
            assert [number async for _, number in stream] == list(range(1, 1000))
            assert await pending == "lingered"
            await port.send(1)
            assert await receiver.recv() == 1
            assert await procs.spawn("forking", Forking).end_itself_in_a_child.call_one() == 2
            assert list(await asyncio.gather(*(mesh.apply.call_one(-n) for n in range(50)))) == list(range(50))

    asyncio.run(main())


def is_refused(act):
    try:
        done = act()
    except RuntimeError as error:
        done = error
        if "forked" in str(error):
            return True
    print(f"not refused: {done}")
    return False


def in_the_child(mesh, stream, pending, port, receiver):
    acts = (
        lambda: mesh.apply.call_one(1), lambda: mesh.apply.broadcast(1), lambda: mesh.count.stream(1), lambda: mesh.apply.choose(1),
        this_host().spawn_procs, lambda: port.send(1), Channel.open, mesh.states, mesh.stop,
    )  # fmt: skip
    for at, act in enumerate(acts):
        if not is_refused(act):
            return 10 + at
    pending.cancel()
    del stream, receiver
    return 0


def ends_its_children():
    """A proc says where it was stuck when SIGTERM ends it; its children, who are the user's, say nothing."""

    async def main():
        async with this_host().spawn_procs() as procs:
            forking = procs.spawn("forking", Forking)
            assert await forking.end_a_child.call_one() == -signal.SIGTERM
            assert await forking.end_a_child_by_a_handler.call_one() == 3

    asyncio.run(main())


def blocking_on_the_loop():
    async def main():
        async with this_host().spawn_procs() as procs:
            reply = procs.spawn("local", Local, abs).apply.call_one(-1)
            try:
                reply.result()
            except BlockingWaitError:
                assert await reply == 1

    asyncio.run(main())


def leaves_calls_in_flight():
    """`main` returns without stopping anything."""

    async def main():
        mesh = this_host().spawn_procs({"gpus": 2}).spawn("local", Local, abs)
        await mesh
        main.stream = mesh.count.stream(10_000)
        await anext(main.stream)
        main.replies = [mesh.linger.call(60) for _ in range(100)]

    asyncio.run(main())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
