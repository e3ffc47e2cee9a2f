"""Procs start: forked, executed, or not at all."""

import ast
import functools
import os
import resource
import sys

import lives
import pytest
from loops import on_a_loop
from procs import Driver, lines, policy, template_pid

from roost import Actor, endpoint, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("cold", [False, True])
def test_procs_come_up_and_stop(cold):
    with Driver() as driver:
        procs, pids = driver.up(3, cold=cold)
        assert len(set(pids)) == 3
        driver.control.stop(procs, "enough", 5, 3)
        for proc in procs:
            details = driver.wait(proc, "stopped")
            assert (details["kind"], details["exit_code"], details["reason"]) == ("stopped", 0, "enough")
            driver.wait(proc, "gone")
            assert list(driver.story(proc)) == [(0, "starting"), (0, "up"), (0, "stopped"), (0, "gone")]


@pytest.mark.parametrize("cold", [False, True])
def test_what_a_proc_finds_at_its_start(tmp_path, monkeypatch, cold):
    monkeypatch.setenv("TESTED", "before")
    with Driver() as driver:
        driver.up(1)  # The template is there now, with the environment of that moment.
        monkeypatch.setenv("TESTED", "after")
        monkeypatch.chdir(tmp_path)
        (proc, *_), _ = driver.up(2, (lives.describe, tmp_path / "found"), cold=cold)
        found = [ast.literal_eval(line) for line in lines(tmp_path / "found", 2)]
        for one in found:
            assert one["cwd"] == str(tmp_path)
            assert one["TESTED"] == "after"
            assert one["shown"], "the kernel shows the mark, so that children of a fork carry it too"
            assert one["group"]
            assert one["stdin"] == "/dev/null"
            assert one["blocked"] == set()
        marks = {one["mark"] for one in found}
        assert f"{driver.job.hex()}/{proc:016x}/{0:08x}" in marks
        assert found[0]["random"] != found[1]["random"]


def test_forked_procs_draw_different_numbers(tmp_path):
    with Driver() as driver:
        driver.up(2, (lives.describe, tmp_path / "found"), preload=["numpy", "numpy.random"])
        first, second = (ast.literal_eval(line) for line in lines(tmp_path / "found", 2))
        assert first["numpy"] != second["numpy"]
        assert driver.warnings() == []


@pytest.mark.parametrize("cold", [False, True])
def test_what_a_proc_executes_inherits_no_descriptor(tmp_path, cold):
    with Driver() as driver:
        driver.up(1, (lives.list_descriptors, tmp_path / "found"), cold=cold)
        assert lines(tmp_path / "found", 1) == ["[]"]


def test_a_command_stands_for_the_interpreter(tmp_path):
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\nexport TESTED="wrapped"\nexec "$@"\n')
    wrapper.chmod(0o700)
    with Driver() as driver:
        driver.up(1, (lives.describe, tmp_path / "found"), command=[str(wrapper), sys.executable])
        lines(tmp_path / "found", 1)


@on_a_loop
async def test_a_function_counts_as_what_it_takes_itself_not_as_what_it_wraps():
    @functools.wraps(lambda point: {})
    def env(point, incarnation):
        return {"TESTED": f"{dict(point)} {incarnation}"}

    async with this_host().spawn_procs(
        {"gpus": 1}, env=env, setup=functools.partial(lives.expects_tested, "{'gpus': 0} 0")
    ):
        pass


def failure(driver, proc):
    """The failed start of a proc."""
    details = driver.wait(proc, "failed")
    assert details["kind"] == "start"
    return details


def test_a_command_that_is_not_there_is_named():
    with Driver() as driver:
        [proc] = driver.spawn(command=["no-such-wrapper", "-N0", sys.executable])
        reason = failure(driver, proc)["reason"]
        assert "no-such-wrapper -N0" in reason
        assert "not found" in reason


def test_a_command_that_ends_at_once_is_named_with_its_last_words():
    with Driver() as driver:
        [proc] = driver.spawn(command=["sh", "-c", "echo the wrapper is cross >&2; exit 3"])
        details = failure(driver, proc)
        assert details["exit_code"] == 3
        assert details["reason"] == "exited with code 3 before it was ready"
        assert details["stderr"] == "the wrapper is cross"


@pytest.mark.parametrize("cold", [False, True])
def test_a_setup_that_raises_is_a_failed_start(cold):
    with Driver() as driver:
        [proc] = driver.spawn(1, (lives.raises, "not today"), cold=cold)
        details = failure(driver, proc)
        assert details["reason"] == "setup raised ValueError: not today"
        assert "in raises" in details["stderr"]


def test_a_failed_start_is_mended_by_the_policy(tmp_path):
    with Driver() as driver:
        setup = (lives.by_incarnation, tmp_path / "lives", (lives.exits, 1), None)
        [proc] = driver.spawn(1, setup, policy=policy(3))
        driver.wait(proc, "up", 1)
        assert driver.wait(proc, "dead", 0)["kind"] == "start"
        assert lines(tmp_path / "lives", 2) == ["0", "1"]


def test_a_preload_that_cannot_be_imported_fails_the_start():
    with Driver() as driver:
        [proc] = driver.spawn(preload=["no_such_module"])
        details = failure(driver, proc)
        assert "importing no_such_module raised ModuleNotFoundError" in details["reason"]
        assert "Traceback" in details["stderr"]
        # Others are not concerned.
        driver.up(1)


def test_a_preload_that_starts_threads_makes_procs_start_cold(tmp_path, monkeypatch):
    (tmp_path / "threads_at_import.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Driver() as driver:
        driver.up(1, preload=["threads_at_import"])
        [text] = driver.warnings()
        assert "threads_at_import" in text
        assert "cold" in text


def test_a_killed_template_kills_no_proc_and_a_new_one_is_started():
    with Driver() as driver:
        [proc], [pid] = driver.up(1)
        first = template_pid(driver.job)
        os.kill(first, 9)
        driver.up(2)
        assert template_pid(driver.job) not in (None, first)
        assert driver.story(proc) == [(0, "starting"), (0, "up")]
        # Its end is seen as before, and its status too: the driver is its parent now.
        os.kill(pid, 11)
        assert driver.wait(proc, "failed")["signal"] == 11


def test_many_procs_at_once():
    with Driver() as driver:
        procs, pids = driver.up(40)
        assert len(set(pids)) == 40
        driver.control.stop(procs, "enough", 5, 3)
        for proc in procs:
            assert driver.wait(proc, "stopped")["exit_code"] == 0


def test_without_descriptors_a_spawn_fails_with_the_reason_and_the_rest_lives():
    with Driver() as driver:
        [proc], _ = driver.up(1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Each proc takes seven of the agent's table.
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
        try:
            procs = driver.spawn(10)
            reasons = [failure_or_none(driver, one) for one in procs]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert any(reason and "open files" in reason for reason in reasons)
        assert driver.story(proc) == [(0, "starting"), (0, "up")]
        driver.up(1)


def failure_or_none(driver, proc):
    _, notice = driver.until(
        lambda notice: notice[0] == "member" and notice[2] == proc and notice[4] in ("up", "failed")
    )
    return notice[5].get("reason")


def test_a_lane_that_finds_no_descriptor_is_refused_and_may_be_asked_for_again():
    with Driver() as driver:
        # The control thread has a table of its own: only this one is full.
        wasted = []
        try:
            while True:
                wasted.append(os.dup(0))
        except OSError:
            pass
        [proc] = driver.spawn(1)
        try:
            _, notice = driver.until(lambda notice: notice[0] == "connect_failed")
        finally:
            for fd in wasted:
                os.close(fd)
        assert notice[1] == proc
        assert "descriptors" in notice[2]
        driver.control.connect(proc)
        driver.until(lambda notice: notice[0] == "connected" and notice[1] == proc)


@on_a_loop
async def test_procs_share_the_devices_that_a_scheduler_has_given(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-0a1b, 6,7")
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    async with this_host().spawn_procs({"gpus": 2}, gpus_per_proc=2) as procs:
        seen = procs.spawn("seen", Environment)
        assert [*(await seen.devices.call()).values()] == [("4,GPU-0a1b", "0,1"), ("6,7", "2,3")]
    with pytest.raises(
        ValueError, match=r"procs\[gpus=2\] would need devices 4 to 5 of this host, and CUDA_VISIBLE_DEVICES=.* has 4"
    ):
        this_host().spawn_procs({"gpus": 3}, gpus_per_proc=2)


class Environment(Actor):
    @endpoint
    async def devices(self):
        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HIP_VISIBLE_DEVICES"]
