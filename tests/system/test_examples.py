"""Each program in examples/ runs, prints what it should, and leaves no process behind."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTED = {
    "hello": """\
0,0: Hello, world, from rank 0
0,1: Hello, world, from rank 1
1,0: Hello, world, from rank 2
1,1: Hello, world, from rank 3
Hello, Roost, from rank 2
4 processes, none of them the driver: True
""",
    "restart": """\
counts: [5, 5]
seen: procs[ranks=1] was killed by SIGKILL (signal 9)
back: incarnation 1 has 5
counts: [6, 6]
incarnations: [0, 1]
""",
    "streams": """\
rank 0: [1009, 1013, 1019]
rank 1: [2003, 2011, 2017]
rank 2: [3001, 3011, 3019]
first above 1050: 1051
far fewer than a million were made: True
""",
    "channels": """\
60 reports of 120000 darts; each worker sent [20]
pi is about 3.14
""",
    "numpy_broadcast": """\
64 MiB sent to 4 processes
each wrote to its own: [0.0, 1.0, 2.0, 3.0] - the sender's is as it was: 1.0
products: [1.0, 5.0, 13.0, 25.0]
""",
}


def run(*command: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a program in a session of its own, and look what is left of it."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        process.kill()
    left = members(process.pid)
    assert not left, f"left behind: {left}"
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def members(session: int) -> dict[int, str]:
    """The processes of a session, with their states, without zombies that wait for init."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found[int(stat.parent.name)] = fields[0]
    return found


@pytest.mark.parametrize("name", PRINTED)
def test_example(name):
    done = run(str(EXAMPLES / f"{name}.py"), timeout=20)
    assert done.stderr == ""
    assert done.stdout == PRINTED[name]
    assert done.returncode == 0


def test_every_example_is_tried_and_short():
    programs = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert programs.keys() == PRINTED.keys()
    for path in programs.values():
        assert len(path.read_text().splitlines()) < 60, path.name
