"""O3, O4. A driver is interrupted, terminated, or leaves with everything still at work: it ends in order, with its own status."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leftovers import eventually, stat

from roost import run, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

HERE = Path(__file__).parent
# While other work keeps the machine busy.
BUSY_S = 60.0


class Terminal:
    """A program that a shell runs on a terminal of its own, as a person starts it."""

    def __init__(self, path, how, cleanup_s):
        self.path = path
        self.own, end = pty.openpty()
        # The first terminal that the leader of a session opens is its own. The shell says what it saw; that a Ctrl-C reaches it
        # too does not end it.
        script = 'exec <"$0" >"$0" 2>&1; trap : INT; "$@"; echo "status $?"'
        program = [sys.executable, str(HERE / "driver_on_a_terminal.py"), how, str(path), str(cleanup_s)]
        self.shell = subprocess.Popen(["sh", "-c", script, os.ttyname(end), *program], start_new_session=True)
        self.until("process ", 2)
        os.close(end)

    def lines(self):
        return self.path.read_text().splitlines() if self.path.exists() else []

    def until(self, begin, count):
        """Its actors have told so many lines that begin so."""
        assert eventually(lambda: sum(line.startswith(begin) for line in self.lines()) >= count, BUSY_S), self.lines()

    @property
    def pids(self):
        """The processes of its actors."""
        return [int(line.split()[1]) for line in self.lines() if line.startswith("process ")]

    @property
    def driver(self):
        """The driver's process."""
        (pid,) = Path(f"/proc/{self.shell.pid}/task/{self.shell.pid}/children").read_text().split()
        return int(pid)

    def press_ctrl_c(self):
        os.write(self.own, b"\x03")

    def end(self):
        """What the shell saw of the program, and the seconds until it did."""
        begin, text = time.monotonic(), b""
        while True:
            try:
                text += os.read(self.own, 4096)
            except OSError:
                break  # the last that had the terminal open is gone
        seconds = time.monotonic() - begin
        self.shell.wait()
        os.close(self.own)
        assert all(stat(pid) is None for pid in self.pids), "nothing of it is left"
        return text.decode(), seconds


@pytest.mark.parametrize("how", ["roost.run", "asyncio.run"])
def test_o3_ctrl_c_once_is_an_orderly_stop(how, rounds, promised, tmp_path):
    seconds = []
    for number in range(rounds(1, 20)):
        terminal = Terminal(tmp_path / f"told{number}", how, 0.1)
        terminal.press_ctrl_c()
        text, took = terminal.end()
        seconds.append(took)
        assert terminal.lines()[2:].count("clean") == 2, (
            "each actor was cleaned up, since only the driver was interrupted"
        )
        assert "status 130" in text
        assert "KeyboardInterrupt" in text
        assert "roost: " not in text
    promised("from Ctrl-C to the end", seconds, 100, 12.0)


def test_o3_ctrl_c_twice_ends_all_at_once(rounds, promised, tmp_path):
    seconds = []
    for number in range(rounds(1, 20)):
        terminal = Terminal(tmp_path / f"told{number}", "roost.run", 600)
        terminal.press_ctrl_c()
        terminal.until("cleaning", 2)
        terminal.press_ctrl_c()
        text, took = terminal.end()
        seconds.append(took)
        assert "clean" not in terminal.lines()
        assert "status 130" in text
    promised("from the second Ctrl-C to the end", seconds, 100, 1.0)


def test_o3_sigterm_is_an_orderly_stop_and_a_second_one_ends_all_at_once(rounds, promised, tmp_path):
    once, twice = [], []
    for number in range(rounds(1, 20)):
        terminal = Terminal(tmp_path / f"once{number}", "roost.run", 0.1)
        os.kill(terminal.driver, signal.SIGTERM)
        text, took = terminal.end()
        once.append(took)
        assert terminal.lines()[2:].count("clean") == 2
        assert text.split("\r\n") == ["status 143", ""]
        terminal = Terminal(tmp_path / f"twice{number}", "roost.run", 600)
        driver = terminal.driver
        os.kill(driver, signal.SIGTERM)
        terminal.until("cleaning", 2)
        os.kill(driver, signal.SIGTERM)
        text, took = terminal.end()
        twice.append(took)
        assert "clean" not in terminal.lines()
        assert text.split("\r\n") == ["status 143", ""]
    promised("from SIGTERM to the end", once, 100, 12.0)
    promised("from the second SIGTERM to the end", twice, 100, 1.0)


def test_o3_handlers_are_put_back():
    def handlers():
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]

    async def main():
        await this_host().spawn_procs()
        return handlers()

    before = handlers()
    assert run(main()) != before
    assert handlers() == before
    # Neither is anything left of a program that fails.
    with pytest.raises(LookupError):
        run(failing())
    assert handlers() == before


async def failing():
    await this_host().spawn_procs()
    raise LookupError


def test_o3_a_terminal_that_goes_away_leaves_nothing(tmp_path):
    terminal = Terminal(tmp_path / "told", "roost.run", 600)
    os.close(terminal.own)
    assert eventually(lambda: all(stat(pid) is None for pid in terminal.pids), BUSY_S)
    terminal.shell.wait()


# How it leaves with calls in flight: exit status and the last line of stderr.
LEAVES = {
    "returns": (0, ""),
    "raises": (1, "LookupError: the program's own error"),
    "exits": (3, ""),
    "is interrupted": (-signal.SIGINT, "KeyboardInterrupt"),
}
ENDS_WITHIN_S = 5.0


def run_and_time(*arguments):
    begin = time.monotonic()
    program = [sys.executable, str(HERE / "driver_with_calls_in_flight.py"), *arguments]
    run = subprocess.run(program, capture_output=True, text=True, check=False)
    return run, time.monotonic() - begin


@pytest.mark.parametrize("how", LEAVES)
def test_o4_a_driver_leaves_with_calls_in_flight(how, rounds, promised):
    """Its exit status is the program's own, and Roost says nothing."""
    status, last_line = LEAVES[how]
    seconds = []
    for _ in range(rounds(1, 50)):
        run, took = run_and_time(how)
        seconds.append(took)
        assert run.returncode == status, run.stderr
        assert run.stdout == ""
        assert (run.stderr.splitlines() or [""])[-1] == last_line
        assert "roost: " not in run.stderr
    promised("from start to exit", seconds, 100, ENDS_WITHIN_S)


@pytest.mark.parametrize("how", ["a loop", "no loop"])
def test_o4_a_failure_that_nobody_heard_is_told_at_the_very_end(how, rounds, promised):
    seconds = []
    for _ in range(rounds(1, 20)):
        run, took = run_and_time("has a dead proc", how)
        seconds.append(took)
        assert run.returncode == 70, run.stderr
        assert run.stdout == "the program is done\n"
        told = [line for line in run.stderr.splitlines() if line.startswith("roost: nobody heard of this failure: ")]
        assert len(told) == 1
        assert "procs[ranks=1] was killed by SIGKILL" in told[0]
    promised("from start to exit", seconds, 100, ENDS_WITHIN_S)
