"""What a test may have left behind: processes, descriptors, shared memory."""

import gc
import os
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

# Every process that a test starts inherits this variable, whatever becomes of its parents.
SESSION = f"ROOST_TEST_SESSION={uuid.uuid4().hex}"
os.environ.update([SESSION.split("=")])


def stat(pid):
    """State, parent and name of a process; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    state, parent, *_ = rest.split()
    return state, int(parent), name


def processes():
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def started_here():
    """Processes that this run of the tests started, zombies of ours included."""
    found = {}
    for pid in processes():
        seen = stat(pid)
        if pid == os.getpid() or seen is None:
            continue
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            environ = []
        if SESSION.encode() in environ or (seen[0] == "Z" and seen[1] == os.getpid()):
            found[pid] = seen
    return found


def descriptors():
    """This process's descriptors, in the file tables of all its threads."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        for entry in (task / "fd").iterdir():
            try:
                found.add((task.name if task.name != str(os.getpid()) else "main", entry.name, os.readlink(entry)))
            except OSError:
                continue  # It was the one that lists them.
    return found


def eventually(condition, within_s=20.0):
    """Look until it is true; False when it never was."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


@contextmanager
def leaving_nothing():
    gc.collect()
    before = started_here(), descriptors(), set(os.listdir("/dev/shm"))
    yield
    gc.collect()
    eventually(lambda: not started_here().keys() - before[0].keys())
    left = {pid: seen for pid, seen in started_here().items() if pid not in before[0]}
    assert left == {}, f"processes are left behind: {left}"
    eventually(lambda: not descriptors() - before[1])
    assert descriptors() - before[1] == set(), f"descriptors are left open: {descriptors() - before[1]}"
    # Tests that run beside this one have some for a while.
    eventually(lambda: set(os.listdir("/dev/shm")) <= before[2])
    assert set(os.listdir("/dev/shm")) <= before[2], "shared memory is left behind"
