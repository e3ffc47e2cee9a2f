"""The README's two machines, word for word, with two network namespaces in their place."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[3] / "README.md"
MACHINES = ("one", "two")
ETC = Path("/etc/netns")

COPY = """#!/bin/sh
# Stands for scp: the machines share a file system, and differ in their home.
cp -p "$1" "{folder}/${{2%:}}/"
"""


def section():
    """(what is typed, by machine in its order, the program)."""
    text = README.read_text().partition("\n## Two machines\n")[2].partition("\n## ")[0]
    typed = re.findall(rf"^({'|'.join(MACHINES)})\$ (.*)$", text, re.MULTILINE)
    [program] = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return typed, program


@pytest.fixture
def machines(network, tmp_path):
    """Runs a command on a machine: each has a home, and knows the other by its name."""
    hosts = dict(zip(MACHINES, (network.add(), network.add()), strict=True))
    names = "127.0.0.1 localhost\n" + "".join(f"{host.address} {name}\n" for name, host in hosts.items())
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "python").symlink_to(sys.executable)
    (commands / "scp").write_text(COPY.format(folder=tmp_path))
    (commands / "scp").chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    for name, host in hosts.items():
        (tmp_path / name).mkdir()
        (ETC / host.namespace).mkdir(parents=True)
        (ETC / host.namespace / "hosts").write_text(names)

    def run(machine, line):
        return subprocess.Popen(
            ["ip", "netns", "exec", hosts[machine].namespace, *shlex.split(line)], cwd=tmp_path / machine, env=environ,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    yield run
    for host in hosts.values():
        (ETC / host.namespace / "hosts").unlink()
        (ETC / host.namespace).rmdir()


def test_the_two_machines_of_the_readme(machines, tmp_path):
    typed, program = section()
    assert [machine for machine, _ in typed] == ["one", "one", "one", "two"]
    agents = []
    for machine, line in typed:
        process = machines(machine, line)
        if " host " in line:
            assert process.stdout.readline().startswith("listening on 0.0.0.0:7000 advertised as ")
            agents.append(process)
        else:
            said = process.communicate()
            assert (process.returncode, *said) == (0, "", ""), line
    (tmp_path / "one" / "program.py").write_text(program)
    for _ in range(2):
        driver = machines("one", "python program.py")
        out, error = driver.communicate()
        assert (driver.returncode, error) == (0, "")
        places = [line.partition(" is process ")[0] for line in out.splitlines()]
        assert places == ["hosts=0,gpus=0", "hosts=0,gpus=1", "hosts=1,gpus=0", "hosts=1,gpus=1"]
    for agent in agents:
        agent.send_signal(signal.SIGINT)
        agent.communicate()
        assert agent.returncode == 0
