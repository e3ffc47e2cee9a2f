"""A driver leaves `main` with calls in flight: its exit status is the program's own, and Roost says nothing."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from times import shown

ENDS_WITHIN_S = 3.0
# While other work keeps the machine busy.
ENDS_WITHIN_BUSY_S = 20.0

# How it leaves: exit status and the last line of stderr.
LEAVES = {
    "returns": (0, ""),
    "raises": (1, "LookupError: the program's own error"),
    "exits": (3, ""),
    "is interrupted": (-signal.SIGINT, "KeyboardInterrupt"),
}


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", LEAVES)
def test_a_driver_leaves_with_calls_in_flight(how, rounds, figures):
    status, last_line = LEAVES[how]
    within_s = rounds(ENDS_WITHIN_BUSY_S, ENDS_WITHIN_S)
    seconds = []
    for _ in range(rounds(2, 50)):
        begin = time.monotonic()
        program = [sys.executable, str(Path(__file__).with_name("driver_with_calls_in_flight.py")), how]
        run = subprocess.run(program, capture_output=True, text=True, check=False)
        seconds.append(time.monotonic() - begin)
        assert run.returncode == status, run.stderr
        assert run.stdout == ""
        assert (run.stderr.splitlines() or [""])[-1] == last_line
        assert "roost: " not in run.stderr
        assert seconds[-1] < within_s
    figures(f"from start to exit: {shown(seconds)}")
