"""Replicas on several hosts, one of which is lost: they move."""

import pytest
from runs import ran, trained

from roost import ProcessHosts
from roost.ft import EveryStep

pytest.importorskip("torch")

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


async def test_a_lost_hosts_replicas_move_to_a_spare_one(figures):
    async def plan(job, failures):
        await trained(job, 2)
        failures.inject("host agent", replica=1)
        await trained(job, 2)

    agents = ProcessHosts(3)
    async with agents as hosts, ran(plan, replicas=2, sync=EveryStep(), hosts=hosts, spare_hosts=1) as (job, report):
        assert job.procs.sizes == {"replicas": 2, "procs": 1}
        assert [job.procs._record().host(rank)[1] for rank in range(2)] == ["host0", "host2"]
    (incident,) = report.incidents
    assert (incident.replica, incident.failure.kind, incident.failure.host) == (1, "lost", "host1")
    assert incident.source == 0
    figures(
        f"a lost host: back after {incident.phases['first_step']:.2f} s, others {incident.survivors_committed:.2f} s"
    )
