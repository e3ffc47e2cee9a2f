"""What all jobs have in common, with real agents on this machine."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
from loops import next_of, on_a_loop
from working import Worker

from roost.errors import CallTimeoutError, JobError
from roost.job import MeshSpec, ProcessJob

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(60)]

PROGRAM = """\
import sys
sys.path.append({tests!r})
from roost.job import ProcessJob
from working import Worker

job = ProcessJob({{"trainers": 2}}, name="plain", folder={folder!r})

if __name__ == "__main__":
    with job.state().result() as hosts, hosts.trainers.spawn_procs() as procs:
        print(list(procs.spawn("workers", Worker).add.call(1).result()))
"""


@on_a_loop
async def test_hosts_by_name_that_outlive_who_asked_for_them(tmp_path):
    job = ProcessJob({"trainers": 2, "readers": 1}, name="j", folder=tmp_path)
    applied = await job.apply()
    try:
        assert (await job.apply()).ids == applied.ids, "it was asked for already"
        await uses(job, {"trainers": 2, "readers": 1})
        later = ProcessJob.connect("j", folder=tmp_path)
        assert later.meshes == job.meshes
        await uses(later, {"trainers": 2, "readers": 1})
        with pytest.raises(JobError, match=r"another job 'j' is running .*env is {} there, {'A': 'b'} here"):
            await ProcessJob({"trainers": 2, "readers": 1}, name="j", folder=tmp_path, env={"A": "b"}).apply()
    finally:
        ended = await job.kill()
    assert (ended.state, ended.failed, ended.reason) == ("ended", False, "killed: its agents have ended")
    assert len(ended.ids) == 3, "a process each"
    assert await job.kill() == ended
    assert [event.kind async for event in job.events()] == ["running", "ended"], (
        "of what is over it is told that it ran"
    )
    with pytest.raises(JobError, match=r"(?s)ended.*apply\(\) asks for it anew.*the last lines of .*trainers"):
        await job.ready()
    assert not list(tmp_path.glob("*/key")), "the key is gone"
    assert any("SIGTERM" in line for line in job.logs("readers"))


async def uses(job, sizes):
    """Be the job's driver, the only one."""
    async with await job.state() as hosts:
        assert {name: len(mesh) for name, mesh in hosts.items()} == sizes
        with pytest.raises(AttributeError, match=r"no mesh 'others': it has trainers, readers"):
            hosts.others.spawn_procs()
        with pytest.raises(JobError, match=f"in use .driver. by process {os.getpid()} on"):
            await ProcessJob.connect("j", folder=job.folder).state()
        async with hosts.trainers.spawn_procs() as procs:
            assert list(await procs.spawn("workers", Worker).add.call(1)) == [11, 11]


@on_a_loop
async def test_a_host_that_is_lost_is_told_of_once_and_the_others_go_on(tmp_path):
    job = ProcessJob({"trainers": MeshSpec(3, at_least=2)}, name="j", folder=tmp_path)
    await job.apply()
    events = job.events()
    try:
        async with await job.state() as hosts, hosts.trainers.spawn_procs(supervise=heard) as procs:
            workers = await procs.spawn("workers", Worker)
            os.kill(pid_of(job, 1), signal.SIGKILL)
            lost = await next_of(events, "host_lost")
            assert (lost.mesh, lost.rank, lost.host) == ("trainers", 1, "trainers1")
            assert "its agent was killed by signal 9" in lost.reason
            assert [await workers.slice(hosts=rank).add.call_one(1) for rank in (0, 2)] == [11, 11]
        async with await job.state() as hosts:
            assert list(hosts.trainers.names) == ["trainers0", "trainers2"]
        os.kill(pid_of(job, 0), signal.SIGKILL)
        assert (await next_of(events, "host_lost")).rank == 0
        with pytest.raises(JobError, match=r"trainers needs 2 hosts of j, and 1 are left: trainers\[0\] lost"):
            await job.ready()
    finally:
        await job.kill()
    assert [event.kind async for event in events] == ["ended"]


async def heard(_failure):
    return True


def pid_of(job, place):
    [path] = [path for path in job_files(job) if path.endswith(f"hosts/trainers-0/0/{place}")]
    with open(path) as file:
        return json.load(file)["pid"]


def job_files(job):
    return [os.path.join(folder, name) for folder, _, names in os.walk(job.folder) for name in names]


@on_a_loop
async def test_more_hosts_and_fewer(tmp_path):
    job = ProcessJob({"trainers": 1}, name="j", folder=tmp_path)
    await job.apply()
    try:
        await job.ready()
        await job.resize("trainers", 3)
        assert [one.rank for one in (await job.ready()).up("trainers")] == [0, 1, 2]
        assert ProcessJob.connect("j", folder=tmp_path).meshes["trainers"].hosts == 3
        await job.resize("trainers", 2)
        async with await job.state() as hosts:
            assert list(hosts.trainers.names) == ["trainers0", "trainers1"]
            assert await hosts.more() == {}
            await job.resize("trainers", 3)
            [(name, more)] = (await hosts.more()).items()
            assert (name, list(more.names)) == ("trainers", ["trainers2"])
            async with more.spawn_procs() as procs:
                assert await procs.spawn("workers", Worker).add.call_one(1) == 11
        with pytest.raises(LookupError, match="no mesh 'readers'"):
            job.resize("readers", 1)
    finally:
        await job.kill()


@on_a_loop
async def test_who_is_missing_is_named_and_why(tmp_path):
    job = ProcessJob({"trainers": 1}, name="j", folder=tmp_path, python="/bin/false")
    await job.apply()
    with pytest.raises(JobError, match="exited with code 1"):
        await job.ready()
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    job = ProcessJob({"trainers": 1}, name="k", folder=tmp_path / "k", python=str(sleeper))
    await job.apply()
    with pytest.raises(CallTimeoutError, match=r"0 of 1 hosts of k listen after 0.2 s. Missing: trainers\[0\] missing"):
        await job.ready(timeout=0.2)
    await job.kill()


@on_a_loop
async def test_waiting_may_be_given_up(tmp_path):
    job = ProcessJob({"trainers": 1}, name="j", folder=tmp_path)
    await job.apply()
    try:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job.wait(), 0.1)
    finally:
        await job.kill()


def test_a_plain_script_and_a_shell(tmp_path):
    program = tmp_path / "program.py"
    folder = tmp_path / "job"
    program.write_text(PROGRAM.format(tests=os.path.dirname(os.path.dirname(__file__)) + "/system", folder=str(folder)))
    where = f"{program}:job"

    def roost(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "roost", "job", *arguments], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    assert roost("render", where)[1].startswith("2 × ")
    status, _, said = roost("logs", where, "trainers")
    assert (status, "no job was applied" in said) == (1, True)
    try:
        assert json.loads(roost("apply", where, "--wait", "--json")[1])["state"] == "running"
        ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
        assert (ran.stdout, ran.returncode) == ("[11, 11]\n", 0), ran.stderr
        assert "trainers[1] up trainers1" in roost("status", where)[1]
        typed = "with hosts.trainers.spawn_procs() as procs: print(procs.exec(['true']).result())\n\n"
        command = [sys.executable, "-m", "roost", "shell", where]
        shell = subprocess.run(command, input=typed, capture_output=True, text=True, check=False)
        assert (shell.returncode, shell.stdout.count("ValueMesh")) == (0, 1), shell.stderr
        assert "trainers[0] up trainers0" in shell.stderr
        assert roost("logs", where, "trainers", "1")[1].startswith("listening on ")
    finally:
        status, said, _ = roost("kill", where)
    assert (status, "ended: killed" in said) == (0, True)
    assert roost("status", f"{program}:nope")[2] == (
        f"python -m roost job status: {program} defines no job 'nope' at its top level: it has job\n"
    )
