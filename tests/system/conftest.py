"""What every system test stands on: it leaves nothing behind."""

import asyncio
import gc
import os
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop

HERE = Path(__file__).parent
# Procs import modules that lie beside the tests.
sys.path.append(str(HERE))

from loops import Job  # noqa: E402
from working import Gate, Worker, forget_gates  # noqa: E402

from roost import this_host, this_proc  # noqa: E402

# Every process that a test starts inherits this variable, whatever becomes of its parents.
SESSION = f"ROOST_TEST_SESSION={uuid.uuid4().hex}"
os.environ.update([SESSION.split("=")])


def stat(pid):
    """State, parent and name of a process; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    state, parent, *_ = rest.split()
    return state, int(parent), name


def processes():
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def started_here():
    """Processes that tests of this session started, zombies of ours included."""
    found = {}
    for pid in processes():
        seen = stat(pid)
        if pid == os.getpid() or seen is None:
            continue
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            environ = []
        if SESSION.encode() in environ or (seen[0] == "Z" and seen[1] == os.getpid()):
            found[pid] = seen
    return found


def descriptors():
    """This process's descriptors, in the file tables of all its threads."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        for entry in (task / "fd").iterdir():
            try:
                found.add((task.name if task.name != str(os.getpid()) else "main", entry.name, os.readlink(entry)))
            except OSError:
                continue  # It was the one that lists them.
    return found


def eventually(condition, within_s=20.0):
    """Look until it is true; False when it never was."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


@contextmanager
def leaving_nothing():
    gc.collect()
    before = started_here(), descriptors(), set(os.listdir("/dev/shm"))
    yield
    gc.collect()
    eventually(lambda: not started_here().keys() - before[0].keys())
    left = {pid: seen for pid, seen in started_here().items() if pid not in before[0]}
    assert left == {}, "processes are left behind"
    eventually(lambda: not descriptors() - before[1])
    assert descriptors() - before[1] == set(), "descriptors are left open"
    assert set(os.listdir("/dev/shm")) == before[2], "shared memory is left behind"


@pytest.fixture
def nothing_left():
    """No process, no descriptor, no shared memory is left behind."""
    with leaving_nothing():
        yield


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def job(request):
    """One loop, and one job, for all tests of a module; on either kind of loop nothing of it is left behind."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with leaving_nothing():
        with asyncio.Runner(loop_factory=factory) as runner:
            Job.runner = runner
            yield runner
        Job.runner = None


@pytest.fixture(scope="module")
def procs(job):
    """Three procs for all tests of a module."""
    return job.run(spawned())


@pytest.fixture
def workers(procs):
    """A worker on each of them, new for each test."""
    mesh = procs.spawn("workers", Worker)
    yield mesh
    Job.runner.run(stopped(mesh))


@pytest.fixture
def worker(workers):
    return workers.slice(gpus=0)


@pytest.fixture
def gate(job):
    """Where workers wait, and tell: see `working.py`."""
    forget_gates()
    mesh = job.run(opened_gate())
    yield mesh
    job.run(stopped(mesh))


async def spawned():
    return await this_host().spawn_procs({"gpus": 3})


async def opened_gate():
    return await this_proc().spawn("gate", Gate)


async def stopped(mesh):
    await mesh.stop()
