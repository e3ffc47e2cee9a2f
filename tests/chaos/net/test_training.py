"""Training on hosts with a wire between them: one is cut off for a while, one for good."""

import asyncio
import os
import sys

import pytest
from jobs import QUICK, attached, drive

from roost.ft import EveryStep

sys.path.append(os.path.join(os.path.dirname(__file__), "../../ft"))

from runs import progressed, ran, trained

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(240)


async def is_cut(host, wanted):
    while ("roost_cut" in host._nft("list ruleset")) != wanted:
        await asyncio.sleep(0.02)


def test_a_host_that_is_cut_off_for_a_while_costs_no_life(network, figures):
    network.grow(2)

    async def plan(job, failures):
        await trained(job, 2)
        failures.inject("network cut", replica=1)
        await is_cut(network.hosts[1], True)
        await is_cut(network.hosts[1], False)
        await progressed(job, 20)

    async def program():
        async with attached(network) as hosts, ran(plan, replicas=2, sync=EveryStep(), hosts=hosts) as (_, report):
            assert report.incidents == ()
            figures(f"a cut of 1 s: {report.lost_steps} steps lost")

    drive(program(), QUICK)


def test_a_host_that_is_cut_off_for_good_is_replaced_by_one_that_stands_by(network, figures):
    network.grow(3)

    async def plan(job, failures):
        await trained(job, 2)
        network.hosts[1].cut()
        while job.trained == {0, 1}:
            await asyncio.sleep(0.005)
        await trained(job, 2)

    async def program():
        options = {"replicas": 2, "sync": EveryStep(), "detect_within_s": 2, "spare_hosts": 1}
        async with attached(network) as hosts, ran(plan, hosts=hosts, **options) as (_, report):
            (incident,) = report.incidents
            assert (incident.replica, incident.failure.kind, incident.failure.host) == (1, "lost", "host1")
            figures(f"lost with its host: {incident.to_json()}")

    drive(program(), QUICK)
