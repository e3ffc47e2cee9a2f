"""Where agents call a driver that does not know them: both ends of the conversation, and those who have no part in it."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from roost.addresses import parse
from roost.rendezvous import NotProvedError, Rendezvous, announce

KEY, OTHER = b"a" * 64, b"b" * 64


@asynccontextmanager
async def rendezvous(answer=lambda _caller: None, key=KEY):
    """A driver that waits: where, whom it has heard of, and itself."""
    heard = []

    def called(caller):
        heard.append((caller.name, caller.address.text))
        return answer(caller)

    listener = socket.create_server(("127.0.0.1", 0))
    where = parse("{}:{}".format(*listener.getsockname()))
    driver = Rendezvous(key, called)
    await driver.serve(listener)
    try:
        yield where, heard, driver
    finally:
        driver.close()


async def said_to(where, *pieces):
    """What a stranger is answered that says this."""
    reader, writer = await asyncio.open_connection(where.host, where.port)
    for piece in pieces:
        writer.write(piece)
    writer.write_eof()
    answered = await reader.read()
    writer.close()
    return answered


@pytest.mark.parametrize(
    ("listening", "found"), [(":7000", "127.0.0.1:7000"), ("there:7", "there:7"), ("[::1]:7", "[::1]:7")]
)
def test_a_host_is_heard_of_and_waits_until_no_host_is_looked_for(listening, found):
    async def main():
        async with rendezvous() as (where, heard, driver):
            calling = asyncio.ensure_future(announce(where, KEY, "host0", listening))
            while not heard:
                await asyncio.sleep(0)
            assert heard == [("host0", found)]
            assert not (await asyncio.wait([calling], timeout=0.02))[0]
            driver.close()
            assert await calling == ""

    asyncio.run(main())


def test_who_is_not_wanted_hears_why():
    async def main():
        async with rendezvous(lambda caller: f"not {caller.name}") as (where, _, _):
            assert await announce(where, KEY, "host0", ":7000") == "not host0"

    asyncio.run(main())


def test_another_key_is_refused_by_both_ends(caplog):
    async def main():
        async with rendezvous() as (where, heard, _):
            with pytest.raises(NotProvedError, match="same key"):
                await announce(where, OTHER, "host0", ":7000")
            assert not heard

    asyncio.run(main())
    assert "does not have the key that this program has" in caplog.text


def test_who_only_pretends_to_be_the_driver_is_refused():
    async def pretend(reader, writer):
        writer.write(b"roost rendezvous 1 " + b"0" * 64 + b"\n")
        said, proof = await reader.readline(), await reader.readline()
        # What the agent itself has shown is no proof of anybody else.
        writer.write(b"\n" + proof)
        assert said
        writer.close()

    async def main():
        server = await asyncio.start_server(pretend, "127.0.0.1", 0)
        where = parse("{}:{}".format(*server.sockets[0].getsockname()))
        async with server:
            with pytest.raises(NotProvedError, match="does not have the key"):
                await announce(where, KEY, "host0", ":7000")

    asyncio.run(main())


def test_a_recorded_call_is_of_no_use():
    async def main():
        recorded = []

        async def record(reader, writer):
            """Stands between the two, and keeps what the agent says."""
            there, here = await asyncio.open_connection(where.host, where.port)
            writer.write(await there.readline())
            for _ in range(2):
                recorded.append(await reader.readline())
                here.write(recorded[-1])
            writer.write(await there.readline() + await there.readline())
            here.close()
            writer.close()

        async with rendezvous() as (where, heard, _):
            between = await asyncio.start_server(record, "127.0.0.1", 0)
            async with between:
                by_way = parse("{}:{}".format(*between.sockets[0].getsockname()))
                assert await announce(by_way, KEY, "host0", ":7000") == ""
            assert len(heard) == 1
            greeting = await said_to(where, *recorded)
            assert greeting.count(b"\n") == 1, "no word more"
            assert len(heard) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "noise", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"x" * 100_000, b"{}\n" + b"0" * 64 + b"\n"]
)
def test_noise_is_answered_with_no_more_than_the_greeting(noise):
    async def main():
        async with rendezvous() as (where, heard, _):
            try:
                answered = await said_to(where, noise)
            except ConnectionResetError:
                answered = b""  # what it said was not even read
            assert answered.count(b"\n") <= 1
            assert not heard

    asyncio.run(main())


def test_a_port_that_is_no_rendezvous_is_said_to_be_none():
    async def serve(_reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def main():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            where = parse("{}:{}".format(*server.sockets[0].getsockname()))
            with pytest.raises(NotProvedError, match="takes calls"):
                await announce(where, KEY, "host0", ":7000")

    asyncio.run(main())
