"""Procs on other hosts: where they find themselves, what they say, how they end and come back."""

import asyncio
import os
import signal
import subprocess
import sys

import far
import numpy as np
import pytest
from agents import agents
from leftovers import leaving_nothing
from loops import Job, handled, in_the_job, next_of, process_state, until
from working import Worker

import roost
from roost import ActorDied, Bind, Channel, ProcessHosts, Restart, this_host
from roost.errors import PeerLostError

pytestmark = pytest.mark.usefixtures("hosts")


@pytest.fixture(scope="module")
def hosts():
    """Two hosts, in one job for all tests here, of which nothing is left at the end."""
    ends = ProcessHosts(2)
    with leaving_nothing(), asyncio.Runner() as runner:
        Job.runner = runner
        yield runner.run(ends.__aenter__())
        runner.run(ends.__aexit__(None, None, None))
    Job.runner = None


class TestSurroundings:
    @in_the_job
    async def test_the_environment_is_the_agents_with_changes(self, monkeypatch, tmp_path):
        monkeypatch.setenv("TESTED_AGENT", "of the agent")
        with agents(tmp_path) as ([agent], key):
            monkeypatch.setenv("TESTED_AGENT", "of the driver")
            monkeypatch.setenv("TESTED", "of the driver")
            async with roost.attach([agent.address], key_file=key) as hosts:
                async with hosts.spawn_procs() as procs:
                    found = (await procs.spawn("resident", far.Resident).surroundings.call()).item(hosts=0)
                assert (found["environ"]["TESTED_AGENT"], found["environ"]["TESTED"]) == ("of the agent", None)
                for cold in ({}, {"OMP_NUM_THREADS": "3"}):
                    async with hosts.spawn_procs(env={"TESTED": "changed", "TESTED_AGENT": None, **cold}) as procs:
                        found = (await procs.spawn("resident", far.Resident).surroundings.call()).item(hosts=0)
                    changed = {"TESTED": "changed", "TESTED_AGENT": None, **cold}
                    assert {name: found["environ"][name] for name in changed} == changed
                    assert found["environ"]["PATH"] == os.environ["PATH"]

    @in_the_job
    async def test_folder_arguments_and_search_path_are_the_drivers_where_that_makes_sense(self, tmp_path, monkeypatch):
        with agents(tmp_path) as ([agent], key):
            (tmp_path / "work").mkdir()
            monkeypatch.chdir(tmp_path / "work")
            monkeypatch.syspath_prepend(tmp_path / "modules")
            async with roost.attach([agent.address], key_file=key) as hosts, hosts.spawn_procs() as procs:
                found = (await procs.spawn("resident", far.Resident).surroundings.call()).item(hosts=0)
        assert found["cwd"] == str(tmp_path / "work")
        assert found["argv"] == sys.argv
        assert found["prefix"] == sys.prefix
        assert str(tmp_path / "modules") in found["path"]
        own = [entry for entry in found["path"] if "site-packages" in entry]
        assert own
        assert found["path"].index(own[0]) < found["path"].index(str(tmp_path / "modules")), "its own come first"

    def test_a_folder_that_is_not_there_is_said_once(self):
        program = (
            "import asyncio, os, far\nimport roost.requesting\nfrom roost import ProcessHosts\n"
            "roost.requesting._working_directory = lambda: '/no/such/folder'\n"
            "async def main():\n"
            "    async with ProcessHosts(1) as hosts:\n"
            "        async with hosts.spawn_procs({'gpus': 2}) as procs:\n"
            "            found = await procs.spawn('residents', far.Resident).surroundings.call()\n"
            "            print({one['cwd'] for one in found})\n"
            "asyncio.run(main())\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=os.path.dirname(__file__)
        )
        assert run.stdout == f"{ {os.path.dirname(__file__)} }\n"
        assert run.stderr.count("starts in") == 1
        assert "procs[hosts=0,gpus=0] starts in" in run.stderr

    @in_the_job
    async def test_devices_and_processors_are_counted_on_each_host(self, hosts):
        options = {"gpus_per_proc": 2, "bind": Bind(cpus=[min(os.sched_getaffinity(0))])}
        async with hosts.spawn_procs({"gpus": 2}, **options) as procs:
            found = await procs.spawn("residents", far.Resident).surroundings.call()
            assert [one["environ"]["HIP_VISIBLE_DEVICES"] for one in found] == ["0,1", "2,3", "0,1", "2,3"]
            assert all(one["cpus"] == {min(os.sched_getaffinity(0))} for one in found)
        with pytest.raises(ActorDied, match="CPUs \\[4000\\] are not there"):
            await hosts.spawn_procs(bind=Bind(cpus=[4000]), supervise=handled)

    @in_the_job
    async def test_a_setup_that_raises_is_a_failed_start(self, hosts):
        with pytest.raises(roost.ActorDied, match="setup raised ValueError: not on this host") as raised:
            await hosts.slice(hosts=1).spawn_procs(setup=far.raises, supervise=handled)
        assert (raised.value.failure.kind, raised.value.failure.host) == ("start", "host1")

    @in_the_job
    async def test_this_host_is_the_actors_own(self, hosts):
        async with hosts.spawn_procs() as procs:
            residents = procs.spawn("residents", far.Resident)
            parents = list(await residents.parent.call())
            assert parents[0] != parents[1]
            assert list(await residents.spawn_here.call()) == [[parents[0]] * 2, [parents[1]] * 2]

    @in_the_job
    async def test_hosts_may_be_handed_on(self, hosts):
        async with this_host().spawn_procs() as near, hosts.spawn_procs() as procs:
            parents = list(await procs.spawn("residents", far.Resident).parent.call())
            for place in (near, procs.slice(hosts=1)):
                resident = place.spawn("resident", far.Resident)
                assert await resident.spawn_on.call_one(hosts) == (["host0", "host1"], parents)


class TestValues:
    @in_the_job
    async def test_classes_of_the_driver_travel_by_value(self, hosts):
        class Local(roost.Actor):
            @roost.endpoint
            async def twice(self, value):
                return LocalError, value * 2

            @roost.endpoint
            async def fail(self):
                raise LocalError("far away")

        class LocalError(Exception):
            pass

        async with hosts.spawn_procs() as procs:
            local = procs.spawn("local", Local)
            assert list(await local.twice.call(21)) == [(LocalError, 42)] * 2
            with pytest.raises(LocalError, match="far away"):
                await local.slice(hosts=1).fail.call_one()

    @in_the_job
    async def test_a_large_value_there_and_back_and_from_host_to_host(self, hosts):
        sent = np.random.default_rng(7).integers(0, 255, 70 << 20, dtype=np.uint8)
        async with hosts.spawn_procs() as procs:
            first, second = procs.spawn("workers", Worker)
            back = await first.echo.call_one(sent)
            assert np.array_equal(back, sent)
            back[0] ^= 1
            back = await first.ask.call_one(second, "echo", sent)
            assert np.array_equal(back, sent)

    @in_the_job
    async def test_channels_between_hosts_and_with_the_driver(self, hosts):
        async with hosts.spawn_procs() as procs:
            first, second = procs.spawn("workers", Worker)
            port = await first.open_channel.call_one()
            sending = second.send_many.call_one(port, 1000)
            assert await first.take_all.call_one() == list(range(1000))
            await sending
            port, receiver = Channel.open()
            sending = second.send_many.call_one(port, 1000)
            assert [number async for number in receiver] == list(range(1000))
            await sending

    def test_output_comes_to_the_driver_with_the_name_of_its_rank(self):
        program = (
            "import asyncio, far\nfrom roost import ProcessHosts\n"
            "async def main():\n"
            "    async with ProcessHosts(2) as hosts, hosts.spawn_procs(name='w') as procs:\n"
            "        await procs.spawn('residents', far.Resident).say.call('hello')\n"
            "asyncio.run(main())\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=os.path.dirname(__file__)
        )
        assert sorted(run.stdout.splitlines()) == ["[w[hosts=0]] hello", "[w[hosts=1]] hello"]
        assert run.stderr == ""


class TestEnds:
    @in_the_job
    async def test_a_kill_is_heard_with_the_host(self, hosts):
        async with hosts.spawn_procs(supervise=handled) as procs:
            residents = procs.spawn("residents", far.Resident)
            hung = residents.slice(hosts=1).hang.call_one()
            await residents.ready()
            os.kill((await procs.states()).item(hosts=1).pid, signal.SIGKILL)
            with pytest.raises(ActorDied) as raised:
                await hung
            failure = raised.value.failure
            assert (failure.kind, failure.signal, failure.host, failure.name) == (
                "signal",
                9,
                "host1",
                "procs[hosts=1]",
            )
            assert not isinstance(raised.value, PeerLostError)
            assert (await residents.slice(hosts=0).life.call_one())[0] == 0

    @in_the_job
    async def test_an_actor_elsewhere_hears_of_it_too(self, hosts):
        async with hosts.spawn_procs(supervise=handled) as procs:
            first, second = procs.spawn("residents", far.Resident)
            ending = first.call_hung.call_one(second)
            await second.ready()
            await until(lambda: True)
            os.kill((await procs.states()).item(hosts=1).pid, signal.SIGKILL)
            assert await ending == ("ActorDied", "signal", "host1")

    @in_the_job
    async def test_a_restart_is_in_place(self, hosts):
        async with hosts.spawn_procs(restart=Restart(backoff_s=(0.01, 0.1), while_down="wait")) as procs:
            events = procs.events()
            residents = await procs.spawn("residents", far.Resident)
            second = residents.slice(hosts=1)
            parent = await second.parent.call_one()
            os.kill((await procs.states()).item(hosts=1).pid, signal.SIGKILL)
            assert (await next_of(events, "failed")).failure.host == "host1"
            await next_of(events, "recovered")
            assert (await second.life.call_one())[0] == 1
            assert await second.parent.call_one() == parent
            assert (await residents.slice(hosts=0).life.call_one())[0] == 0

    @in_the_job
    async def test_spares_wait_on_each_host(self, hosts):
        policy = Restart(backoff_s=(5, 5), while_down="wait")
        async with hosts.spawn_procs(restart=policy, spares=1) as procs:
            residents = procs.spawn("residents", far.Resident)
            parents = list(await residents.parent.call())
            for resident, parent in zip(residents, parents, strict=True):
                events = procs.events()
                with pytest.raises(ActorDied):
                    await resident.die.call_one()
                await next_of(events, "recovered")
                assert (await resident.life.call_one())[0] == 1
                assert await resident.parent.call_one() == parent

    @in_the_job
    async def test_a_stop_waits_until_nothing_is_left(self, hosts):
        procs = await hosts.spawn_procs({"gpus": 2})
        pids = [state.pid for state in await procs.states()]
        await procs.stop()
        assert all(process_state(pid) in "ZX" for pid in pids)
        assert [state.state for state in await procs.states()] == ["stopped"] * 4

    @in_the_job
    async def test_an_exit_has_its_code(self, hosts):
        async with hosts.slice(hosts=slice(0, 1)).spawn_procs(supervise=handled) as procs:
            with pytest.raises(ActorDied) as raised:
                await procs.spawn("residents", far.Resident).slice(hosts=0).exit.call_one(7)
            assert (raised.value.failure.kind, raised.value.failure.exit_code) == ("exit", 7)


@in_the_job
async def test_many_calls_at_once_between_all(hosts):
    async with hosts.spawn_procs({"gpus": 3}) as procs:
        workers, others = procs.spawn("workers", Worker), procs.spawn("others", Worker)
        asked = [workers.ask_all.call(others, "echo", number) for number in range(20)]
        for number, answers in enumerate(await asyncio.gather(*asked)):
            assert list(answers) == [[number] * 6] * 6
