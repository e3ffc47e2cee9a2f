"""No orphans: what a proc started dies with it, and all procs with their driver."""

import os
import signal
import subprocess
import sys

import lives
import pytest
from leftovers import eventually, started_here, stat
from procs import Driver, lines, template_pid

pytestmark = pytest.mark.usefixtures("nothing_left")

DRIVER = """
import sys
sys.path[:] = {path!r}
import os, lives, procs
driver = procs.Driver()
_, first = driver.up(2, (lives.descend, {file!r}))
_, second = driver.up(1, (lives.descend, {file!r}), cold=True)
_, third = driver.up(1, (lives.hold_gil, {deaf!r}))
print(*first, *second, *third, procs.template_pid(driver.job), flush=True)
sys.stdin.read()
"""

DESCENDANTS = 6


@pytest.fixture
def job(tmp_path):
    """A driver in a process of its own; its process and those of its procs and their descendants."""
    file = str(tmp_path / "descendants")
    script = DRIVER.format(path=sys.path, file=file, deaf=str(tmp_path / "deaf"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], text=True, **pipes) as process:
        *procs, template = map(int, process.stdout.readline().split())
        descendants = [int(line) for line in lines(tmp_path / "descendants", 3 * DESCENDANTS)]
        yield process, procs, template, descendants
        process.kill()


def all_gone(pids, within_s=2.0):
    return eventually(lambda: all((stat(pid) or "Z")[0] == "Z" for pid in pids), within_s)


def test_a_killed_driver_leaves_nothing(job):
    process, procs, template, descendants = job
    process.kill()
    assert all_gone([*procs, template, *descendants]), "within two seconds"
    assert eventually(lambda: not started_here().keys() - {process.pid})


def test_a_driver_and_its_template_killed_together_leave_nothing(job):
    process, procs, template, descendants = job
    os.kill(template, signal.SIGKILL)
    process.kill()
    # What has shed its environment, left its session and lost its parents is found by the template alone.
    shed = [descendants[3 * 0 + 2], descendants[DESCENDANTS + 2], descendants[2 * DESCENDANTS + 2]]
    assert all_gone([*procs, template, *set(descendants) - set(shed)])
    for pid in shed:
        if (stat(pid) or "Z")[0] != "Z":
            os.kill(pid, signal.SIGKILL)


def test_stopped_procs_do_not_outlive_their_driver_either(job):
    process, procs, template, descendants = job
    for pid in procs[:2]:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    assert all_gone([*procs, template, *descendants])


@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.parametrize("cold", [False, True])
def test_descendants_die_with_their_proc_and_those_of_others_live(tmp_path, end, cold):
    with Driver() as driver:
        [first], [pid] = driver.up(1, (lives.descend, tmp_path / "first"), cold=cold)
        driver.up(1, (lives.descend, tmp_path / "second"))
        doomed = [int(line) for line in lines(tmp_path / "first", DESCENDANTS)]
        others = [int(line) for line in lines(tmp_path / "second", DESCENDANTS)]
        if end == "kill":
            os.kill(pid, signal.SIGKILL)
            driver.wait(first, "failed")
        else:
            driver.control.stop([first], "enough", 5, 3)
            driver.wait(first, "stopped")
        assert all_gone(doomed)
        assert all(stat(other) for other in others)
        # None is left a zombie: orphans are reaped by the template.
        assert eventually(lambda: all(stat(one) is None for one in doomed))


def test_the_template_forgets_nothing_at_the_end_of_the_job(tmp_path):
    driver = Driver()
    driver.up(1, (lives.descend, tmp_path / "found"))
    found = [int(line) for line in lines(tmp_path / "found", DESCENDANTS)]
    template = template_pid(driver.job)
    driver.close()
    assert all_gone([template, *found])


def test_a_template_that_still_imports_ends_with_its_driver(tmp_path):
    (tmp_path / "endless_import.py").write_text(
        f"import lives, time\nlives.tell({str(tmp_path / 'here')!r}, 1)\ntime.sleep(1000)\n"
    )
    script = (
        f"import sys\nsys.path[:] = {[*sys.path, str(tmp_path)]!r}\n"
        "import procs\ndriver = procs.Driver()\ndriver.spawn(preload=['endless_import'])\n"
        "print(driver.job.hex(), flush=True)\nsys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], text=True, **pipes) as process:
        job = bytes.fromhex(process.stdout.readline())
        lines(tmp_path / "here", 1)
        template = template_pid(job)
        process.kill()
    assert all_gone([template])


def test_a_control_that_is_only_dropped_ends_its_procs():
    driver = Driver()
    _, pids = driver.up(2)
    del driver.control
    assert all_gone(pids)
    for fd in driver.fds.values():
        os.close(fd)
