"""Training on hosts with a wire between them: one is cut off for a while, one for good."""

import asyncio
import os
import sys
from contextlib import AsyncExitStack

import pytest
from jobs import QUICK, attached, drive, gone

from roost import Restart
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


@pytest.mark.parametrize("how", ["cut off", "lost"])
def test_a_host_that_is_attached_again_takes_back_what_was_given_up_with_it(network, figures, how):
    """Lost with its agent, which is started again; or behind a cut that is longer than the verdict, where the agent lives on."""
    network.grow(2)
    back = network.hosts[1]

    async def plan(job, failures, stack):
        await trained(job, 2)
        # The one restart that its policy allows.
        failures.inject("kill", replica=1)
        await trained(job, 2)
        if how == "lost":
            back.kill()
        else:
            back.cut()
        while job.given_up != {1}:
            await asyncio.sleep(0.005)
        assert await gone(back, 60)
        await progressed(job, 20)
        if how == "lost":
            back.start().listens()
        else:
            back.heal()
        await stack.enter_async_context(attached(network, [back]))
        assert await job.bring_back() == (1,)
        await trained(job, 2)
        await progressed(job, 20)

    async def program():
        once = Restart(limit=1, within_s=600, backoff_s=(0.0, 0.0), on="any_host")
        options = {"replicas": 2, "sync": EveryStep(), "detect_within_s": 2, "restart": once}
        async with attached(network) as hosts, AsyncExitStack() as stack:

            async def on(job, failures):
                await plan(job, failures, stack)

            async with ran(on, hosts=hosts, **options) as (job, report):
                assert job.given_up == frozenset()
                assert [job.procs._record().host(rank)[1] for rank in range(2)] == ["host0", "host1"]
                killed, lost = report.incidents
                assert (killed.failure.signal, lost.failure.kind, lost.failure.host) == (9, "lost", "host1")
                assert lost.source == 0
                figures(f"{how}, attached again: {lost.to_json()}")

    drive(program(), QUICK)
