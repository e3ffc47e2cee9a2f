"""Plain scripts, a second event loop, forks, code of `__main__`: see the programs in `plain.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = (
    "without_a_loop", "from_threads", "one_loop_after_the_other", "two_loops", "handles_of_an_ended_job", "forked",
    "ends_its_children", "blocking_on_the_loop", "leaves_calls_in_flight", "types_of_main", "tracebacks_of_main",
    "arguments_of_the_program", "in_a_removed_directory", "whose_directory_goes",
)  # fmt: skip


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program):
    script = Path(__file__).with_name("plain.py")
    done = subprocess.run([sys.executable, script, program], capture_output=True, text=True, check=False, timeout=28)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
