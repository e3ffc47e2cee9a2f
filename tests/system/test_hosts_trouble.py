"""Hosts when something goes wrong between them: lanes that are given up, strangers at a proc, drivers that just end."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from agents import agents
from loops import on_a_loop

import roost
from roost import Actor, MeshError, ProcessHosts, Restart, endpoint, process
from roost.errors import HostLostError

pytestmark = pytest.mark.usefixtures("nothing_left")


class Peer(Actor):
    @endpoint(concurrent=True)
    async def where(self):
        return process.current().proc

    @endpoint(concurrent=True)
    async def ask(self, other):
        return await other.where.call_one()

    @endpoint(concurrent=True)
    async def wait_for(self, other):
        return await other.sleep.call_one()

    @endpoint(concurrent=True)
    async def sleep(self):
        await asyncio.sleep(600)

    @endpoint(concurrent=True)
    async def gives_up(self, proc):
        """As when the host of that proc has not been reached for long."""
        process.current().members.session_lost(proc, "it is not reached from here")

    @endpoint(concurrent=True)
    async def pid(self):
        return os.getpid()

    @endpoint(concurrent=True)
    async def large(self):
        return bytes(32 << 20)


@on_a_loop
async def test_a_lane_that_one_end_has_given_up_is_given_up_by_the_other_and_made_anew():
    async with ProcessHosts(2) as hosts, hosts.spawn_procs() as procs:
        peers = procs.spawn("peers", Peer)
        first, second = peers.slice(hosts=0), peers.slice(hosts=1)
        ids = list(await peers.where.call())
        assert await first.ask.call_one(second) == ids[1]
        waiting = second.wait_for.call_one(first)
        assert await second.ask.call_one(first) == ids[0]
        await first.gives_up.call_one(ids[1])
        with pytest.raises(Exception) as caught:
            await asyncio.wait_for(waiting, 10)
        assert "given up its data lane" in str(caught.value)
        assert await asyncio.wait_for(first.ask.call_one(second), 10) == ids[1]
        assert await asyncio.wait_for(second.ask.call_one(first), 10) == ids[0]


@on_a_loop
async def test_what_is_on_its_way_when_a_proc_is_stopped_still_comes():
    async with ProcessHosts(1) as hosts:
        for _ in range(3):
            procs = hosts.spawn_procs()
            peer = procs.spawn("peer", Peer).slice(hosts=0)
            await peer.pid.call_one()
            answer = peer.large.call_one()
            # Behind the answer, so that all of it is on its way.
            await peer.pid.call_one()
            stopped = procs.stop()
            assert len(await answer) == 32 << 20
            await stopped


_PROGRAM = """\
import asyncio, sys
import roost
from roost import Actor, endpoint

class Sleeper(Actor):
    @endpoint
    async def sleep(self, seconds):
        await asyncio.sleep(seconds)

async def main():
    global kept
    hosts = roost.attach(sys.argv[1:2], key_file=sys.argv[2])
    sleepers = hosts.spawn_procs().spawn("sleepers", Sleeper)
    await sleepers.sleep.call(0)
    kept = hosts, sleepers, sleepers.sleep.call(600)

asyncio.new_event_loop().run_until_complete(main())
"""


@on_a_loop
async def test_a_driver_that_just_ends_lets_its_hosts_go(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    with agents(tmp_path) as ([agent], key):
        command = [sys.executable, str(program), agent.address, str(key)]
        for _ in range(2):
            begin = time.monotonic()
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert time.monotonic() - begin < 5, "it waits for nobody, and the next finds the host free"


class Cutting:
    """A way to an agent on which the connection breaks before so many pieces of what it says have come through."""

    def __init__(self, address, pieces):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.thread = threading.Thread(target=self.run, args=(address, pieces))

    def __enter__(self):
        self.thread.start()
        return self.address

    def __exit__(self, *_):
        self.thread.join()

    def run(self, address, pieces):
        host, port = address.rsplit(":", 1)
        near, _ = self.server.accept()
        self.server.close()
        with near, socket.create_connection((host, int(port))) as far:
            while ready := select.select([near, far], [], [], 10)[0]:
                for one in ready:
                    if not (said := one.recv(1 << 16)):
                        return
                    if one is far:
                        pieces -= 1
                        if pieces < 0:
                            return
                    (far if one is near else near).sendall(said)


@on_a_loop
async def test_a_host_to_which_the_connection_breaks_while_it_joins_can_be_attached_again(tmp_path):
    with agents(tmp_path) as ([agent], key):
        for pieces in range(8):
            with Cutting(agent.address, pieces) as address:
                hosts = roost.attach([address], key_file=key)
                try:
                    await hosts.ready()
                except HostLostError:
                    pass
                else:
                    # It has joined before that.
                    with suppress(MeshError, HostLostError):
                        await hosts.stop()
                    break
            async with roost.attach([agent.address], key_file=key) as hosts:
                assert len(await hosts.spawn_procs().states()) == 1
        assert pieces > 2


async def preamble_of(key):
    """What a driver of this job says first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = roost.attach([f"127.0.0.1:{server.getsockname()[1]}"], key_file=key)

        def heard():
            connection, _ = server.accept()
            with connection:
                return connection.recv(64, socket.MSG_WAITALL)

        preamble = await asyncio.to_thread(heard)
        with pytest.raises(HostLostError):
            await nobody.ready()
        return preamble


def calling(address, preamble, proc):
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)))
    connection.sendall(preamble[:52] + proc.to_bytes(8, "little") + preamble[60:])
    connection.recv(24)
    return connection


@on_a_loop
async def test_a_proc_that_died_while_many_called_it_is_called_again(tmp_path):
    restart = Restart(backoff_s=(0.0, 0.1), while_down="wait")
    with agents(tmp_path, 2) as (started, key):
        async with (
            roost.attach([agent.address for agent in started], key_file=key) as hosts,
            hosts.spawn_procs(restart=restart) as procs,
        ):
            peers = procs.spawn("peers", Peer)
            first, second = peers.slice(hosts=0), peers.slice(hosts=1)
            ids = list(await peers.where.call())
            preamble = await preamble_of(key)
            callers = [calling(started[1].address, preamble, ids[1]) for _ in range(16)]
            os.kill(await second.pid.call_one(), signal.SIGKILL)
            assert await asyncio.wait_for(first.ask.call_one(second), 20) == ids[1]
            for caller in callers:
                caller.close()
