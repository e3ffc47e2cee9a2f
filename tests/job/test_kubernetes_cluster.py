"""`KubernetesJob` on a real control plane, with small nodes that run pods as processes (`scripts/mini_kubernetes.py`)."""

import asyncio
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from loops import next_of, on_a_loop
from on_pods import Node, handled, names_on

from roost.errors import CallTimeoutError, JobError
from roost.job import KubernetesJob, MeshSpec
from roost.job.kubernetes_api import Api
from roost.job.kubernetes_documents import KINDS

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("on_pods.py")
MINI_KUBERNETES = ROOT / "scripts" / "mini_kubernetes.py"
BUILT = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "roost", "kubernetes", ".complete-1").exists()

pytestmark = [
    # It is `make test-kubernetes` that runs it.
    pytest.mark.chaos,
    pytest.mark.skipif(os.getuid() != 0, reason="nodes of namespaces need root"),
    pytest.mark.skipif(not BUILT, reason="no Kubernetes here: `make test-kubernetes` builds it"),
    pytest.mark.timeout(180),
]
names = (f"job{number}" for number in itertools.count())
PODS = "/api/v1/namespaces/default/pods"


class Cluster:
    """A cluster that runs."""

    def __init__(self, folder):
        self.folder = folder
        self.kubeconfig = str(folder / "kubeconfig")

    def command(self, what, *arguments):
        subprocess.run([sys.executable, MINI_KUBERNETES, what, self.folder, *arguments], check=True)

    def job(self, folder, meshes, **settings):
        """One of a new name, whose pods have this machine's files."""
        settings = {"image": "roost", "name": next(names), "cwd": str(ROOT / "tests" / "job")} | settings
        return KubernetesJob(meshes, folder=folder, kubeconfig=self.kubeconfig, **settings)

    def left(self):
        """The names of all objects of jobs, and of pods."""
        paths = [*KINDS.values(), "/api/v1/namespaces/{}/pods"]
        found = [one for path in paths for one in self.api.items(path.format("default"))]
        return [one["metadata"]["name"] for one in found if one["metadata"].get("labels", {}).get("roost/run")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    found = Cluster(tmp_path_factory.mktemp("kubernetes") / "cluster")
    # A run of the tests that is killed leaves none of it, either.
    found.command("start", "--while", str(os.getpid()))
    try:
        found.api = Api(found.kubeconfig)
        yield found
        found.api.close()
    finally:
        found.command("stop")


@on_a_loop
async def test_from_nothing_to_a_call_on_three_pods_and_nothing_is_left(cluster, tmp_path, figures):
    job = cluster.job(tmp_path / "job", {"trainers": 3}, name="first")
    began = time.monotonic()
    await job.apply()
    async with await job.state(timeout=60) as hosts:
        assert await names_on(hosts.trainers) == [f"first-trainers-{rank}" for rank in range(3)]
        figures(f"apply to first call on 3 pods: {time.monotonic() - began:.1f} s")
        second = [sys.executable, PROGRAM, "second", tmp_path / "second", "first", cluster.kubeconfig]
        said = await asyncio.to_thread(subprocess.run, second, capture_output=True, text=True, check=True)
        assert "the host works for job" in json.loads(said.stdout), said.stdout
        assert len(await names_on(hosts.trainers)) == 3, "the first one is not disturbed"
    assert any(line.startswith("listening on 0.0.0.0:26600 advertised as ") for line in job.logs("trainers", 2))
    again = KubernetesJob.connect("first", folder=tmp_path / "other", kubeconfig=cluster.kubeconfig)
    async with await again.state(timeout=60) as hosts:
        assert len(await names_on(hosts.trainers)) == 3
    killing = time.monotonic()
    ended = await again.kill()
    figures(f"kill: {time.monotonic() - killing:.1f} s")
    assert (ended.state, ended.failed, cluster.left()) == ("ended", False, [])
    assert (await job.status()).state == "ended", "whoever ended it"


@on_a_loop
async def test_a_pod_that_is_deleted_comes_back_as_another_host(cluster, tmp_path, figures):
    job = cluster.job(tmp_path / "job", {"trainers": 3})
    await job.apply()
    events = job.events()
    async with await job.state(timeout=60) as hosts, hosts.trainers.spawn_procs(supervise=handled) as procs:
        nodes = await procs.spawn("nodes", Node)
        call = nodes.work.call()
        pod = cluster.api.get(f"{PODS}/{job.name}-trainers-1")
        await next_of(events, "host_up")
        began = time.monotonic()
        cluster.api.delete(f"{PODS}/{job.name}-trainers-1", pod["metadata"]["uid"])
        lost = await next_of(events, "host_lost")
        assert (lost.mesh, lost.rank) == ("trainers", 1)
        assert "its pod is being deleted" in lost.reason
        figures(f"a deleted pod was an event after {1000 * (time.monotonic() - began):.0f} ms: {lost.reason}")
        await asyncio.wait([call])
        assert "its pod is being deleted" in str(call.exception().exceptions[0]), "callers hear of it, too"
        assert len([await nodes.slice(hosts=rank).name.call_one() for rank in (0, 2)]) == 2, "the others go on"
        while (back := await next_of(events, "host_up")).rank != 1:
            pass
        figures(f"and was back after {time.monotonic() - began:.1f} s")
        assert back.host == lost.host
        # It is attached beside the others, with which nothing has happened.
        more = await hosts.more(timeout=60)
        assert await names_on(more["trainers"]) == [back.host]
        assert cluster.api.get(f"{PODS}/{job.name}-trainers-1")["metadata"]["uid"] != pod["metadata"]["uid"]
    await job.kill()


@on_a_loop
async def test_an_agent_that_is_killed_is_started_again_in_its_pod(cluster, tmp_path):
    job = cluster.job(tmp_path / "job", {"trainers": 2})
    await job.apply()
    async with await job.state(timeout=60) as hosts, hosts.trainers.spawn_procs(supervise=handled) as procs:
        await procs.spawn("nodes", Node)
        kill_agent(f"{job.name}-trainers-0")
        status = await job.ready(timeout=30)
        assert [one.state for one in status.hosts] == ["up", "up"]
    async with await job.state(timeout=60) as hosts:
        assert len(await names_on(hosts.trainers)) == 2
    await job.kill()


def kill_agent(pod):
    """Have the agent of a pod end without a word."""
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"HOSTNAME={pod}".encode() in environment and command[1:4] == [b"-m", b"roost", b"host"]:
            os.kill(int(entry.name), 9)
            return
    raise AssertionError(f"{pod} has no agent")


@on_a_loop
async def test_a_node_that_dies_is_told_and_its_pod_moves(cluster, tmp_path, figures):
    job = cluster.job(tmp_path / "job", {"trainers": MeshSpec(2, at_least=1)})
    await job.apply()
    events = job.events()
    async with await job.state(timeout=60) as hosts, hosts.trainers.spawn_procs(supervise=handled) as procs:
        nodes = await procs.spawn("nodes", Node)
        await next_of(events, "host_up")
        await next_of(events, "host_up")
        node = cluster.api.get(f"{PODS}/{job.name}-trainers-1")["spec"]["nodeName"]
        began = time.monotonic()
        cluster.command("kill", node)
        try:
            lost = await next_of(events, "host_lost")
            figures(f"a node without power was an event after {time.monotonic() - began:.1f} s: {lost.reason}")
            # Kubernetes marks the pod, and tells why: in whatever order that comes here.
            assert lost.rank == 1
            assert lost.reason in ("its node does not answer", "NodeNotReady: Node is not ready")
            assert await nodes.slice(hosts=0).name.call_one() == f"{job.name}-trainers-0"
        finally:
            cluster.command("boot", node)
    await job.kill()
    assert cluster.left() == []


@on_a_loop
async def test_what_cannot_be_is_told_at_once_in_kubernetes_words(cluster, tmp_path, figures):
    said = {}
    for what, meshes, settings in (
        ("gpus", {"trainers": MeshSpec(2, gpus=9)}, {}),
        ("image", {"trainers": 1}, {"image": "missing/roost"}),
        ("python", {"trainers": 1}, {"python": "nopython"}),
        ("label", {"trainers": MeshSpec(1, args=["gpu=none"])}, {}),
    ):
        job = cluster.job(tmp_path / what, meshes, **settings)
        began = time.monotonic()
        await job.apply()
        events = job.events()
        told = await next_of(events, "host_waiting", "host_lost")
        figures(f"{what}: told after {time.monotonic() - began:.1f} s")
        with pytest.raises((JobError, CallTimeoutError)) as caught:
            await job.ready(timeout=1 if what in ("gpus", "label") else 30)
        said[what] = told.reason, str(caught.value)
        await job.kill()
    assert said["gpus"][0] == "Unschedulable: 0/3 nodes are available: 3 Insufficient amd.com/gpu."
    assert "Missing: trainers[0-1] missing (Unschedulable" in said["gpus"][1], "one reason, once"
    assert "ErrImagePull" in said["image"][0]
    assert "trainers needs 1 hosts" in said["image"][1]
    assert "CrashLoopBackOff" in said["python"][1]
    assert "nopython: not found" in said["python"][1], "with the last lines of its log"
    assert "node(s) didn't match" in said["label"][1]
    assert cluster.left() == []


@on_a_loop
async def test_a_quota_is_told_and_what_it_leaves_goes_on_when_it_is_lifted(cluster, tmp_path):
    quotas = "/api/v1/namespaces/default/resourcequotas"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "1"}},
    }
    made = cluster.api.create(quotas, quota)
    async with asyncio.timeout(20):
        while not cluster.api.get(f"{quotas}/small").get("status", {}).get("used"):
            await asyncio.sleep(0.1)
    try:
        job = cluster.job(tmp_path / "job", {"trainers": 2})
        await job.apply()
        while "exceeded quota: small" not in (await next_of(job.events(), "host_waiting")).reason:
            pass
    finally:
        cluster.api.delete(f"{quotas}/small", made["metadata"]["uid"])
    await job.kill()


@on_a_loop
async def test_refusals_and_jobs_that_are_gone(cluster, tmp_path):
    with pytest.raises(JobError, match=r"namespaces .nope. not found \(404\)\. Make the namespace 'nope'"):
        await cluster.job(tmp_path / "nope", {"trainers": 1}, namespace="nope").apply()
    with pytest.raises(JobError, match=r"Kubernetes refuses .*(?i:invalid)"):
        await cluster.job(tmp_path / "bad", {"trainers": 1}, pod={"restartPolicy": "Sometimes"}).apply()
    assert cluster.left() == []
    job = cluster.job(tmp_path / "job", {"trainers": 1}, name="gone")
    await job.apply()
    with pytest.raises(JobError, match="another job 'gone' is in the namespace 'default'"):
        await cluster.job(tmp_path / "other", {"trainers": 1}, name="gone").apply()
    await job.ready(timeout=60)
    # Whoever deletes its secret deletes it all.
    secret = cluster.api.get("/api/v1/namespaces/default/secrets/gone")
    cluster.api.delete("/api/v1/namespaces/default/secrets/gone", secret["metadata"]["uid"])
    ended = await asyncio.wait_for(job.wait(), 60)
    assert (ended.state, ended.failed, ended.reason) == ("ended", True, "its StatefulSets are gone")
    assert await job.kill() == ended
    with pytest.raises(LookupError, match="the namespace 'default' has no job 'gone'"):
        KubernetesJob.connect("gone", folder=tmp_path / "third", kubeconfig=cluster.kubeconfig)
    await asyncio.wait_for(nothing_left(cluster), 60)


async def nothing_left(cluster):
    """The garbage collector takes its time."""
    while cluster.left():
        await asyncio.sleep(0.2)


RIGHTS = [
    {"apiGroups": [""], "resources": ["secrets", "services", "pods", "pods/log", "events"], "verbs": ["*"]},
    {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["*"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["*"]},
]


def allow(cluster, account, rules):
    """Give an account rights."""
    api, rbac = cluster.api, "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    api.create(f"{rbac}/roles", {"metadata": {"name": account}, "rules": rules})
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": "default"}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
    api.create(f"{rbac}/rolebindings", {"metadata": {"name": account}, "subjects": subjects, "roleRef": role})


@on_a_loop
async def test_a_driver_in_a_pod_uses_its_service_account(cluster, tmp_path):
    api = cluster.api
    allow(cluster, "default", RIGHTS)
    command = ["python3", str(PROGRAM), "inside", str(tmp_path / "job")]
    container = {"name": "driver", "image": "roost", "command": command, "workingDir": str(PROGRAM.parent)}
    api.create(PODS, {"metadata": {"name": "driver"}, "spec": {"restartPolicy": "Never", "containers": [container]}})
    async with asyncio.timeout(120):
        while (pod := api.get(f"{PODS}/driver"))["status"].get("phase") not in ("Succeeded", "Failed"):
            await asyncio.sleep(0.2)
    said = api.text(f"{PODS}/driver/log")
    assert pod["status"]["phase"] == "Succeeded", said
    seen = json.loads(said.splitlines()[-1])
    assert seen == {"ids": ["default/inside-trainers"], "names": ["inside-trainers-0"], "state": "ended"}
    api.delete(f"{PODS}/driver", pod["metadata"]["uid"])


def rights_of_the_page():
    """What a batch job's driver may do, by the page on jobs."""
    text = (ROOT / "docs" / "jobs.md").read_text()
    return next(yaml.safe_load_all(re.search(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]))["rules"]


@on_a_loop
async def test_a_batch_job_from_its_beginning_to_its_end(cluster, tmp_path, figures):
    cluster.api.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "roost-driver"}})
    allow(cluster, "roost-driver", rights_of_the_page())
    for name, code in (("batch", 0), ("failing", 3)):
        command = ["python3", str(PROGRAM), "driving", str(tmp_path / f"{name}-inside"), str(code)]
        job = cluster.job(
            tmp_path / name, {"trainers": 2}, name=name, driver=command, driver_account="roost-driver", idle_s=15
        )
        began = time.monotonic()
        await job.apply()
        lines = [line async for line in job.logs("driver", follow=True)]
        ended = await asyncio.wait_for(job.wait(), 60)
        figures(f"a batch job of two hosts, from apply to its end: {time.monotonic() - began:.1f} s")
        # Where the machine is busy, its hosts had not waited for it, and it says so.
        said = [line for line in lines if line.startswith("{")]
        assert said, (lines, str(ended))
        seen = json.loads(said[0])
        assert [one.startswith(f"{name}-trainers-") for one in seen["names"]] == [True, True]
        assert (ended.state, ended.failed) == ("ended", bool(code)), str(ended)
        if code:
            assert "its container driver exited with code 3" in ended.reason
        await asyncio.wait_for(nothing_left(cluster), 60)


@on_a_loop
async def test_a_pod_that_is_deleted_by_force_is_lost_at_once(cluster, tmp_path, figures):
    job = cluster.job(tmp_path / "job", {"trainers": 2})
    await job.apply()
    async with await job.state(timeout=60) as hosts, hosts.trainers.spawn_procs(supervise=handled) as procs:
        nodes = await procs.spawn("nodes", Node)
        call = nodes.slice(hosts=1).work.call()
        began = time.monotonic()
        cluster.api._call("DELETE", f"{PODS}/{job.name}-trainers-1", {}, {"gracePeriodSeconds": 0}).drain_conn()
        await asyncio.wait([call])
        seconds = time.monotonic() - began
        error = call.exception().exceptions[0]
        assert "its pod was deleted" in str(error)
        assert seconds < 8, "it was not waited for until it was silent for too long"
        figures(f"a pod that was deleted by force was lost after {seconds:.1f} s: {error}")
        assert await nodes.slice(hosts=0).name.call_one() == f"{job.name}-trainers-0"
    await job.kill()


@on_a_loop
async def test_pods_that_are_reached_through_the_api_server(cluster, tmp_path, figures):
    job = cluster.job(tmp_path / "job", {"trainers": 2}, port_forward=True)
    await job.apply()
    began = time.monotonic()
    async with await job.state(timeout=60) as hosts:
        assert all(one.address.startswith("127.0.0.1:") for one in (await job.status()).hosts)
        assert await names_on(hosts.trainers) == [f"{job.name}-trainers-{rank}" for rank in range(2)]
        figures(f"first call through port-forwards, from apply: {time.monotonic() - began:.1f} s")
        async with hosts.trainers.spawn_procs() as procs:
            nodes = procs.spawn("nodes", Node)
            # Among themselves pods need no way through the API server.
            assert await nodes.slice(hosts=0).name_of.call_one(nodes.slice(hosts=1)) == f"{job.name}-trainers-1"
            calling = time.monotonic()
            for _ in range(50):
                await nodes.slice(hosts=0).name.call_one()
            figures(f"a call through a port-forward: {20 * (time.monotonic() - calling):.1f} ms")
    await job.kill()
    assert cluster.left() == []


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    importlib.util.find_spec("torchft") is None, reason="no torchft: `make test-kubernetes` installs it"
)
def test_training_outlives_pods_that_are_deleted(cluster, tmp_path):
    command = [sys.executable, ROOT / "examples" / "demo", "--kubernetes", "--quick", "--out", tmp_path / "demo.png"]
    environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig, "MINI_KUBERNETES": str(cluster.folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ failures: .*deletion of a pod", done.stdout, re.MULTILINE)
    assert re.search(r"was lost on host roost-demo-trainers-\d", done.stderr), "the proc's own failure"
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert cluster.left() == []
