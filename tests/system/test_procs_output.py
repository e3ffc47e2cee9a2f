"""What procs print goes on to the driver's output, or is dropped and counted; it never stands in the way."""

import os
import signal
import subprocess
import sys

import lives
import pytest
from leftovers import eventually
from procs import Driver

from roost import Actor, endpoint

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_lines_have_the_name_of_their_rank(capfd):
    with Driver() as driver:
        procs, _ = driver.up(2, (lives.say, "one", "two"), logs=True)
        driver.control.stop(procs, "enough", 5, 3)
        for proc in procs:
            driver.wait(proc, "stopped")
    out, err = capfd.readouterr()
    for rank in (0, 1):
        assert [line for line in out.splitlines() if f"[{rank}]" in line] == [f"[w[{rank}]] one", f"[w[{rank}]] two"]
        assert f"[w[{rank}]] ONE\n[w[{rank}]] TWO\n" in err


def test_without_logs_only_the_failure_has_the_last_lines(capfd):
    with Driver() as driver:
        [proc] = driver.spawn(1, (lives.exits, 3, "\n".join(f"line {number}" for number in range(100))))
        tail = driver.wait(proc, "failed")["stderr"].splitlines()
        assert tail == [f"line {number}" for number in range(60, 100)]
    assert capfd.readouterr() == ("", "")


def test_last_words_of_a_killed_proc_are_in_its_failure(capfd):
    with Driver() as driver:
        [proc] = driver.spawn(1, (lives.say_and_die, "no newline at the end"), logs=True)
        assert driver.wait(proc, "failed")["stderr"] == "no newline at the end"
    assert "[w[0]] no newline at the end\n" in capfd.readouterr().err


SCRIPT = """
import sys
sys.path[:] = {path!r}
import lives, procs
with procs.Driver(drain_logs_s={drain_s}) as driver:
    [proc], _ = driver.up(1, (lives.say_much, {lines}, 1000), logs=True)
    driver.control.stop([proc], "enough", 5, 3)
    details = driver.wait(proc, "stopped")
    print("exit", details["exit_code"], file=sys.stderr)
"""


def run(stdout, lines, drain_s=5.0):
    script = SCRIPT.format(path=sys.path, lines=lines, drain_s=drain_s)
    return subprocess.Popen([sys.executable, "-c", script], stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_everything_arrives_where_the_output_is_quick_enough(tmp_path):
    with (tmp_path / "out").open("w") as out, run(out, 3000) as process:
        assert "exit 0" in process.stderr.read()
    numbers = [int(line.split()[1]) for line in (tmp_path / "out").read_text().splitlines() if "dropped" not in line]
    assert numbers == sorted(numbers)
    assert len(numbers) > 900, "as much as the buffer holds, at the least"


def test_an_output_that_stands_still_stalls_nobody():
    read, write = os.pipe()
    try:
        with run(write, 5000, drain_s=0.2) as process:
            os.close(write)
            # Nobody reads; 5 MB do not fit into the pipe and the buffer.
            assert "exit 0" in process.stderr.read()
    finally:
        os.close(read)


def test_dropped_lines_are_counted():
    read, write = os.pipe()
    with run(write, 5000) as process:
        os.close(write)
        first = process.stderr.readline()
        assert first.strip() == "exit 0"
        with os.fdopen(read) as out:
            text = out.read()
    assert "lines dropped: the driver's output was too slow)" in text
    dropped = int(text.split(" lines dropped")[0].rsplit("(", 1)[1])
    assert dropped + text.count("x" * 1000) == 5000


class Talking(Actor):
    """Prints so many lines once a file is there, and says when it has."""

    @endpoint
    def talk(self, begin, lines):
        eventually(lambda: os.path.exists(begin), 60)
        for number in range(lines):
            print(f"line {number}", "x" * 3000)
        sys.stdout.flush()
        open(f"{begin} done", "x").close()


ON_A_HOST = """
import asyncio, sys
sys.path[:] = {path!r}
from roost import ProcessHosts, run
from test_procs_output import Talking

async def main():
    async with ProcessHosts(1) as hosts, hosts.spawn_procs(name="first") as first, hosts.spawn_procs(name="second") as second:
        talks = [await procs.spawn("talking", Talking) for procs in (first, second)]
        talks = [talking.talk.call_one({begin!r} + str(number), {lines}) for number, talking in enumerate(talks)]
        await asyncio.sleep(0)
        print("asked", file=sys.stderr, flush=True)
        await asyncio.gather(*talks)

run(main())
"""


def test_so_are_those_of_another_host_when_its_driver_stands_still(tmp_path):
    """What the first has printed fills all that waits for the driver; then the second's lines have one buffer there, and no more."""
    lines, begin = 4_000, str(tmp_path / "begin")
    script = ON_A_HOST.format(path=[os.path.dirname(__file__), *sys.path], begin=begin, lines=lines)
    with (tmp_path / "out").open("w") as out:
        driver = subprocess.Popen([sys.executable, "-c", script], stdout=out, stderr=subprocess.PIPE, text=True)
    with driver:
        assert driver.stderr.readline() == "asked\n"
        driver.send_signal(signal.SIGSTOP)
        try:
            for number in range(2):
                open(f"{begin}{number}", "x").close()
                assert eventually(lambda number=number: os.path.exists(f"{begin}{number} done"), 60)
        finally:
            driver.send_signal(signal.SIGCONT)
        assert driver.stderr.read() == ""
    assert driver.returncode == 0
    second = [line for line in (tmp_path / "out").read_text().splitlines() if line.startswith("[second[")]
    dropped = sum(int(line.split("(")[1].split()[0]) for line in second if "lines dropped" in line)
    assert dropped > 0
    assert dropped + sum(" line " in line for line in second) == lines


def test_a_full_disk_stalls_nobody():
    with open("/dev/full", "w") as full, run(full, 3000) as process:
        assert "exit 0" in process.stderr.read()
