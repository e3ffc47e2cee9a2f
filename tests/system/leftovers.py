"""What a test may have left behind: processes, descriptors, shared memory."""

import gc
import os
import time
import uuid
from contextlib import contextmanager, suppress
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
        # One that has ended meanwhile, of threads or of descriptors: that which lists them.
        with suppress(OSError):
            for entry in (task / "fd").iterdir():
                with suppress(OSError):
                    found.add((task.name if task.name != str(os.getpid()) else "main", entry.name, os.readlink(entry)))
    return found


def eventually(condition, within_s=20.0):
    """Look until it is true; False when it never was."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def left_behind(found, before, within_s=20.0):
    """What there is beyond what there was, when that has had some time to go."""
    end = time.monotonic() + within_s
    while True:
        left = {name: seen for name, seen in found().items() if name not in before}
        if not left or time.monotonic() > end:
            return left
        # To look takes a while: each process of the machine is asked for its environment.
        time.sleep(0.01)


@contextmanager
def leaving_nothing():
    gc.collect()
    # Tests that run beside this one have some shared memory for a while.
    kinds = {
        "processes": started_here,
        "descriptors": lambda: dict.fromkeys(descriptors()),
        "shared memory": lambda: dict.fromkeys(os.listdir("/dev/shm")),
    }
    before = {kind: found().keys() for kind, found in kinds.items()}
    yield
    gc.collect()
    for kind, found in kinds.items():
        left = left_behind(found, before[kind])
        assert left == {}, f"{kind}: left behind are {left}"
