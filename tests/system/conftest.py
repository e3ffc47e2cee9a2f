"""What every system test stands on: it leaves nothing behind."""

import asyncio

import pytest
import uvloop
from leftovers import leaving_nothing
from loops import Job
from working import Gate, Worker, forget_gates

from roost import ProcessHosts, this_host, this_proc


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
def procs(job, request):
    """Three procs for all tests of a module; with `--on-hosts` each on a host of its own."""
    if not request.config.getoption("--on-hosts"):
        yield job.run(spawned(this_host(), {"gpus": 3}))
        return
    hosts = ProcessHosts(3)
    mesh = job.run(hosts.__aenter__())
    yield job.run(spawned(mesh.rename(hosts="gpus"), {}))
    job.run(hosts.__aexit__(None, None, None))


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


async def spawned(hosts, per_host):
    return await hosts.spawn_procs(per_host)


async def opened_gate():
    return await this_proc().spawn("gate", Gate)


async def stopped(mesh):
    await mesh.stop()
