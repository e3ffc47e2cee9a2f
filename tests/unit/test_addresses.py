"""Addresses of hosts, as people type them."""

import asyncio

import pytest

from roost.addresses import is_loopback, parse, read_addresses, resolve


@pytest.mark.parametrize(
    ("text", "host", "port", "path"),
    [
        ("node1:7000", "node1", 7000, ""),
        ("10.0.0.1:1", "10.0.0.1", 1, ""),
        ("[::1]:7000", "::1", 7000, ""),
        ("[fe80::1%eth0]:7000", "fe80::1%eth0", 7000, ""),
        ("unix:/run/roost/host.sock", "", 0, "/run/roost/host.sock"),
    ],
)
def test_what_an_address_says(text, host, port, path):
    address = parse(text)
    assert (address.text, address.host, address.port, address.path) == (text, host, port, path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        (" node1:7000", "spaces around it"),
        ("node1:7000\n", "spaces around it"),
        ("node\0:7000", "cannot be seen"),
        ("node1", "it has no port"),
        ("[::1]", "it has no port"),
        (":7000", "it has no host"),
        ("node1:", "'' is no port"),
        ("node1:0", "'0' is no port from 1"),
        ("node1:65536", "'65536' is no port"),
        ("node1:7e3", "'7e3' is no port"),
        ("node1:\u0667", "is no port"),
        ("node1:-1", "'-1' is no port"),
        ("::1:7000", "an IPv6 address stands in brackets"),
        ("[node1]:7000", "'node1' is no IPv6 address"),
        ("tcp://node1:7000", "it is a URL"),
        ("node one:7000", "'node one' is no name of a host"),
        ("unix:run/host", "begins with /"),
        ("unix:/" + "x" * 200, "has at most 107 bytes"),
    ],
)
def test_what_is_none_says_why(text, why):
    with pytest.raises(ValueError, match="is no address") as raised:
        parse(text)
    assert why in str(raised.value)


def test_a_file_has_one_a_line(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# the cluster\n node1:7000  # the first\n\n[::1]:7000\n")
    assert [one.text for one in read_addresses(file)] == ["node1:7000", "[::1]:7000"]
    assert [one.text for one in read_addresses(str(file))] == ["node1:7000", "[::1]:7000"]


@pytest.mark.parametrize(
    ("addresses", "error", "why"),
    [
        ([], ValueError, "attaches nothing"),
        (["node1:7000", "node2:7000", "node1:7000"], ValueError, "'node1:7000' is there twice"),
        ([7000], TypeError, "7000 is no address"),
        (7000, TypeError, "give a list of addresses"),
        ("node1:7000", FileNotFoundError, r"one address is a list, too: \['node1:7000'\]"),
    ],
)
def test_what_is_no_list_of_addresses(addresses, error, why):
    with pytest.raises(error, match=why):
        read_addresses(addresses)


def test_a_malformed_line_is_named_and_so_is_an_empty_file(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("node1:7000\nnode2\n")
    with pytest.raises(ValueError, match=r"hosts, line 2: 'node2' is no address: it has no port"):
        read_addresses(file)
    file.write_text("# none yet\n")
    with pytest.raises(ValueError, match="has no address in it"):
        read_addresses(file)


async def test_a_name_is_resolved_to_all_that_it_stands_for():
    loop = asyncio.get_running_loop()
    found = await resolve(loop, parse("localhost:7000"))
    assert found
    assert all(is_loopback(one) and one.endswith(":7000") for one in found)
    assert await resolve(loop, parse("[::1]:7000")) == ["[::1]:7000"]
    assert await resolve(loop, parse("unix:/run/x")) == ["unix:/run/x"]


async def test_a_name_that_nobody_knows_is_an_error():
    with pytest.raises(OSError, match=r".+"):
        await resolve(asyncio.get_running_loop(), parse("no-such-host.invalid:7000"))
    with pytest.raises(OSError, match="is no name of a host"):
        await resolve(asyncio.get_running_loop(), parse(f"{'x' * 64}.example:7000"))
