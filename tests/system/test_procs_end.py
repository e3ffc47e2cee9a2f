"""Procs end: by themselves, killed, stopped; and start again."""

import ctypes
import os
import resource
import signal
import sys
import time

import lives
import pytest
from leftovers import eventually, stat
from procs import Driver, lines, policy, template_pid

pytestmark = pytest.mark.usefixtures("nothing_left")


def kill_and_hear(driver, proc, pid, incarnation=0, status="failed"):
    """Seconds from the kill until the notice is read."""
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    at, details = driver.when(proc, status, incarnation)
    assert (details["kind"], details["signal"]) == ("signal", 9)
    return at - begin


def test_a_kill_is_heard_at_once():
    with Driver() as driver:
        # The best shows what it takes, however busy the machine is with something else.
        seconds = [1.0]
        while min(seconds) > 0.01 and len(seconds) < 100:
            procs, pids = driver.up(10)
            seconds += [kill_and_hear(driver, proc, pid) for proc, pid in zip(procs, pids, strict=True)]
        assert min(seconds) < 0.01


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mebibytes", [2048, pytest.param(8192, marks=pytest.mark.slow)])
def test_a_big_proc_is_heard_long_before_its_memory_is_free(mebibytes):
    with Driver() as driver:
        if mebibytes << 20 > os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4:
            pytest.skip("not so much memory is free")
        # The best shows what it takes, however busy the machine is with something else.
        seconds = [1.0]
        while min(seconds) > 0.02 and len(seconds) < 4:
            [proc], [pid] = driver.up(1, (lives.hold, mebibytes), policy=policy(1))
            seconds.append(kill_and_hear(driver, proc, pid, status="dead"))
            # The next incarnation starts only when the memory is free.
            driver.until(lambda notice, proc=proc: notice[0] == "member" and notice[2:5] == (proc, 1, "starting"))
            assert (stat(pid) or "Z")[0] == "Z"
            driver.control.stop([proc], "enough", 0, 0)
            driver.wait(proc, "stopped", 1)
        assert min(seconds) < 0.02


def test_forked_workers_that_hold_everything_delay_nothing(tmp_path):
    with Driver() as driver:
        [proc], [pid] = driver.up(1, (lives.fork_and_sleep, tmp_path / "workers"))
        [worker] = lines(tmp_path / "workers", 1)
        # It is ended when the death of its proc was heard, and not before.
        kill_and_hear(driver, proc, pid)
        assert eventually(lambda: stat(worker) is None), "the worker does not outlive its proc"


def test_a_proc_that_becomes_another_program_is_dead():
    with Driver() as driver:
        [proc], [pid] = driver.up(1, lives.replace_program)
        driver.wait(proc, "failed")
        assert eventually(lambda: stat(pid) is None)


@pytest.mark.parametrize("cold", [False, True])
def test_exit_codes_and_signals_are_told_and_nobody_is_left_a_zombie(cold):
    with Driver() as driver:
        [left], [left_pid] = driver.up(1, (lives.leave, 7, "last words"), cold=cold)
        details = driver.wait(left, "failed")
        assert (details["kind"], details["exit_code"], details["signal"]) == ("exit", 7, None)
        assert details["stderr"] == "last words"
        [ended] = driver.spawn(1, (lives.leave, 0), cold=cold)
        details = driver.wait(ended, "stopped")
        assert (details["kind"], details["exit_code"]) == ("exit", 0)
        [crashed], [pid] = driver.up(1, cold=cold)
        os.kill(pid, signal.SIGSEGV)
        assert "SIGSEGV" in driver.wait(crashed, "failed")["reason"]
        assert eventually(lambda: stat(pid) is None and stat(left_pid) is None)


def test_a_clean_end_is_clear_before_the_template_says_so():
    with Driver() as driver:
        [proc], _ = driver.up(1, (lives.leave, 0))
        template = template_pid(driver.job)
        os.kill(template, signal.SIGSTOP)
        try:
            details = driver.wait(proc, "stopped")
        finally:
            os.kill(template, signal.SIGCONT)
        assert (details["kind"], details["exit_code"]) == ("exit", 0)
        # Nobody waited for the status: a zombie's is in its place.
        assert details["times"]["detected_at"] - details["times"]["died_at"] < 0.05


def test_restart_in_place():
    with Driver() as driver:
        [proc], [pid] = driver.up(1, policy=policy(2))
        for incarnation in (1, 2):
            kill_and_hear(driver, proc, pid, incarnation - 1, "dead")
            details = driver.wait(proc, "up", incarnation)
            assert details["pid"] != pid
            pid = details["pid"]
            assert (proc, incarnation) in driver.fds, "the owner has a new lane each time"
        kill_and_hear(driver, proc, pid, 2)
        details = driver.wait(proc, "failed", 2)
        assert [reason["signal"] for reason in details["reasons"]] == [9, 9]
        one = ["starting", "up", "dead", "restarting"]
        driver.wait(proc, "gone", 2)
        story = [(0, status) for status in one] + [(1, status) for status in one]
        assert driver.story(proc) == [*story, (2, "starting"), (2, "up"), (2, "failed"), (2, "gone")]


def test_a_restart_needs_no_python_of_the_driver():
    with Driver() as driver:
        [proc], [pid] = driver.up(1, policy=policy(1))
        os.kill(pid, signal.SIGKILL)
        # Nothing is read, and the GIL is held: only the control thread works.
        ctypes.PyDLL(None).sleep(3)
        driver.read(0)
        assert driver.story(proc)[-1] == (1, "up")


def test_the_owner_is_asked_what_to_start():
    with Driver() as driver:
        [proc], [pid] = driver.up(1, policy=policy(2), ask=True)
        os.kill(pid, signal.SIGKILL)
        driver.until(lambda notice: notice == ("ask", proc, 1))
        driver.until(lambda notice: notice[0] == "warning" and "has not been answered" in notice[1])
        driver.control.respawn(proc, 1, driver.spec(proc, None), None, None)
        pid = driver.wait(proc, "up", 1)["pid"]
        os.kill(pid, signal.SIGKILL)
        driver.until(lambda notice: notice == ("ask", proc, 2))
        driver.control.respawn_failed(proc, 2, "env raised KeyError")
        assert driver.wait(proc, "failed", 2)["reason"] == "env raised KeyError"


def test_restart_on_request():
    with Driver() as driver:
        [proc], [pid] = driver.up(1)
        driver.control.restart([proc], "new code", 5, 3)
        details = driver.wait(proc, "dead")
        assert (details["kind"], details["reason"]) == ("stopped", "new code")
        assert driver.wait(proc, "up", 1)["pid"] != pid


@pytest.mark.parametrize(
    ("life", "signal_number", "seconds"),
    [
        (lives.block_loop, signal.SIGTERM, 0.3),
        (lives.ignore_sigterm, signal.SIGKILL, 0.6),
        (lives.hold_gil, signal.SIGTERM, 0.3),
    ],
)
def test_a_stop_escalates(tmp_path, life, signal_number, seconds):
    with Driver() as driver:
        [proc], _ = driver.up(1, (life, tmp_path / "deaf"))
        lines(tmp_path / "deaf", 1)
        begin = time.monotonic()
        driver.control.stop([proc], "enough", 0.3, 0.3)
        at, details = driver.when(proc, "stopped")
        assert details["signal"] == signal_number
        assert seconds <= at - begin < seconds + 10


def test_a_stopped_process_is_ended_too():
    with Driver() as driver:
        [proc], [pid] = driver.up(1)
        os.kill(pid, signal.SIGSTOP)
        driver.control.stop([proc], "enough", 0.1, 0.1)
        assert driver.wait(proc, "stopped")["signal"] == signal.SIGKILL


def test_a_kill_is_mended_and_has_its_reason():
    with Driver() as driver:
        [proc], _ = driver.up(1, policy=policy(1))
        driver.control.kill([proc], "it was stuck")
        assert driver.wait(proc, "dead")["reason"] == "killed by signal 9 (SIGKILL): it was stuck"
        driver.wait(proc, "up", 1)


def test_a_stop_while_it_starts():
    with Driver() as driver:
        procs = driver.spawn(4) + driver.spawn(2, cold=True)
        driver.control.stop(procs, "never mind", 5, 3)
        for proc in procs:
            assert driver.wait(proc, "stopped")["reason"] == "never mind"


def test_the_owner_is_told_that_a_lane_ended_before_that_the_next_began():
    with Driver() as driver:
        [proc], [pid] = driver.up(1, policy=policy(1))
        os.kill(pid, signal.SIGKILL)
        driver.wait(proc, "up", 1)
        kinds = [notice[0] if notice[0] == "connected" else notice[4] for _, notice in driver.notices]
        assert kinds == ["starting", "connected", "up", "dead", "restarting", "starting", "connected", "up"]


def test_a_fork_of_the_driver_gets_an_error_and_ends_nothing():
    with Driver() as driver:
        [proc], _ = driver.up(1)
        pid = os.fork()
        if pid == 0:
            try:
                driver.control.stop([proc], "no", 0, 0)
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert driver.story(proc) == [(0, "starting"), (0, "up")]


def test_a_proc_killed_by_the_memory_killer_says_so():
    controller = "/sys/fs/cgroup/memory"
    if not os.path.exists(f"{controller}/memory.limit_in_bytes") or not os.access(controller, os.W_OK):
        pytest.skip("no memory control group can be made here")
    group = f"{controller}/roost-test-{os.getpid()}"
    os.mkdir(group)
    script = (
        f"open('{group}/cgroup.procs', 'w').write(str(__import__('os').getpid()))\n"
        f"__import__('sys').path[:] = {sys.path!r}\n"
        "import lives, procs\n"
        "with procs.Driver() as driver:\n"
        "    [proc], [pid] = driver.up(1, (lives.soon, lives.hold, 1024))\n"
        "    print(driver.wait(proc, 'failed')['kind'])\n"
    )
    try:
        with open(f"{group}/memory.limit_in_bytes", "w") as file:
            file.write(str(400 << 20))
        run = subprocess_run([sys.executable, "-c", script])
    finally:
        eventually(lambda: try_rmdir(group))
    assert run.stdout.strip() == "oom", run.stderr


def subprocess_run(command):
    import subprocess

    return subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)


def try_rmdir(path):
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def test_limits_of_this_test_are_what_the_others_assume():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 256
