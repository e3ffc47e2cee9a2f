"""Who may be a host of a job, and drive one: certificates of one's own, and versions that do not go together."""

import asyncio
import shutil
import socket

import pytest
from agents import Agent, agents
from loops import on_a_loop
from pki import FUTURE, PAST, Authority, options
from working import Worker

import roost
from roost.errors import AuthenticationError, HostLostError, VersionMismatchError

pytestmark = pytest.mark.usefixtures("nothing_left")

# What a connection begins with, and where its first bytes say which protocol it speaks.
HELLO_BYTES, MAJOR = 64, 8
REFUSAL, OF_VERSION = 20, 1


@pytest.fixture
def authority(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to issue certificates with")
    return Authority(tmp_path / "own")


async def refused(agent, tls):
    with pytest.raises(AuthenticationError) as caught:
        async with roost.attach([agent.address], tls=tls):
            pass
    assert agent.address in str(caught.value)
    return str(caught.value)


@on_a_loop
async def test_h4_with_an_own_pki_both_ends_are_asked(authority, tmp_path):
    """For a certificate by the authority, of this time, and of the address that was dialled; who has none is refused, too."""
    other = Authority(tmp_path / "other")
    agent = Agent("--listen", "127.0.0.1:0", *options(authority.issue()))
    try:
        right = authority.issue("DNS:driver")
        async with roost.attach([agent.address], tls=right) as hosts, hosts.spawn_procs() as procs:
            assert await procs.spawn("worker", Worker).slice(hosts=0).add.call_one(1) == 11
        for wrong in (
            authority.issue(years=PAST),
            authority.issue(years=FUTURE),
            other.issue(ca=authority.certificate),
            other.issue(),
            None,
        ):
            await refused(agent, wrong)
        async with roost.attach([agent.address], tls=right):
            pass
    finally:
        agent.end(15)


@on_a_loop
async def test_h4_a_host_that_is_not_the_one_that_was_dialled_is_given_nothing(authority, tmp_path):
    other = Authority(tmp_path / "other")
    driver = authority.issue()
    for certificate, why in (
        (authority.issue("IP:127.0.0.2"), "127.0.0.1"),
        (authority.issue(years=PAST), "valid|expired|date"),
        (authority.issue(years=FUTURE), "valid|expired|date"),
        (other.issue(ca=authority.certificate), "authorit"),
    ):
        agent = Agent("--listen", "127.0.0.1:0", *options(certificate))
        try:
            said = await refused(agent, driver)
            assert any(one in said for one in why.split("|")), said
        finally:
            agent.end(15)


def of_another_major(first):
    """The same first bytes, of a protocol that nobody speaks yet."""
    return first[:MAJOR] + (2).to_bytes(2, "little") + first[MAJOR + 2 :]


@on_a_loop
async def test_h8_another_major_version_is_told_to_both_ends_at_once(tmp_path):
    with agents(tmp_path) as ([agent], key):
        host, port = agent.address.rsplit(":", 1)
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            attaching = roost.attach([address], key_file=key)
            driver, _ = await asyncio.to_thread(server.accept)
            hello = await asyncio.to_thread(driver.recv, HELLO_BYTES, socket.MSG_WAITALL)
            # What an agent of this version says to a driver of another.
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(of_another_major(hello))
                answer = await asyncio.to_thread(connection.recv, HELLO_BYTES, socket.MSG_WAITALL)
                assert answer[REFUSAL] == OF_VERSION
                assert connection.recv(1) == b""
            # And what a driver of this version makes of an agent of another, whether that refuses it or not.
            driver.sendall(of_another_major(answer[:REFUSAL] + b"\0" + answer[REFUSAL + 1 :]))
            with pytest.raises(
                VersionMismatchError, match=r"protocol 1\.0.*protocol 2\.0|protocol 2\.0.*protocol 1\.0"
            ):
                await attaching
            driver.close()
        agent.process.terminate()
        assert "protocol 2.0" in agent.process.stderr.read()


@on_a_loop
async def test_h8_another_minor_version_works_as_far_as_both_know(tmp_path):
    """Its first bytes are taken: who goes on with them is told no more than any other."""
    with agents(tmp_path) as ([agent], key):
        host, port = agent.address.rsplit(":", 1)
        with socket.create_server(("127.0.0.1", 0)) as server:
            attaching = roost.attach([f"127.0.0.1:{server.getsockname()[1]}"], key_file=key)
            driver, _ = await asyncio.to_thread(server.accept)
            hello = await asyncio.to_thread(driver.recv, HELLO_BYTES, socket.MSG_WAITALL)
            driver.close()
            with pytest.raises(HostLostError):
                await attaching
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(hello[: MAJOR + 2] + (7).to_bytes(2, "little") + hello[MAJOR + 4 :])
            answer = await asyncio.to_thread(connection.recv, HELLO_BYTES, socket.MSG_WAITALL)
            assert (len(answer), answer[REFUSAL]) == (HELLO_BYTES, 0)
