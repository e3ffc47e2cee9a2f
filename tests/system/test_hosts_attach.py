"""Attaching hosts, and letting go of them: real agents, and what is no agent."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from agents import Agent, agents
from loops import next_of, on_a_loop, process_state
from working import Worker

import roost
from roost import ActorDied, ProcessHosts, process
from roost.errors import (
    AuthenticationError,
    BlockingWaitError,
    HostLostError,
    ProtocolError,
    StoppedError,
    VersionMismatchError,
)
from roost.keys import make_key

pytestmark = pytest.mark.usefixtures("nothing_left")


@on_a_loop
async def test_hosts_are_a_mesh():
    async with ProcessHosts(3) as hosts:
        assert (dict(hosts.sizes), len(hosts), list(hosts.names)) == ({"hosts": 3}, 3, ["host0", "host1", "host2"])
        assert list(hosts.slice(hosts=slice(1, 3)).names) == ["host1", "host2"]
        assert [list(host.names) for host in hosts] == [["host0"], ["host1"], ["host2"]]
        assert dict(hosts.rename(hosts="nodes").sizes) == {"nodes": 3}
        assert dict(hosts.flatten("all").sizes) == {"all": 3}
        assert [state.state for state in await hosts.states()] == ["up"] * 3
        with pytest.raises(RuntimeError, match="nobody restarts from here"):
            hosts.restart()


@on_a_loop
async def test_procs_have_the_dimensions_of_their_hosts_first():
    async with ProcessHosts(4) as hosts, hosts.spawn_procs({"gpus": 2}) as procs:
        assert dict(procs.sizes) == {"hosts": 4, "gpus": 2}
        workers = procs.spawn("workers", Worker)
        places = await workers.where.call()
        assert [place[1] for place in places] == [{"hosts": h, "gpus": g} for h in range(4) for g in range(2)]
        parents = {(await worker.make.call_one(os.getppid)) for worker in workers.slice(hosts=2)}
        assert len(parents) == 1, "one template forks the procs of a host"
        others = procs.spawn("others", Worker)
        assert list(await workers.ask_all.call(others, "add", 1)) == [[11] * 8] * 8


@on_a_loop
async def test_a_slice_of_hosts_spawns_on_those_alone():
    async with (
        ProcessHosts(3) as hosts,
        hosts.slice(hosts=1).spawn_procs() as alone,
        hosts.slice(hosts=slice(1, 3)).spawn_procs() as two,
    ):
        assert dict(alone.sizes) == {}
        assert dict(two.sizes) == {"hosts": 2}
        assert await alone.spawn("one", Worker).add.call_one(1) == 11


@on_a_loop
async def test_procs_may_be_asked_for_before_their_hosts_are_there(tmp_path):
    with agents(tmp_path, 2) as (started, key):
        hosts = roost.attach([agent.address for agent in started], key_file=key)
        workers = hosts.spawn_procs().spawn("workers", Worker)
        assert list(await workers.add.call(1)) == [11, 11]
        with pytest.raises(RuntimeError, match="this_host"):
            roost.this_host().states()
        await hosts.stop()


@on_a_loop
async def test_who_is_let_go_of_serves_the_next_and_ends_in_order(tmp_path):
    with agents(tmp_path) as ([agent], key):
        for _ in range(2):
            async with roost.attach([agent.address], key_file=key) as hosts:
                procs = hosts.spawn_procs()
                pid = (await procs.states()).item(hosts=0).pid or (await (await procs).states()).item(hosts=0).pid
            assert process_state(pid) in "ZX"
        with pytest.raises(StoppedError):
            hosts.spawn_procs()
        status, _, said = agent.end(signal.SIGTERM)
        assert status == 0
        assert "Traceback" not in said


@on_a_loop
async def test_a_shutdown_ends_the_agents(tmp_path):
    with agents(tmp_path, 2) as (started, key):
        hosts = await roost.attach([agent.address for agent in started], key_file=key)
        await hosts.slice(hosts=0).shutdown()
        assert [state.state for state in await hosts.states()] == ["stopped", "up"]
        assert started[0].end()[0] == 0
        with pytest.raises(StoppedError, match=r"^hosts\[hosts=0\] stopped: .*; attach it anew, or take a slice"):
            hosts.spawn_procs()
        async with hosts.slice(hosts=1).spawn_procs() as procs:
            assert await procs.spawn("still", Worker).add.call_one(1) == 11
        await hosts.shutdown()
        assert started[1].end()[0] == 0


def test_a_plain_script_has_hosts_with_with():
    program = (
        "from roost import Actor, ProcessHosts, endpoint\n"
        "class Worker(Actor):\n"
        "    @endpoint\n"
        "    def add(self, n): return 10 + n\n"
        "with ProcessHosts(2) as hosts, hosts.spawn_procs() as procs:\n"
        "    print(list(hosts.names), list(procs.spawn('workers', Worker).add.call(1).result(10)))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr, run.returncode) == ("['host0', 'host1'] [11, 11]\n", "", 0)


@on_a_loop
async def test_on_a_loop_with_is_refused():
    with pytest.raises(BlockingWaitError, match="async with"), ProcessHosts(1):
        pass


def test_a_driver_that_is_killed_leaves_nothing():
    program = (
        "import asyncio, os, far\nfrom roost import ProcessHosts\n"
        "async def main():\n"
        "    async with ProcessHosts(2) as hosts, hosts.spawn_procs({'gpus': 2}) as procs:\n"
        "        await procs.spawn('residents', far.Resident).life.call()\n"
        "        os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, cwd=os.path.dirname(__file__)
    )
    assert run.returncode == -9


def test_an_agent_ends_with_the_process_that_started_it():
    program = (
        "import os, subprocess, sys\n"
        "agent = subprocess.Popen([sys.executable, '-m', 'roost', 'host', '--parent-pid', str(os.getpid())],"
        " stdout=subprocess.PIPE, text=True)\n"
        "assert agent.stdout.readline().startswith('listening on 127.0.0.1:')\n"
        "print(agent.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == -9
    # `nothing_left` waits for its end.
    assert int(run.stdout)


class TestRefusals:
    @on_a_loop
    async def test_nobody_listens_there_is_said_at_once(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            hosts = roost.attach([f"localhost:{port}"], timeout=30)
            with pytest.raises(HostLostError, match=rf"localhost:{port} \(.*127\.0\.0\.1:{port}.*cannot be reached"):
                await hosts
            assert [state.state for state in await hosts.states()] == ["failed"]

    @on_a_loop
    async def test_who_got_the_error_is_not_warned_of_the_other_hosts(self, caplog):
        with socket.socket() as one, socket.socket() as other:
            for taken in (one, other):
                taken.bind(("127.0.0.1", 0))
            addresses = [f"127.0.0.1:{taken.getsockname()[1]}" for taken in (one, other)]
            hosts = roost.attach(addresses)
            with pytest.raises(HostLostError, match="cannot be reached"):
                await hosts
            assert [state.state for state in await hosts.wait()] == ["failed", "failed"]
            assert not caplog.records

    @on_a_loop
    async def test_a_name_that_nobody_knows(self, monkeypatch):
        async def resolve(*_: object) -> list[str]:
            # A resolver that cannot reach any server takes half a minute to say so.
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr("roost.joining.resolve", resolve)
        with pytest.raises(HostLostError, match=r"no-such-host\.invalid:7000 cannot be reached: its name is not known"):
            async with roost.attach(["no-such-host.invalid:7000"]):
                pass

    @on_a_loop
    async def test_another_key_or_none(self, tmp_path):
        make_key(tmp_path / "other")
        with agents(tmp_path) as ([agent], key):
            for options in ({"key_file": tmp_path / "other"}, {}):
                with pytest.raises(AuthenticationError, match=f"{agent.address} does not let this program in"):
                    await roost.attach([agent.address], **options)
            async with roost.attach([agent.address], key_file=key):
                pass

    @on_a_loop
    async def test_a_host_elsewhere_is_not_called_without_a_key(self):
        # A documentation address (RFC 5737): were it called, this would wait.
        with pytest.raises(AuthenticationError, match=r"192\.0\.2\.1:7000 .*: beyond this machine a key is needed"):
            await roost.attach(["192.0.2.1:7000"])

    @on_a_loop
    async def test_a_second_driver_while_one_is_there(self, tmp_path):
        with agents(tmp_path) as ([agent], key):
            async with roost.attach([agent.address], key_file=key):
                program = f"import asyncio, roost\nasync def main(): await roost.attach([{agent.address!r}], key_file={str(key)!r})\n"
                second = await asyncio.to_thread(
                    subprocess.run, [sys.executable, "-c", program + "asyncio.run(main())"],
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert second.returncode != 0
                assert "serves another job" in second.stderr
            async with roost.attach([agent.address], key_file=key):
                pass

    @on_a_loop
    async def test_one_host_by_two_addresses(self, tmp_path):
        with agents(tmp_path, 1, "--listen", "0.0.0.0:0") as ([agent], key):
            port = agent.address.rpartition(":")[2]
            with pytest.raises(ValueError, match=rf"'127\.0\.0\.1:{port}' and 'localhost:{port}' are one and the same"):
                await roost.attach([f"127.0.0.1:{port}", f"localhost:{port}"], key_file=key)
            with pytest.raises(ValueError, match=rf"127\.0\.0\.\d:{port}.*name each host once"):
                await roost.attach([f"127.0.0.1:{port}", f"127.0.0.2:{port}"], key_file=key)

    @on_a_loop
    async def test_a_port_that_speaks_something_else(self):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve():
                connection, _ = server.accept()
                with connection:
                    connection.recv(64)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

            thread = threading.Thread(target=serve)
            thread.start()
            with pytest.raises((ProtocolError, VersionMismatchError, HostLostError), match=r"127\.0\.0\.1:"):
                await roost.attach([f"127.0.0.1:{server.getsockname()[1]}"], timeout=10)
            thread.join()

    @on_a_loop
    async def test_nobody_answers_in_time(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            with pytest.raises(HostLostError, match=r"cannot be reached: no answer in 0\.5 s"):
                await roost.attach([f"127.0.0.1:{port}"], timeout=0.5)

    @on_a_loop
    async def test_what_was_to_live_there_fails_with_it(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            hosts = roost.attach([f"127.0.0.1:{taken.getsockname()[1]}"])
            worker = hosts.spawn_procs().spawn("worker", Worker)
            with pytest.raises(ActorDied, match="was lost"):
                await worker.ready()


class TestWaiting:
    @on_a_loop
    async def test_hosts_that_come_later_are_waited_for(self, tmp_path):
        with agents(tmp_path) as ([agent], key):
            listed = tmp_path / "hosts"
            listed.write_text(f"{agent.address}\n")
            hosts = roost.attach(listed, key_file=key, wait_for=2)
            events = hosts.events()
            late = await asyncio.to_thread(Agent, key=key, name="late")
            try:
                with listed.open("a") as file:
                    file.write(f"unix:{tmp_path}/nobody\n{late.address}\n")
                async with hosts:
                    assert list(hosts.names) == ["host0", "late"]
                    assert (await next_of(events, "started")).point["hosts"] == 0
            finally:
                late.process.kill()
                late.process.communicate()

    @on_a_loop
    async def test_at_the_time_out_the_missing_are_named_with_the_reason(self, tmp_path):
        with agents(tmp_path) as ([agent], key):
            missing = f"unix:{tmp_path}/nobody"
            with pytest.raises(HostLostError) as raised:
                await roost.attach([agent.address, missing], key_file=key, wait_for=2, timeout=1)
            text = str(raised.value)
            assert "one host of 2 are there after 1 s" in text
            assert f"missing: {missing}" in text
            # Who was there is let go again.
            async with roost.attach([agent.address], key_file=key):
                pass


class TestAgents:
    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            agent = Agent("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
            status, _, said = agent.end()
            assert status == 4
            assert "cannot listen on 127.0.0.1" in said

    def test_an_address_of_another_machine(self, tmp_path):
        make_key(tmp_path / "key")
        status, _, said = Agent("--listen", "192.0.2.1:0", key=tmp_path / "key").end()
        assert (status, "cannot listen on 192.0.2.1" in said) == (4, True)

    @pytest.mark.parametrize("advertise", ["no-such-host.invalid", "127.0.0.1:1"])
    def test_an_advertised_address_that_does_not_lead_there(self, advertise):
        agent = Agent("--advertise", advertise)
        assert agent.line == ""
        status, _, said = agent.end()
        assert (status, f"--advertise {advertise}" in said) == (6, True)

    def test_what_it_says_is_one_line_and_a_second_signal_ends_it_at_once(self, tmp_path):
        make_key(tmp_path / "key")
        agent = Agent("--listen", "0.0.0.0:0", "--advertise", "localhost", key=tmp_path / "key")
        port = agent.address.rpartition(":")[2]
        assert agent.line == f"listening on 0.0.0.0:{port} advertised as localhost:{port}\n"
        status, rest, said = agent.end(signal.SIGINT)
        assert (status, rest) == (0, "")
        assert "ending: SIGINT" in said

    @on_a_loop
    async def test_a_unix_socket_is_an_address_too(self, tmp_path):
        path = tmp_path / "socket"
        with agents(tmp_path, 1, "--listen", f"unix:{path}") as ([agent], key):
            assert agent.line == f"listening on unix:{path} advertised as unix:{path}\n"
            async with roost.attach([f"unix:{path}"], key_file=key) as hosts, hosts.spawn_procs() as procs:
                assert await procs.spawn("worker", Worker).slice(hosts=0).add.call_one(1) == 11

    def test_the_socket_of_an_agent_that_was_killed_is_taken_over_and_no_other_file(self, tmp_path):
        path = tmp_path / "socket"
        first = Agent("--listen", f"unix:{path}")
        assert first.line.startswith("listening on ")
        status, _, said = Agent("--listen", f"unix:{path}").end()
        assert (status, f"cannot listen on unix:{path}" in said) == (4, True)
        first.end(signal.SIGKILL)
        second = Agent("--listen", f"unix:{path}")
        assert second.line.startswith("listening on ")
        second.end(signal.SIGTERM)
        path.unlink()
        path.write_text("somebody's")
        assert Agent("--listen", f"unix:{path}").end()[0] == 4
        assert path.read_text() == "somebody's"

    @on_a_loop
    async def test_of_a_name_with_several_numbers_the_one_counts_that_has_answered(self, tmp_path, monkeypatch):
        """Others meet where that one leads."""
        with agents(tmp_path, 2) as (started, key), socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            dead = f"127.0.0.1:{taken.getsockname()[1]}"

            async def resolve(_, address):
                return [dead, address.text] if address.text == started[0].address else [address.text]

            monkeypatch.setattr("roost.joining.resolve", resolve)
            async with roost.attach([agent.address for agent in started], key_file=key) as hosts:
                numbers = [number for number, _ in hosts._record().hosts_at(hosts._shape)]
                assert [process.current().hosts.reached_by(one) for one in numbers] == [one.address for one in started]

    @on_a_loop
    async def test_one_job_and_it_ends(self, tmp_path):
        with agents(tmp_path, 1, "--one-job") as ([agent], key):
            async with roost.attach([agent.address], key_file=key):
                pass
            assert agent.end()[0] == 0


def test_an_agent_that_cannot_tell_of_itself_says_so(tmp_path):
    (tmp_path / "file").touch()
    agent = Agent("--announce", str(tmp_path / "file" / "host"))
    status, _, said = agent.end()
    assert (status, f"--announce {tmp_path}/file/host: it cannot be written: File exists" in said) == (2, True)
