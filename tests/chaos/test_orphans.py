"""S5, S6. A driver, or any owner in the tree below it, is killed at any moment: nothing of what it had is left."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from leftovers import eventually, processes, stat
from loops import handled, on_a_loop

from roost import Actor, ActorDied, endpoint, this_host

GONE_WITHIN_S = 2.0
# While other work keeps the machine busy.
GONE_WITHIN_BUSY_S = 30.0
MARK = "ROOST_CHAOS_ROUND"


def marked(mark):
    """Processes that inherited this environment, the job's own mark included."""
    found = []
    for pid in processes():
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def start(folder, mark):
    environ = {**os.environ, MARK: mark, "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    program = [sys.executable, str(Path(__file__).with_name("driver_of_four.py"))]
    return subprocess.Popen(program, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def kill_and_time(driver, mark):
    """Seconds from the kill until no process is left."""
    begin = time.monotonic()
    driver.kill()
    driver.wait()
    driver.stdout.close()
    while left := marked(mark.encode()):
        assert time.monotonic() - begin < GONE_WITHIN_BUSY_S, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left]
        time.sleep(0.001)
    return time.monotonic() - begin


def paths_of_sockets():
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line.split()[7] for line in lines if len(line.split()) > 7]


def test_s5_nothing_is_left_of_a_killed_driver(rounds, promised, tmp_path):
    with_shared_memory = set(os.listdir("/dev/shm"))
    start_s, while_starting, while_up = 0.0, [], []
    for number in range(rounds(4, 1000)):
        mark = uuid.uuid4().hex
        begin = time.monotonic()
        driver = start(tmp_path, mark)
        if number % 2 == 0:
            # Up, with messages and shared memory in flight.
            assert driver.stdout.readline() == b"up\n"
            start_s = max(start_s, time.monotonic() - begin)
            time.sleep(random.uniform(0, 0.02))
            while_up.append(kill_and_time(driver, mark))
        else:
            time.sleep(random.uniform(0, start_s))
            while_starting.append(kill_and_time(driver, mark))
        assert eventually(lambda: set(os.listdir("/dev/shm")) <= with_shared_memory)
        assert os.listdir(tmp_path) == []
        assert not [path for path in paths_of_sockets() if str(tmp_path) in path]
    promised("all gone after a kill while it starts", while_starting, 100, GONE_WITHIN_S)
    promised("all gone after a kill while it works", while_up, 100, GONE_WITHIN_S)


class Owner(Actor):
    """Spawns owners in procs of their own, so many levels deep."""

    @endpoint
    async def grow(self, depth):
        """The process ids of itself and all below."""
        if depth == 0:
            return [os.getpid()]
        self.owned = this_host().spawn_procs({"below": 2}, name=f"level{depth}").spawn("owners", Owner)
        below = await self.owned.grow.call(depth - 1)
        return [os.getpid(), *(pid for pids in below for pid in pids)]


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_s6_what_a_killed_owner_owned_ends_at_any_depth_and_the_root_hears_once(rounds, promised):
    seconds = []
    for _ in range(rounds(1, 100)):
        told = []

        async def supervise(failure, told=told):
            told.append(failure)
            return True

        async with this_host().spawn_procs({"trees": 2}, supervise=supervise) as procs:
            first, second = procs.spawn("owners", Owner)
            doomed, others = await asyncio.gather(first.grow.call_one(2), second.grow.call_one(2))
            assert len(doomed) == len(others) == 7
            pending = first.grow.call_one(1)
            await asyncio.sleep(random.uniform(0, 0.05))
            begin = time.monotonic()
            os.kill(doomed[0], signal.SIGKILL)
            with pytest.raises(ActorDied) as caught:
                await pending
                await first.grow.call_one(0)
            gone = await asyncio.to_thread(
                eventually, lambda doomed=doomed: all(stat(pid) is None for pid in doomed), GONE_WITHIN_BUSY_S
            )
            seconds.append(time.monotonic() - begin)
            assert gone, [stat(pid) for pid in doomed]
            # Another tree has not lost a leaf.
            assert all(stat(pid) for pid in others)
            assert caught.value.failure.signal == signal.SIGKILL
        assert [(failure.name, failure.signal) for failure in told] == [("procs[trees=0]", signal.SIGKILL)]
    promised("all below a killed owner gone", seconds, 100, GONE_WITHIN_S)


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_s7_no_child_stays_a_zombie(rounds, promised, figures):
    """However procs end, and whatever their own children do."""
    ends = ["kill", "exit", "stop", "orphans"]
    seconds = []
    for number in range(rounds(4, 200)):
        end = ends[number % len(ends)]
        async with this_host().spawn_procs({"ranks": 2}, supervise=handled) as procs:
            parents = procs.spawn("parents", Parent)
            pids = [pid for pids in await parents.children.call() for pid in pids]
            begin = time.monotonic()
            if end == "stop":
                await procs.stop()
            elif end == "orphans":
                await parents.forget.call()
                await procs.stop()
            else:
                parents.end.broadcast(end)
                await procs.wait()
            gone = await asyncio.to_thread(eventually, lambda pids=pids: all(stat(pid) is None for pid in pids), 30.0)
            seconds.append(time.monotonic() - begin)
            assert gone, (end, [stat(pid) for pid in pids])
    figures(f"ended by {', '.join(ends)}")
    promised("no entry left, also not a defunct one", seconds, 100, 1.0)


class Parent(Actor):
    """Has children that nobody waits for."""

    @endpoint
    async def children(self):
        quick = subprocess.Popen(["true"])
        sleeping = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self.kept = [quick, sleeping]
        return [os.getpid(), quick.pid, sleeping.pid]

    @endpoint
    async def forget(self):
        """A child whose parent is gone: it is the job's to reap."""
        subprocess.run(["sh", "-c", "sleep 0.01 & sleep 1000 & exit 0"], check=True)

    @endpoint
    async def end(self, how):
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)
