"""O5. Nobody reads what the job prints, or there is no room for it: lines are dropped and counted, and the work goes on."""

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("nothing_left")

DRIVER = Path(__file__).with_name("driver_of_loud_procs.py")
# A buffer for each proc, and what the allocator makes of it.
GROWTH_BYTES_MAX = 32 << 20


def on_a_small_disk(command, folder):
    """The same command with its output on a disk of 1 MiB, in a mount namespace of its own."""
    script = f'mount -t tmpfs -o size=1m tmpfs "{folder}" && exec "$@" >"{folder}/out" 2>&1'
    return ["unshare", "--mount", "sh", "-c", script, "sh", *command]


def may_mount(folder):
    try:
        return subprocess.run(on_a_small_disk(["true"], folder), check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize(
    "output", ["a pipe that nobody reads", "a full device", "a full disk", "one that is read slowly"]
)
def test_o5_an_output_that_takes_nothing_stalls_nobody(output, rounds, figures, promised, tmp_path):
    disk, told = tmp_path / "disk", tmp_path / "told"
    disk.mkdir()
    command = [sys.executable, str(DRIVER), str(told), str(rounds(1, 60))]
    read, write = os.pipe()
    try:
        if output == "a full disk":
            if not may_mount(disk):
                pytest.skip("no disk can be mounted here")
            done = subprocess.run(on_a_small_disk(command, disk), check=False)
        elif output == "a full device":
            with open("/dev/full", "w") as full:
                done = subprocess.run(command, stdout=full, stderr=full, check=False)
        else:
            process = subprocess.Popen(command, stdout=write, stderr=write)
            os.close(write)
            write = None
            if output == "one that is read slowly":
                text = read_slowly(read, told)
                assert re.search(r"\d+ lines dropped", text), "they are counted"
            process.wait()
            done = process
    finally:
        os.close(read)
        if write is not None:
            os.close(write)
    # The interpreter says with 120 that its own last words found no room.
    assert done.returncode in ((0, 120) if output.startswith("a full") else (0,))
    waits, printed, grown, stop_s = ast.literal_eval(told.read_text())
    figures(f"{printed} lines printed, the driver grew by {grown >> 20} MiB, the stop took {1000 * stop_s:.0f} ms")
    assert grown < GROWTH_BYTES_MAX
    promised("a call meanwhile", waits, 99, 0.25)


def read_slowly(fd, told):
    """A page now and then while the program works; all of the rest at its end."""
    parts = []
    while not told.exists():
        parts.append(os.read(fd, 4096))
        time.sleep(0.002)
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts).decode(errors="replace")
