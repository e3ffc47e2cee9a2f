"""`KubernetesJob` whose driver is in the cluster, and one whose driver is outside, on the API server of ours."""

import asyncio
import sys

import pytest
from loops import on_a_loop
from test_kubernetes import agent, container, free_port, made, put_pod, used
from working import Worker

from roost.errors import JobError
from roost.job import KubernetesJob

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(60)]


@pytest.fixture
def batch(kube, tmp_path):
    """Two trainers and a driver, which nobody has made pods for."""
    return made(kube, tmp_path / "job", {"trainers": 2}, driver=["python3", "train.py"], driver_account="driver")


def put_pod_of(kube, job, suffix="", **status):
    """A pod as a Job makes it."""
    labels = kube.objects["jobs", job]["spec"]["template"]["metadata"]["labels"]
    annotations = {"batch.kubernetes.io/job-completion-index": suffix}
    put_pod(kube, f"{job}-{suffix or 'x7k2p'}", labels=labels, metadata={"annotations": annotations}, **status)


def end_driver(kube, kind, **more):
    document = kube.objects["jobs", "train-driver"]
    kube.put("jobs", "train-driver", document | {"status": {"conditions": [{"type": kind, "status": "True", **more}]}})


@on_a_loop
async def test_a_batch_job_ends_with_its_driver_and_leaves_nothing(kube, batch):
    await batch.apply()
    assert kube.names() == [
        "jobs/train-driver", "jobs/train-trainers", "networkpolicies/train", "secrets/train", "services/train-trainers"
    ]  # fmt: skip
    put_pod_of(kube, "train-driver")
    for rank in (1, 0):
        put_pod_of(kube, "train-trainers", str(rank), ip=f"127.0.0.{2 + rank}")
    assert [one.host for one in (await batch.ready(timeout=5)).hosts] == ["train-trainers-0", "train-trainers-1"]
    kube.logs["train-driver-x7k2p"] = "2026-11-30T00:00:00.5Z loss 1.0\n"
    lines = batch.logs("driver", follow=True)
    assert await anext(lines) == "loss 1.0"
    kube.logs["train-driver-x7k2p"] = "loss 1.0\nloss 0.5\n"
    end_driver(kube, "Complete")
    ended = await asyncio.wait_for(batch.wait(), 10)
    assert (ended.state, ended.failed, ended.reason) == ("ended", False, "its driver exited with code 0")
    assert kube.names() == []
    assert list(batch.logs("driver")) == ["loss 1.0", "loss 0.5"]
    await batch.kill()


@on_a_loop
async def test_a_driver_that_fails_is_told_with_its_code_and_its_words(kube, batch):
    await batch.apply()
    put_pod_of(kube, "train-driver", phase="Failed", **container({"terminated": {"exitCode": 3}}))
    kube.logs["train-driver-x7k2p"] = "no such data\n"
    end_driver(kube, "Failed", reason="BackoffLimitExceeded", message="Job has reached the specified backoff limit")
    with pytest.raises(
        JobError, match=r"(?s)ended failed: its driver failed: .*code 3.*BackoffLimitExceeded.*no such data"
    ):
        await batch.ready(timeout=5)
    assert kube.names() == []


@on_a_loop
async def test_more_hosts_for_a_driver(kube, batch, tmp_path):
    await batch.apply()
    await batch.resize("trainers", 3)
    spec = kube.objects["jobs", "train-trainers"]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (3, 3)
    other = KubernetesJob.connect("train", folder=tmp_path / "other", kubeconfig=kube.kubeconfig)
    kube.jobs.append(other)
    assert (other.meshes["trainers"].hosts, other._settings["driver"]) == (3, ["python3", "train.py"])
    await other.kill()
    assert kube.names() == []
    assert (await batch.status()).reason == "its Jobs are gone"


def test_from_environment_is_for_drivers(monkeypatch):
    monkeypatch.delenv("ROOST_JOB", raising=False)
    with pytest.raises(RuntimeError, match=r"for the driver of a KubernetesJob\(driver=…\)"):
        KubernetesJob.from_environment()


@on_a_loop
async def test_an_agent_of_a_batch_job_does_not_wait_for_ever(tmp_path):
    command = [sys.executable, "-m", "roost", "host", "--idle", "0.3"]
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*command, **pipes)
    _, said = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, b"no driver has had it for 0.3 s" in said) == (0, True)


@on_a_loop
async def test_pods_that_are_reached_through_the_api_server(kube, tmp_path):
    port = free_port()
    job = made(kube, tmp_path / "job", {"trainers": 1, "data_readers": 1}, port=port, port_forward=True)
    await job.apply()
    with agent(kube, "127.0.0.2", port), agent(kube, "127.0.0.3", port):
        put_pod(kube, "train-trainers-0", ip="127.0.0.2")
        put_pod(kube, "train-data-readers-0", ip="127.0.0.3")
        hosts = (await job.ready(timeout=5)).hosts
        assert len({one.address for one in hosts}) == 2
        assert all(one.address.startswith("127.0.0.1:") for one in hosts)
        await used(job)
        assert ("forward", "train-trainers-0") in kube.asked
        # A way that is cut is a connection that is made again, as any other.
        async with await job.state() as found, found.trainers.spawn_procs() as procs:
            workers = procs.spawn("workers", Worker)
            assert await workers.add.call_one(1) == 11
            kube.cut_forwards()
            assert await asyncio.wait_for(workers.add.call_one(2), 10) == 12
    await job.kill()
