"""Keys and certificates in files, and what `python -m roost` says of them before it does anything."""

import os

import pytest

import roost
from roost import process
from roost.cli import main
from roost.keys import make_key, read_key


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    make_key(path)
    return path


def test_a_key_is_made_once_and_its_owners_alone(key, tmp_path):
    assert key.stat().st_mode & 0o777 == 0o600
    digits = read_key(key)
    assert len(bytes.fromhex(digits.decode())) == 32
    with pytest.raises(FileExistsError, match="never written over"):
        make_key(key)
    assert read_key(key) == digits
    make_key(tmp_path / "another")
    assert read_key(tmp_path / "another") != digits


def test_white_space_around_a_key_is_nothing(key):
    digits = read_key(key)
    key.write_bytes(b"\n  " + digits.upper() + b" \r\n")
    assert read_key(key).lower() == digits


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "too short: 0"),
        (b"ab" * 31, "too short: 62"),
        (b"ab" * 33, "too long"),
        (b"xy" * 32, "no hexadecimal digits"),
    ],
)
def test_what_is_no_key(key, text, why):
    key.write_bytes(text)
    with pytest.raises(ValueError, match=why):
        read_key(key)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_key_that_others_can_read_is_none(key, mode):
    key.chmod(mode)
    with pytest.raises(PermissionError, match="others can read or change"):
        read_key(key)


def test_no_key_is_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="python -m roost key"):
        read_key(tmp_path / "none")
    with pytest.raises(ValueError, match="is no file"):
        read_key(os.devnull)


def test_certificates_are_pem_files_and_the_key_is_a_secret(tmp_path):
    ca, secret = tmp_path / "ca.pem", tmp_path / "key.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    secret.write_text("-----BEGIN PRIVATE KEY-----\n")
    secret.chmod(0o600)
    tls = roost.Tls(ca=ca, certificate=ca, key=secret)
    assert tls._read() == (ca.read_bytes(), ca.read_bytes(), secret.read_bytes())
    secret.chmod(0o644)
    with pytest.raises(PermissionError, match="others can read or change the private key"):
        tls._read()
    with pytest.raises(FileNotFoundError, match=r"Tls ca: .*none cannot be read"):
        roost.Tls(ca=tmp_path / "none", certificate=ca, key=secret)._read()
    ca.write_text("no certificate")
    with pytest.raises(ValueError, match="is no PEM file"):
        tls._read()
    with pytest.raises(TypeError, match="Tls ca=None"):
        roost.Tls(ca=None, certificate=ca, key=secret)


def test_the_command_makes_a_key_and_never_writes_over_one(tmp_path, capsys):
    path = str(tmp_path / "key")
    assert main(["key", path]) == 0
    assert main(["key", path]) == 1
    assert "never written over" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (["--listen", "nowhere"], 2, "it has no port"),
        (["--advertise", "a b"], 2, "is no name of a host"),
        (["--tls-ca", "ca.pem"], 2, "are three files"),
        (["--key-file", "none"], 3, "there is no key in none"),
        (["--listen", "0.0.0.0:0"], 5, "would let everybody run programs here"),
        (["--listen", "[::]:0"], 5, "would let everybody run programs here"),
        (["--listen", "no-such-host.invalid:0"], 4, "cannot listen on no-such-host.invalid:0"),
        (["--parent-pid", "1"], 2, "--parent-pid 1"),
    ],
)
def test_an_agent_refuses_at_once_what_makes_no_sense(arguments, status, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["host", *arguments]) == status
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"wait_for": 2}, ValueError, "wait_for=2 hosts, and there are 1 addresses"),
        ({"wait_for": 0}, ValueError, "wait_for"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"lease_s": -1}, ValueError, "lease_s"),
        ({"insecure_plaintext": 1}, TypeError, "insecure_plaintext"),
        ({"tls": "ca.pem"}, TypeError, r"give a roost.Tls"),
        ({"key_file": "/nowhere/key"}, FileNotFoundError, "there is no key"),
    ],
)
def test_what_attach_refuses_before_it_does_anything(options, error, why):
    with pytest.raises(error, match=why):
        roost.attach(["127.0.0.1:1"], **options)
    assert process.running() is None
