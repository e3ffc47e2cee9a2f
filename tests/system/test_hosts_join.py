"""Hosts that call a driver which does not know where they are."""

import signal
import socket
from contextlib import contextmanager

import pytest
from agents import Agent
from loops import on_a_loop
from working import Worker

import roost
from roost.cli import main
from roost.errors import HostLostError
from roost.keys import make_key

pytestmark = pytest.mark.usefixtures("nothing_left")


def free_port():
    """One that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def where():
    """Where the driver will be called."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def key(tmp_path):
    make_key(tmp_path / "key")
    return tmp_path / "key"


@contextmanager
def callers(where, key, *names):
    """Agents that call there."""
    started = [Agent("--join", where, key=key, name=name) for name in names]
    try:
        yield started
    finally:
        for agent in started:
            agent.process.kill()
            agent.process.communicate()


@on_a_loop
async def test_hosts_call_one_driver_after_the_other_and_come_in_the_order_that_it_wants(where, key):
    with callers(where, key, "a", "b") as agents:
        async with roost.attach(listen=where, wait_for=["b", "a"], key_file=key) as hosts:
            assert list(hosts.names) == ["b", "a"]
            async with hosts.spawn_procs() as procs:
                assert list(await procs.spawn("workers", Worker).add.call(1)) == [11, 11]
        async with roost.attach(listen=where, wait_for=2, key_file=key) as hosts:
            assert sorted(hosts.names) == ["a", "b"]
        for agent in agents:
            status, _, said = agent.end(signal.SIGTERM)
            assert status == 0
            assert "Traceback" not in said


@on_a_loop
async def test_at_the_time_out_the_missing_are_named(where, key, tmp_path):
    make_key(tmp_path / "other")
    with callers(where, key, "a", "c") as [_, unwanted], callers(where, tmp_path / "other", "b") as [stranger]:
        hosts = roost.attach(listen=where, wait_for=["a", "b"], key_file=key, timeout=4)
        with pytest.raises(HostLostError, match=r"^one host of 2 are there after 4 s; missing: b: it has not called$"):
            await hosts
        with pytest.raises(HostLostError, match=r"\d more that have not called$"):
            await roost.attach(listen=where, wait_for=9, key_file=key, timeout=0.2)
        assert "was called in vain: it does not have the same key" in stranger.end(signal.SIGTERM)[2]
        assert f"{where} does not want this host: it waits for a, b, and this is c" in unwanted.end(signal.SIGTERM)[2]


@on_a_loop
async def test_what_makes_no_sense_is_refused_at_once(where, key):
    for error, match, given in [
        (ValueError, "wants key_file=", {"wait_for": 1}),
        (TypeError, "wait_for must be a whole number", {"key_file": key}),
        (ValueError, "wait_for=0 is below 1; say how many", {"key_file": key, "wait_for": 0}),
        (ValueError, "the name of each host that is wanted, once", {"key_file": key, "wait_for": ["a", "a"]}),
        (ValueError, "in place of addresses", {"key_file": key, "wait_for": 1, "addresses": ["a:1"]}),
        (ValueError, "agents call by TCP", {"key_file": key, "wait_for": 1, "listen": "unix:/tmp/x"}),
        (
            OSError,
            "attach cannot listen at 192.0.2.1:7000",
            {"key_file": key, "wait_for": 1, "listen": "192.0.2.1:7000"},
        ),
    ]:
        with pytest.raises(error, match=match):
            roost.attach(**{"listen": where, **given})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--join", "nowhere"], "--join: 'nowhere' is no address"),
        (["--join", "there:7000"], "wants --key-file"),
        (["--join", "unix:/tmp/x"], "calls and listens by TCP"),
    ],
)
def test_a_command_line_that_makes_no_sense_says_so(arguments, said, capsys):
    assert main(["host", *arguments]) == 2
    out, error = capsys.readouterr()
    assert (out, said in error) == ("", True)
