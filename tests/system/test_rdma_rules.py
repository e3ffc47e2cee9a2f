"""One set of rules for one-sided memory: each case on each way that bytes take, whoever owns and whoever reads."""

import asyncio

import memories
import nics
import pytest
import rules
from leftovers import leaving_nothing
from loops import Job, in_the_job

from roost import ProcessHosts, this_host, this_proc

PAIRS = ["proc_reads_proc", "driver_reads_proc", "proc_reads_driver", "proc_reads_itself"]


@pytest.fixture(scope="module", params=nics.WAYS)
def way(request):
    """A job whose memory is reached in one way."""
    library = request.getfixturevalue("nics_library") if request.param == "ibverbs" else {}
    with pytest.MonkeyPatch.context() as patch, leaving_nothing():
        patch.delenv("ROOST_RDMA", raising=False)
        for name, value in nics.forced(request.param, library).items():
            patch.setenv(name, value)
        with asyncio.Runner() as runner:
            Job.runner = runner
            yield request.param
        Job.runner = None


@pytest.fixture(scope="module")
def ends(way):
    """Procs that own and read, on one host or on two; the driver has the same host as the first."""

    async def start():
        if way == "between_hosts":
            hosts = ProcessHosts(2)
            mesh = await hosts.__aenter__()
            return hosts, await mesh.spawn_procs()
        return None, await this_host().spawn_procs({"hosts": 2}, env=nics.of_host)

    hosts, procs = Job.runner.run(start())
    yield procs
    Job.runner.run(ended(hosts or procs))


async def ended(what):
    await (what.__aexit__(None, None, None) if isinstance(what, ProcessHosts) else what.stop())


@pytest.fixture(scope="module", params=PAIRS)
def pair(request, way, ends):
    """(the owner, what runs a rule where the reader is)."""
    kind = "shared" if way == "shared" else "array"
    first, second, driver = ends.slice(hosts=0), ends.slice(hosts=1), this_proc()
    owned_by, read_by = {
        "proc_reads_proc": (first, second), "driver_reads_proc": (second, driver),
        "proc_reads_driver": (driver, second), "proc_reads_itself": (first, first),
    }[request.param]  # fmt: skip

    async def spawn():
        return await owned_by.spawn("owner", memories.Owner, kind), await read_by.spawn("reader", memories.Owner)

    owner, reader = Job.runner.run(spawn())
    yield owner, reader, request.param
    Job.runner.run(dropped(owner))


async def dropped(owner):
    await owner.drop_all.call_one()
    async with asyncio.timeout(5):
        while held(await owner.counts.call_one()):
            await asyncio.sleep(0.01)


def held(counts):
    return counts["regions"] or counts["leases_given"] or counts["transfers"]


@pytest.mark.timeout(nics.patient(60))
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
@in_the_job
async def test_rule(pair, rule):
    owner, reader, _ = pair
    await reader.run.call_one(rule, owner)


@in_the_job
async def test_the_way_is_told(pair, way):
    owner, reader, who = pair
    expected = {"shared": "same_host", "between_hosts": "tcp"}.get(way, way)
    if who == "proc_reads_itself" and way not in ("tcp", "ibverbs"):
        expected = "same_host"
    assert await reader.run.call_one(backend_after_a_read, owner) == expected


async def backend_after_a_read(owner):
    import numpy as np

    buffer = await owner.lend.call_one(100)
    await buffer.read_into(np.zeros(100, "u1"))
    return buffer.backend
