"""A driver is killed at any moment of its life: nothing of its job is left."""

import os
import random
import subprocess
import sys
import time
import uuid
from pathlib import Path

from leftovers import processes
from times import shown

GONE_WITHIN_S = 2.0
MARK = "ROOST_SOAK_ROUND"


def marked(mark):
    """Processes that inherited this environment, the job's own mark included."""
    found = []
    for pid in processes():
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def start(folder, mark):
    environ = {**os.environ, MARK: mark, "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    program = [sys.executable, str(Path(__file__).with_name("driver_of_four.py"))]
    return subprocess.Popen(program, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def kill_and_time(driver, mark):
    """Seconds from the kill until no process is left."""
    begin = time.monotonic()
    driver.kill()
    driver.wait()
    driver.stdout.close()
    while left := marked(mark.encode()):
        assert time.monotonic() - begin < GONE_WITHIN_S, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left]
        time.sleep(0.001)
    return time.monotonic() - begin


def paths_of_sockets():
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line.split()[7] for line in lines if len(line.split()) > 7]


def test_nothing_is_left_of_a_killed_driver(rounds, figures, tmp_path):
    with_shared_memory = set(os.listdir("/dev/shm"))
    start_s, while_starting, while_up = 0.0, [], []
    for number in range(rounds(6, 1000)):
        mark = uuid.uuid4().hex
        begin = time.monotonic()
        driver = start(tmp_path, mark)
        if number % 2 == 0:
            # Up, with messages and shared memory in flight.
            assert driver.stdout.readline() == b"up\n"
            start_s = max(start_s, time.monotonic() - begin)
            time.sleep(random.uniform(0, 0.02))
            while_up.append(kill_and_time(driver, mark))
        else:
            time.sleep(random.uniform(0, start_s))
            while_starting.append(kill_and_time(driver, mark))
        assert set(os.listdir("/dev/shm")) <= with_shared_memory
        assert os.listdir(tmp_path) == []
        assert not [path for path in paths_of_sockets() if str(tmp_path) in path]
    figures(f"all gone after a kill while it starts: {shown(while_starting)}")
    figures(f"all gone after a kill while it works: {shown(while_up)}")
