"""Whether a training thread gets on, as its companion sees it."""

import threading
import time

from roost.ft.seat import Progress, unscheduled_s


def begun(times, limit_s):
    progress = Progress(lambda _: times[-1])
    progress.begin()
    progress.mark("step 1", limit_s)
    return progress


def test_a_thread_that_stands_still_is_overdue():
    assert begun([0.0], -1.0).overdue() == "step 1"
    assert begun([0.0], 60.0).overdue() is None
    assert begun([0.0], None).overdue() is None


def test_time_without_a_processor_is_left_out():
    times = [5.0]
    progress = begun(times, -1.0)
    # What was before it began is no excuse.
    assert progress.overdue() == "step 1"
    times.append(7.0)
    assert progress.overdue() is None, "two seconds without a processor, and one over the time"
    progress.mark("step 2", -1.0)
    assert progress.overdue() == "step 2"


def test_the_kernel_tells_how_long_a_thread_had_no_processor():
    """Two threads on one processor, without the GIL: each is ready half of the time."""
    import hashlib
    import os

    mine = os.sched_getaffinity(0)
    block = bytes(1 << 20)
    stopped = threading.Event()
    told = {}

    def compute(name):
        os.sched_setaffinity(0, {min(mine)})
        while not stopped.is_set():
            hashlib.blake2b(block).digest()
            told[name] = unscheduled_s(threading.get_native_id())

    threads = [threading.Thread(target=compute, args=(name,)) for name in "ab"]
    for one in threads:
        one.start()
    deadline = time.monotonic() + 20
    while not (told.get("a", 0) > 0.01 and told.get("b", 0) > 0.01) and time.monotonic() < deadline:
        stopped.wait(0.01)
    stopped.set()
    for one in threads:
        one.join()
    assert told["a"] > 0.01
    assert told["b"] > 0.01


def test_of_a_thread_that_is_not_there_nothing_is_said():
    assert unscheduled_s(1) == 0.0
