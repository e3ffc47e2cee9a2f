"""What a job is made of, without a host: names, state files, scripts, what Slurm's commands write."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from loops import on_a_loop

from roost.errors import CallTimeoutError, JobError, Unavailable
from roost.job import HostStatus, JobStatus, KubernetesJob, MeshSpec, ProcessJob, SkyPilotJob, SlurmJob
from roost.job import slurm_commands as slurm
from roost.job.record import Part, new_record, read_record, tell_of
from roost.job.slurm import _nodes_of, _update
from roost.job.status import together

# As 22.05 and 24.11 write it, with the fields that are not read left out.
JOB = (
    "JobId={id} JobName=train Requeue=1 Restarts={restarts} JobState={state} Reason={reason} ExitCode=0:0 TimeLimit=00:10:00 "
    "StartTime=2026-11-30T13:49:40 EndTime={end} PreemptTime={preempt} ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] {more}"
)
FIELDS = {
    "id": 7, "restarts": 0, "state": "RUNNING", "reason": "None", "end": "2030-01-01T00:00:00", "preempt": "None", "more": ""
}  # fmt: skip


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Slurm's commands that say what they are told to: `commands(scontrol=(status, stdout, stderr))`."""

    def install(**said):
        for name, (status, out, err) in said.items():
            (tmp_path / f"{name}.out").write_text(out)
            (tmp_path / f"{name}.err").write_text(err)
            script = tmp_path / name
            script.write_text(f"#!/bin/sh\ncat {tmp_path}/{name}.out; cat {tmp_path}/{name}.err >&2; exit {status}\n")
            script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ProcessJob({}), "at least one mesh"),
        (lambda: ProcessJob({"Trainers": 1}), "no name for a mesh"),
        (lambda: ProcessJob({"values": 1}), "no name for a mesh"),
        (lambda: ProcessJob({"trainers": 0}), "is below 1"),
        (lambda: ProcessJob({"trainers": MeshSpec(2, at_least=3)}), "can never be"),
        (lambda: ProcessJob({"trainers": 1}, name="a b"), "no name for a job"),
        (lambda: SlurmJob({"trainers": 1}, folder="/tmp/a b"), "Slurm cannot write logs there"),
    ],
)
def test_what_cannot_be_is_refused_at_once(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ProcessJob(3),
        lambda: SlurmJob({"a": 1}, args="--mem=1G"),
        lambda: MeshSpec(1, args="x"),
        lambda: MeshSpec(1, args=None),
        lambda: MeshSpec(1, args=1),
        lambda: SlurmJob({"a": 1}, args=1),
        lambda: SlurmJob({"a": 1}, args=[1]),
        lambda: SlurmJob({"a": 1}, prologue=None),
        lambda: SlurmJob({"a": 1}, env=["A=1"]),
        lambda: ProcessJob({"a": 1}, env="A=1"),
        lambda: KubernetesJob({"a": 1}, labels=3),
        lambda: KubernetesJob({"a": 1}, pod="spec"),
        lambda: SkyPilotJob({"a": 1}, task=["x"]),
        lambda: SkyPilotJob({"a": 1}, setup=5),
    ],
)
def test_what_has_another_type_is_refused_too(make):
    with pytest.raises(TypeError, match="give"):
        make()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no state file"),
        ("[]", "is no state file"),
        ('{"format": 99, "roost": "7.0"}', "written by roost 7.0"),
        ('{"format": 1, "roost": "0.1.0"}', "is no state file"),
        (
            '{"format": 1, "roost": "0.1.0", "kind": "slurm", "name": "j", "run": "r", "spec": {}, "parts": []}',
            "a slurm job, and this is 'j', a process job",
        ),
    ],
)
@on_a_loop
async def test_a_state_file_of_something_else_is_an_error_and_stays(tmp_path, text, words):
    (tmp_path / "job.json").write_text(text)
    job = ProcessJob({"trainers": 1}, name="j", folder=tmp_path)
    for verb in (job.apply, job.status, job.kill):
        with pytest.raises(JobError, match=words):
            await verb()
    assert (tmp_path / "job.json").read_text() == text


@on_a_loop
async def test_a_job_that_was_never_applied(tmp_path):
    job = ProcessJob({"trainers": 1}, name="j", folder=tmp_path)
    assert (await job.status()).state == (await job.kill()).state == "absent"
    with pytest.raises(LookupError, match="apply it first"):
        await job.ready()
    with pytest.raises(LookupError, match="apply it, or give the folder"):
        ProcessJob.connect("j", folder=tmp_path)


def status(state="running", *hosts, **more):
    return JobStatus(name="j", state=state, hosts=hosts, **more)


def host(rank, state="up", **more):
    return HostStatus(mesh="trainers", rank=rank, state=state, address=f"a:{rank}", **more)


def test_a_status_is_one_document():
    document = json.loads(json.dumps(status("running", host(0, "lost", reason="no power"), ids=("7",)).to_json()))
    assert document["ids"] == ["7"]
    assert document["hosts"][0]["reason"] == "no power"


def test_hosts_that_are_alike_are_told_together():
    ill = [host(rank, "missing", reason="PENDING (Resources)") for rank in (0, 1, 2, 5, 7, 8)]
    lost = host(3, "lost", host="n4", reason="no power")
    assert together([*ill, lost]) == "trainers[0-2,5,7-8] missing (PENDING (Resources)); trainers[3] lost n4 (no power)"
    assert (together([]), str(lost)) == ("", "trainers[3] lost n4 (no power)")


@on_a_loop
async def test_a_reason_that_all_hosts_have_is_told_once(commands, tmp_path):
    job = SlurmJob({"trainers": 300}, name="j", folder=tmp_path)
    waits = JOB.format(**{**FIELDS, "state": "PENDING", "reason": "Resources"})
    commands(sbatch=(0, "7\n", ""), scontrol=(0, waits, ""))
    await job.apply()
    with pytest.raises(CallTimeoutError, match=r"Missing: trainers\[0-299\] missing \(PENDING \(Resources\)\)$"):
        await job.ready(timeout=0.1)


def test_a_script_of_two_meshes(tmp_path):
    job = SlurmJob(
        {"trainers": MeshSpec(2, gpus=8), "readers": MeshSpec(1, cpus=4, memory_mib=500, args=["--constraint=fast"])},
        name="train", folder=tmp_path, partition="main", time="1:00:00", prologue=["module load rocm"], env={"MODE": "a b"},
        python="/opt/python", srun_args=["--container-image=x"], requeue=True,
    )  # fmt: skip
    text = job.render()
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    lines = text.splitlines()
    components = "\n".join(lines).split("#SBATCH hetjob")
    assert "--gpus-per-node=8" in components[0]
    for option in ("--cpus-per-task=4", "--mem=500M", "--constraint=fast", "--partition=main", "--time=1:00:00"):
        assert f"#SBATCH {option}" in components[1]
    assert lines.index("module load rocm") < next(at for at, line in enumerate(lines) if line.startswith("srun"))
    steps = [line for line in lines if line.startswith("srun")]
    assert [step.split()[1] for step in steps] == ["--het-group=0", "--het-group=1"]
    assert all(
        "--no-kill --kill-on-bad-exit=0 --wait=0" in step and "--container-image=x /opt/python" in step
        for step in steps
    )
    # The key itself is on no command line.
    assert "--key-file" in steps[0]


def test_a_plain_job_is_no_heterogeneous_one(tmp_path):
    text = SlurmJob({"trainers": 2}, folder=tmp_path, driver=["python", "it's.py"]).render()
    assert "#SBATCH hetjob" not in text
    assert "--het-group" not in text
    assert """python 'it'"'"'s.py'""" in text


@pytest.mark.parametrize(
    ("fields", "state", "reason"),
    [
        ({}, "running", ""),
        ({"state": "PENDING", "reason": "Resources"}, "pending", "PENDING (Resources)"),
        ({"state": "COMPLETED"}, "ended", "COMPLETED"),
        ({"state": "OUT_OF_MEMORY", "reason": "OutOfMemory"}, "ended", "OUT_OF_MEMORY (OutOfMemory)"),
        ({"state": "NODE_FAIL"}, "pending", "NODE_FAIL"),
        ({"state": "COMPLETING"}, "running", "COMPLETING"),
        ({"preempt": "2026-11-30T13:55:13"}, "running", ""),
    ],
)
def test_what_slurm_says_of_a_job(commands, fields, state, reason):
    commands(scontrol=(0, JOB.format(**{**FIELDS, **fields}), ""))
    [part] = slurm.jobs("7").values()
    assert (part.state, part.reason, part.nodes) == (state, reason, "n[1-2]")
    assert part.is_preempted == ("preempt" in fields)
    assert (part.time_left_s is not None) == (part.word == "RUNNING")


def test_components_of_a_job_by_their_offset(commands):
    lines = [JOB.format(**{**FIELDS, "more": f"HetJobId=7 HetJobOffset={offset}"}) for offset in (0, 1)]
    commands(scontrol=(0, "\n".join(lines), ""))
    assert list(slurm.jobs("7")) == ["0", "1"]


def test_a_job_that_slurm_forgot_is_asked_of_the_accounting(commands):
    commands(
        scontrol=(1, "", "slurm_load_jobs error: Invalid job id specified\n"),
        sacct=(0, "7|CANCELLED by 1000|0:15\n", ""),
    )
    [part] = slurm.jobs("7").values()
    assert (part.state, part.reason, part.failed) == ("ended", "CANCELLED (by 1000, signal 15)", True)


def test_a_node_and_why(commands):
    line = "NodeName=n1 State=DOWN*+DRAIN ThreadsPerCore=1 Reason=no power [root@2026-11-30T13:52:59] Comment=x"
    commands(scontrol=(0, line, ""))
    assert slurm.nodes(["n1"]) == {"n1": ("DOWN*+DRAIN", "no power [root@2026-11-30T13:52:59]")}


def test_a_node_that_died_and_is_back_is_of_the_part_that_has_it_now(monkeypatch, tmp_path):
    monkeypatch.setattr(slurm, "expand", str.split)
    monkeypatch.setattr(slurm, "nodes", lambda names: dict.fromkeys(names, ("MIXED", "")))
    record = new_record(str(tmp_path), "slurm", "j", {})
    found = {}
    for rank, nodes in enumerate(["n2", "n1"]):
        part = Part("trainers", rank, 1, str(rank))
        told = Path(record.hosts_folder(part, 0), "0")
        told.parent.mkdir(parents=True)
        told.write_text('{"address": "n1:7000", "name": "n1", "pid": 1}')
        found[part] = slurm.SlurmPart("running", "RUNNING", "", "0:0", 0, nodes, None)
    gone, known = _nodes_of(record, found)
    assert gone == {("trainers", 0): "Slurm took it out of the job; Slurm: node n1 is MIXED"}
    assert known == {("trainers", 1): "Slurm: node n1 is MIXED"}


@pytest.mark.parametrize(
    ("nodes", "restarts", "joined", "has_run"),
    [("n[1-2]", 0, None, True), ("(null)", 0, None, False), ("(null)", 1, 1, True), ("(null)", 1, 0, False)],
    ids=["had nodes", "never had any", "an agent joined", "an agent of the life before joined"],
)
@on_a_loop
async def test_what_has_ended_says_whether_it_had_run(commands, tmp_path, nodes, restarts, joined, has_run):
    job = SlurmJob({"trainers": 2}, name="j", folder=tmp_path / "job")
    commands(sbatch=(0, "7\n", ""), scontrol=(0, JOB.format(**{**FIELDS, "state": "PENDING"}), ""))
    await job.apply()
    if joined is not None:
        record = read_record(job.folder)
        tell_of(record.hosts_folder(record.parts[0], joined), 0, "n1:7000", "n1")
    said = JOB.format(**{**FIELDS, "state": "CANCELLED", "restarts": restarts})
    commands(scontrol=(0, said.replace("NodeList=n[1-2]", f"NodeList={nodes}"), ""))
    # Whoever asks later asks the folder.
    for one in (job, SlurmJob.connect("j", folder=job.folder)):
        ended = await one.status()
        assert (ended.state, ended.has_run, ended.restarts) == ("ended", has_run, restarts)


@pytest.mark.parametrize(
    ("nodes", "hosts", "update"),
    [
        ("n1 n2 n3 n4", 2, "NodeList=n1,n2"),
        # The second one has died.
        ("n1 n3 n4", 3, "NodeList=n1,n3"),
        ("n1 n3", 3, None),
        ("n4", 2, "scancel"),
        ("", 2, "NumNodes=2"),
    ],
)
def test_a_part_that_becomes_smaller_counts_the_nodes_that_it_has_left(monkeypatch, tmp_path, nodes, hosts, update):
    said = []
    here = slurm.SlurmPart("running" if nodes else "pending", "", "", "0:0", 0, nodes, None)
    monkeypatch.setattr(slurm, "expand", str.split)
    monkeypatch.setattr(slurm, "jobs", lambda _number: {"0": here})
    monkeypatch.setattr(slurm, "said_by", said.append)
    job = SlurmJob({"trainers": 4}, name="j", folder=tmp_path)
    record = new_record(str(tmp_path), "slurm", "j", {})
    record.parts = [part] = [Part("trainers", 0, 4, "7")]
    for place in range(4 if nodes else 0):
        tell_of(record.hosts_folder(part, 0), place, "a:1", f"n{place + 1}")
    assert job._shorten(record, part, hosts).hosts == hosts
    expected = (
        [["scancel", "7"]] if update == "scancel" else [["scontrol", "update", "JobId=7", update]] if update else []
    )
    assert said == expected


def test_a_slurm_that_is_busy_with_the_job_is_asked_again(monkeypatch):
    said = []

    def says(command):
        said.append(command)
        if len(said) < 3:
            raise JobError("scontrol refuses: Job update not available right now, try again in a bit for job 7")
        if command[-1] == "NumNodes=0":
            raise JobError("scontrol refuses: Invalid node count")

    monkeypatch.setattr(slurm, "said_by", says)
    monkeypatch.setattr("roost.job.slurm._ASK_AGAIN_S", 0.0)
    part = Part("trainers", 0, 4, "7")
    _update(part, "NumNodes=2")
    assert said == [["scontrol", "update", "JobId=7", "NumNodes=2"]] * 3
    with pytest.raises(JobError, match="Invalid node count"):
        _update(part, "NumNodes=0")


@on_a_loop
async def test_a_life_waits_while_the_nodes_of_the_one_before_are_freed(commands, tmp_path):
    job = SlurmJob({"trainers": 2}, name="j", folder=tmp_path / "job")
    commands(sbatch=(0, "7\n", ""), scontrol=(0, JOB.format(**{**FIELDS, "state": "PENDING"}), ""))
    await job.apply()
    record = read_record(job.folder)
    states = []
    for restarts, joined in [(0, None), (0, 0), (1, None), (1, 1)]:
        if joined is not None:
            tell_of(record.hosts_folder(record.parts[0], joined), 0, "n1:7000", "n1")
        commands(scontrol=(0, JOB.format(**{**FIELDS, "state": "COMPLETING", "restarts": restarts}), ""))
        states.append((await job.status()).state)
    assert states == ["running", "running", "pending", "running"]


@on_a_loop
async def test_an_agent_that_tells_of_itself_is_believed_before_slurm(commands, tmp_path):
    job = SlurmJob({"trainers": 1}, name="j", folder=tmp_path / "job")
    commands(sbatch=(0, "7\n", ""), scontrol=(0, JOB.format(**{**FIELDS, "state": "PENDING"}), ""))
    assert ((waits := await job.apply()).state, waits.has_run) == ("pending", False)
    record = read_record(job.folder)
    tell_of(record.hosts_folder(record.parts[0], 0), 0, "n1:7000", "n1")
    assert ((runs := await job.status()).state, runs.has_run) == ("running", True)


@on_a_loop
async def test_a_controller_that_does_not_answer_is_no_end(commands, tmp_path):
    job = SlurmJob({"trainers": 1}, name="j", folder=tmp_path)
    commands(
        sbatch=(0, "7\n", ""), scontrol=(0, JOB.format(**{**FIELDS, "state": "PENDING", "reason": "Priority"}), "")
    )
    assert (await job.apply()).state == "pending"
    commands(scontrol=(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"))
    silent = await job.status()
    assert (silent.state, silent.failed) == ("pending", False)
    assert "does not answer" in silent.reason


@on_a_loop
async def test_what_slurm_refuses_is_told_in_its_words(commands, tmp_path):
    commands(sbatch=(1, "", "sbatch: error: invalid partition specified: nope\n"))
    job = SlurmJob({"trainers": 1}, name="j", folder=tmp_path, partition="nope")
    with pytest.raises(JobError, match="sbatch refuses: invalid partition specified: nope"):
        await job.apply()
    assert (await job.status()).state == "ended"
    with pytest.raises(LookupError, match="j has no hosts: it was not taken: sbatch refuses"):
        job.logs("trainers")


@on_a_loop
async def test_without_slurm_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    job = SlurmJob({"trainers": 1}, name="j", folder=tmp_path)
    with pytest.raises(Unavailable, match="login node"):
        await job.apply()
