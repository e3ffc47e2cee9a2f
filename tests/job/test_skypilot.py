"""`SkyPilotJob` on a SkyPilot whose clusters are on this machine: `fake_skypilot.py`."""

import asyncio
import json
import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest
import yaml
from fake_skypilot import ClusterStatus, FakeSkyPilot, ResourcesUnavailableError
from loops import handled, next_of, on_a_loop, until
from working import Worker

from roost.errors import JobError, MeshError, Unavailable
from roost.job import MeshSpec, SkyPilotJob
from roost.job.skypilot_task import lines_of, listening

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(60)]


@pytest.fixture
def sky(tmp_path, monkeypatch):
    found = FakeSkyPilot(tmp_path / "nodes")
    monkeypatch.setattr(SkyPilotJob, "_sdk", lambda: found)
    monkeypatch.setattr(SkyPilotJob, "_ask_s", 0.1)
    yield found
    found.close()


def made(folder, meshes, **settings):
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return SkyPilotJob(meshes, folder=folder, **{"name": "train", "python": sys.executable, "env": env} | settings)


@on_a_loop
async def test_from_nothing_to_a_call_and_again_from_a_new_program(sky, tmp_path):
    job = made(tmp_path / "job", {"trainers": 2, "data_readers": 1}, setup=["echo made ready"])
    applied = await job.apply()
    assert [one.partition("@")[0] for one in applied.ids] == ["train-trainers", "train-data-readers"]
    assert (await job.apply()).ids == applied.ids, "it was asked for already"
    assert len(sky.launched) == 2
    await used(job)
    await used(SkyPilotJob.connect("train", folder=job.folder))
    for home in tmp_path.glob("nodes/*/node*"):
        [key] = home.glob(".roost-*.key")
        assert key.stat().st_mode & 0o077 == 0
    key = next(Path(job.folder).glob("*/key")).read_text().strip()
    assert key not in json.dumps([task for task, _, _ in sky.launched]), "it travels as a file"
    lines = list(job.logs("trainers", 1))
    assert "(worker1, rank=1, pid=" in lines[-1]
    assert not [line for line in lines if "rank=0" in line]
    ended = await job.kill()
    assert (ended.state, ended.failed, sky.clusters) == ("ended", False, {})
    assert any("SIGTERM" in line or "listening on" in line for line in job.logs("trainers", 1)), (
        "its last lines are kept"
    )
    with pytest.raises(JobError, match=r"(?s)ended: killed.*apply\(\) asks for it anew"):
        await job.ready()


async def used(job):
    async with await job.state() as hosts:
        assert list(hosts.trainers.names) == ["train-trainers-0", "train-trainers-1"]
        async with hosts.trainers.spawn_procs() as procs, hosts.data_readers.spawn_procs() as others:
            assert list(await procs.spawn("workers", Worker).add.call(1)) == [11, 11]
            assert list(await others.spawn("workers", Worker).add.call(1)) == [11]


@on_a_loop
async def test_a_failure_is_a_failure_at_once(sky, tmp_path):
    for what, settings, words in (
        ("python", {"python": "/bin/false"}, "task 1 on train-trainers is FAILED"),
        ("setup", {"setup": ["echo no such wheel", "exit 3"]}, "(?s)is FAILED_SETUP.*no such wheel"),
    ):
        job = made(tmp_path / what, {"trainers": 2}, **settings)
        await job.apply()
        with pytest.raises(JobError, match=words):
            await asyncio.wait_for(job.ready(), 20)
        assert sky.clusters == {}, "nobody pays for what has failed"
    sky.refusal = ResourcesUnavailableError("\x1b[31mFailed to acquire resources in all zones\x1b[0m")
    job = made(tmp_path / "none", {"trainers": 2})
    await job.apply()
    with pytest.raises(
        JobError, match="SkyPilot refuses: ResourcesUnavailableError: Failed to acquire resources in all zones"
    ):
        await asyncio.wait_for(job.ready(), 20)
    assert [event.kind async for event in job.events()] == ["ended"]


@on_a_loop
async def test_a_cluster_that_fails_is_a_lost_mesh_and_the_other_goes_on(sky, tmp_path):
    job = made(tmp_path / "job", {"trainers": 2, "readers": 1})
    await job.apply()
    events = job.events()
    try:
        async with await job.state() as hosts, hosts.trainers.spawn_procs(supervise=handled) as procs:
            workers = await procs.spawn("workers", Worker)
            os.kill(sky.clusters["train-trainers"].processes[1].pid, signal.SIGKILL)
            lost = {(one := await next_of(events, "host_lost")).rank: one for _ in range(2)}
            assert set(lost) == {0, 1}
            assert {one.mesh for one in lost.values()} == {"trainers"}
            await until(lambda: sky.clusters["train-trainers"].task == "FAILED")
            status = await job.status()
            assert "task 1 on train-trainers is FAILED" in status.hosts[1].reason
            with pytest.raises(MeshError):
                await workers.add.call(1)
            async with hosts.readers.spawn_procs() as others:
                assert await others.spawn("workers", Worker).add.call_one(1) == 11
        with pytest.raises(JobError, match=r"trainers needs 2 hosts of train, and 0 are left.*is FAILED"):
            await job.ready()
    finally:
        await job.kill()
    assert sky.clusters == {}


@pytest.mark.parametrize("how", ["taken away", "stopped"])
@on_a_loop
async def test_a_cluster_that_its_cloud_takes_is_told(how, sky, tmp_path):
    job = made(tmp_path / "job", {"trainers": 1})
    await job.apply()
    await job.ready()
    cluster = sky.clusters["train-trainers"]
    if how == "stopped":
        cluster.status = ClusterStatus.STOPPED
    else:
        del sky.clusters["train-trainers"]
    ended = await asyncio.wait_for(job.wait(), 20)
    assert (ended.state, ended.failed) == ("ended", True)
    assert ("is STOPPED" if how == "stopped" else "its cluster is gone") in ended.reason
    cluster.close()


@on_a_loop
async def test_who_waits_says_for_what_and_a_kill_does_not_come_too_early(sky, tmp_path):
    sky.may_provision.clear()
    job = made(tmp_path / "job", {"trainers": 1})
    await job.apply()
    await until(lambda: "train-trainers" in sky.clusters)
    status = await job.status()
    assert (status.state, status.reason) == ("pending", "its cluster train-trainers is being made (INIT)")
    killing = asyncio.ensure_future(job.kill())
    await until(lambda: "train-trainers" not in sky.clusters)
    sky.may_provision.set()
    assert (await killing).state == "ended"
    assert sky.clusters == {}


@on_a_loop
async def test_an_api_server_that_is_away_is_no_end(sky, tmp_path):
    job = made(tmp_path / "job", {"trainers": 1})
    await job.apply()
    await job.ready()
    sky.silence = ConnectionError("refused")
    status = await job.status()
    assert status.reason == "SkyPilot's API server does not answer: ConnectionError: refused"
    assert [one.state for one in status.hosts] == ["up"]
    sky.silence = None
    assert (await job.status()).reason == ""
    await job.kill()


@on_a_loop
async def test_more_clusters_and_fewer(sky, tmp_path):
    job = made(tmp_path / "job", {"trainers": 1})
    await job.apply()
    try:
        await job.ready()
        for _ in range(2):  # what comes a second time is another one
            await job.resize("trainers", 3)
            async with await job.state() as hosts:
                assert list(hosts.trainers.names) == ["train-trainers-0", "train-trainers-1-0", "train-trainers-1-1"]
            assert sorted(sky.clusters) == ["train-trainers", "train-trainers-1"]
            with pytest.raises(JobError, match="takes a cluster down as a whole: trainers can have 1 hosts or 3"):
                await job.resize("trainers", 2)
            await job.resize("trainers", 1)
            assert sorted(sky.clusters) == ["train-trainers"]
    finally:
        await job.kill()


@on_a_loop
async def test_a_cluster_of_somebody_else_is_left_alone(sky, tmp_path):
    first = made(tmp_path / "first", {"trainers": 1})
    await first.apply()
    await first.ready()
    with pytest.raises(
        JobError, match=r"has a cluster 'train-trainers' already \(UP\): `sky down train-trainers` ends it"
    ):
        await made(tmp_path / "second", {"readers": 1, "trainers": 1}).apply()
    assert list(sky.clusters) == ["train-trainers"], "and what was begun is taken back"
    await first.kill()


@on_a_loop
async def test_hosts_by_their_public_addresses(sky, tmp_path):
    job = made(tmp_path / "job", {"trainers": 1}, external=True, port=26613)
    await job.apply()
    [host] = (await job.ready()).hosts
    assert re.fullmatch(r"127\.0\.78\.\d+:26613", host.address)
    assert sky.launched[0][0]["resources"] == {"ports": [26613]}
    await job.kill()


@on_a_loop
async def test_a_log_is_followed_to_its_end(sky, tmp_path):
    job = made(tmp_path / "job", {"trainers": 2})
    await job.apply()
    await job.ready()
    lines = job.logs("trainers", 0, follow=True)
    assert "roost host 0 at 127.0.77." in await anext(lines)
    killing = asyncio.ensure_future(job.kill())
    rest = [line async for line in lines]
    assert "rank=1" not in "".join(rest)
    assert "ending: SIGTERM" in "".join(rest)
    await killing
    assert [one for one in threading.enumerate() if one.name.startswith("roost-log")] == []


def test_the_task_of_a_mesh(tmp_path):
    job = SkyPilotJob(
        {"trainers": MeshSpec(4, gpus=8, cpus=32, memory_mib=524_288, args=["use_spot=true", "region=us-east-1"])},
        folder=tmp_path, name="train", infra="kubernetes", accelerator="MI300X", resources={"image_id": "docker:x"},
        setup=["pip install roost"], prologue=["module load rocm"], idle_minutes=5, task={"config": {"a": 1}},
    )  # fmt: skip
    task = yaml.safe_load(job.render())
    assert task["resources"] == {
        "infra": "kubernetes", "accelerators": "MI300X:8", "cpus": "32+", "memory": "512+", "image_id": "docker:x", "use_spot": True,
        "region": "us-east-1",
    }  # fmt: skip
    assert (task["num_nodes"], task["setup"], task["config"]) == (4, "pip install roost\n", {"a": 1})
    assert "module load rocm\nexec python3 -m roost host --listen" in task["run"]


def test_agents_are_read_off_a_log():
    log = (
        "(head, rank=0, pid=7) roost host 0 at 10.0.0.1\n(worker1, rank=1, pid=9) roost host 1 at fd00::2\n"
        "(worker1, rank=1, pid=9) listening on [fd00::2]:411 advertised as [fd00::2]:411\n"
        "listening on 9.9.9.9:1 advertised as x:1\n"
    )
    assert listening(log) == {1: ("fd00::2", "411")}
    assert lines_of(log, 0).splitlines()[0] == "(head, rank=0, pid=7) roost host 0 at 10.0.0.1"
    assert len(lines_of(log, 0).splitlines()) == 2
    # A progress bar draws itself again within its line.
    bar = "(worker1, rank=1, pid=9) step 1\rstep 2\n"
    assert (lines_of(bar, 0), lines_of(bar, 1)) == ("", bar)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "7up"}, "no name for SkyPilot"),
        ({"meshes": {"trainers": MeshSpec(1, gpus=8)}}, 'give accelerator= their kind, such as "MI300X"'),
        ({"meshes": {"trainers": MeshSpec(1, args=["spot"])}}, "give FIELD=VALUE"),
        ({"external": True}, r"external=True needs port="),
        ({"port": 70000}, "is none"),
        ({"task": {"run": object()}}, "are to be documents"),
    ],
)
def test_what_cannot_be_is_refused_at_once(settings, words):
    with pytest.raises(ValueError, match=words):
        SkyPilotJob(**{"meshes": {"trainers": 1}} | settings)


@on_a_loop
async def test_without_the_sdk_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sky", None)
    with pytest.raises(Unavailable, match=r"pip install 'roost\[skypilot\]'"):
        await SkyPilotJob({"trainers": 1}, folder=tmp_path).apply()
