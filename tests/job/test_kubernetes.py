"""`KubernetesJob` as a client: an API server of ours that does what a test says, over real HTTP."""

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
from loops import next_of, on_a_loop, until
from working import Worker

from roost.errors import CallTimeoutError, JobError, Unavailable
from roost.job import KubernetesJob
from roost.keys import make_key

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(60)]

READY = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]


@pytest.fixture
def job(kube, tmp_path):
    """Two trainers, which nobody has made pods for."""
    return made(kube, tmp_path / "job", {"trainers": 2})


def made(kube, folder, meshes=None, **settings):
    settings = {"image": "roost", "name": "train"} | settings
    job = KubernetesJob(meshes or {"trainers": 1}, folder=folder, kubeconfig=kube.kubeconfig, **settings)
    kube.jobs.append(job)
    return job


def put_pod(kube, name="train-trainers-0", *, ip="127.0.0.1", uid=None, labels=None, metadata=None, **status):
    """A pod that runs, unless its status says otherwise."""
    if labels is None:
        labels = kube.objects["statefulsets", name.rpartition("-")[0]]["spec"]["template"]["metadata"]["labels"]
    metadata = {"labels": labels, **(metadata or {}), **({} if uid is None else {"uid": uid})}
    spec = {"containers": [{"name": "agent"}]}
    status = {"phase": "Running", "podIP": ip, "conditions": READY} | status
    kube.put("pods", name, {"metadata": metadata, "spec": spec, "status": status})


def put_event(kube, about, reason, message):
    kind, name = about
    uid = kube.objects[about]["metadata"]["uid"]
    event = {"involvedObject": {"kind": kind, "name": name, "uid": uid}, "reason": reason, "message": message}
    kube.put("events", f"{name}.{reason}", event | {"lastTimestamp": f"2026-11-30T00:00:{len(kube.objects):02d}Z"})


@contextmanager
def agent(kube, host, port):
    """An agent with the key that its pod would have."""
    key = f"{kube.kubeconfig}.{host}"
    with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(base64.b64decode(kube.objects["secrets", "train"]["data"]["key"]))
    command = [sys.executable, "-m", "roost", "host", "--listen", f"{host}:{port}", "--key-file", key, "--name", host]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        process.stdout.readline()
        yield
    finally:
        process.terminate()
        process.communicate()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@on_a_loop
async def test_from_nothing_to_a_call_and_again_from_another_machine(kube, tmp_path):
    port = free_port()
    job = made(kube, tmp_path / "job", {"trainers": 1, "data_readers": 1}, port=port)
    applied = await job.apply()
    assert (applied.state, applied.ids) == ("pending", ("lab/train-trainers", "lab/train-data-readers"))
    assert (await job.apply()).ids == applied.ids, "it was asked for already"
    owner = kube.objects["secrets", "train"]["metadata"]["uid"]
    for name in kube.names():
        references = kube.objects[tuple(name.split("/"))]["metadata"].get("ownerReferences", [])
        assert [one["uid"] for one in references] == ([] if name == "secrets/train" else [owner])
    with agent(kube, "127.0.0.2", port), agent(kube, "127.0.0.3", port):
        put_pod(kube, "train-trainers-0", ip="127.0.0.2")
        put_pod(kube, "train-data-readers-0", ip="127.0.0.3")
        await used(job)
        elsewhere = KubernetesJob.connect("train", folder=tmp_path / "other", kubeconfig=kube.kubeconfig)
        assert (elsewhere.meshes, elsewhere.folder) == (job.meshes, str(tmp_path / "other"))
        await used(elsewhere)
    ended = await elsewhere.kill()
    assert (ended.state, ended.failed, kube.names()) == ("ended", False, [])
    assert not list(tmp_path.glob("other/*/key")), "the key is gone"
    # It is gone for whoever applied it, too, and nothing is left to do.
    assert (await job.kill()).reason == "its StatefulSets are gone"
    with pytest.raises(LookupError, match="the namespace 'lab' has no job 'train'"):
        KubernetesJob.connect("train", folder=tmp_path / "third", kubeconfig=kube.kubeconfig)


async def used(job):
    async with await job.state() as hosts:
        assert {name: len(mesh) for name, mesh in hosts.items()} == {"trainers": 1, "data_readers": 1}
        async with hosts.trainers.spawn_procs() as procs:
            assert list(await procs.spawn("workers", Worker).add.call(1)) == [11]


def container(state, **more):
    return {"containerStatuses": [{"name": "agent", "restartCount": 0, "state": state, **more}], "conditions": []}


EXCEEDED = (
    'pods "train-trainers-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=9, limited: pods=9'
)
PULLED = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "roost"'}
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/9 nodes are available"}
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
TAKEN = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for lab/urgent"}
CRASHED = {"lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}}
KILLED = {"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "restartCount": 1}
# What becomes of a pod that was up, or of none; what is told, as which event, in which words.
TROUBLES = {
    "image": (container({"waiting": PULLED}), "host_lost", 'ImagePullBackOff: Back-off pulling image "roost"'),
    "crash": (container({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}, **CRASHED), "host_lost",
              "CrashLoopBackOff: back-off 10s, its container agent exited with code 1"),
    "unschedulable": ({"phase": "Pending", "conditions": [NO_NODE]}, "host_waiting", "Unschedulable: 0/9 nodes are available"),
    "gated": ({"phase": "Pending", "conditions": [GATED]}, "host_waiting", "SchedulingGated: Scheduling is blocked"),
    "memory": (container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), "host_waiting",
               "its container agent was killed by signal 9 (OOMKilled)"),
    "evicted": ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.", "conditions": []},
                "host_waiting", "Evicted: The node was low on resource: memory."),
    "node": ({"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady", "message": "no heartbeat"}]},
             "host_waiting", "NodeNotReady: no heartbeat"),
    "preempted": ({"conditions": [{"type": "Ready", "status": "False"}, TAKEN]}, "preempted", "PreemptionByScheduler: for lab/urgent"),
}  # fmt: skip


@pytest.mark.parametrize("trouble", TROUBLES)
@on_a_loop
async def test_what_keeps_a_pod_is_told_at_once(trouble, kube, tmp_path):
    status, kind, words = TROUBLES[trouble]
    job = made(kube, tmp_path / "job")
    await job.apply()
    events = job.events()
    await anext(events)
    put_pod(kube, **status)
    async with asyncio.timeout(5):
        assert (await next_of(events, kind)).reason == words
    # When it was up before, it is lost at once, whatever comes of it.
    put_pod(kube)
    async with asyncio.timeout(5):
        assert (await next_of(events, "host_up")).host == "train-trainers-0"
        put_pod(kube, **status)
        assert (await next_of(events, "host_lost")).reason == words
    if kind == "host_lost":
        with pytest.raises(JobError, match=r"(?s)trainers needs 1 hosts of train, and 0 are left: trainers\[0\] lost"):
            await job.ready(timeout=5)
    else:
        with pytest.raises(CallTimeoutError, match=r"Missing: trainers\[0\] missing"):
            await job.ready(timeout=0.1)
    await job.kill()


@on_a_loop
async def test_what_events_say_is_told_too(kube, job):
    await job.apply()
    events = job.events()
    await anext(events)
    put_event(kube, ("statefulsets", "train-trainers"), "FailedCreate", EXCEEDED)
    async with asyncio.timeout(5):
        assert (await next_of(events, "host_waiting")).reason == f"FailedCreate: {EXCEEDED}"
    put_pod(kube, phase="Pending", conditions=READY[1:])
    put_event(kube, ("pods", "train-trainers-0"), "FailedMount", "no such volume")
    async with asyncio.timeout(5):
        while (told := await next_of(events, "host_waiting")).rank:
            pass
        assert told.reason == "FailedMount: no such volume"
    # That its agent does not listen yet is no news, nor what was so before it had a node.
    put_event(kube, ("pods", "train-trainers-0"), "Unhealthy", "Startup probe failed")
    put_pod(kube, "train-trainers-1", phase="Pending", conditions=READY[1:])
    put_event(kube, ("pods", "train-trainers-1"), "FailedScheduling", "0/9 nodes are available")
    put_pod(kube, "train-trainers-1")
    async with asyncio.timeout(5):
        assert (await next_of(events, "host_waiting", "host_up")).kind == "host_up"
    await job.kill()


@on_a_loop
async def test_without_the_right_to_see_events_it_does_without(kube, job):
    kube.faults.append(("GET", "events", 403, []))
    await job.apply()
    put_pod(kube, **container({"waiting": PULLED}))
    put_pod(kube, "train-trainers-1")
    with pytest.raises(JobError, match="ImagePullBackOff"):
        await job.ready(timeout=5)
    await job.kill()


@on_a_loop
async def test_a_pod_that_was_made_anew_is_another_host(kube, job):
    await job.apply()
    put_pod(kube, uid="first", ip="127.0.0.2")
    put_pod(kube, "train-trainers-1", ip="127.0.0.3")
    events = job.events()
    await next_of(events, "host_up")
    # As it goes: on its way out, gone, made anew where the other one was.
    put_pod(kube, uid="first", ip="127.0.0.2", metadata={"deletionTimestamp": "2026-11-30T00:00:00Z"})
    async with asyncio.timeout(5):
        lost = await next_of(events, "host_lost")
        assert (lost.rank, lost.reason) == (0, "its pod is being deleted")
        kube.drop("pods", "train-trainers-0")
        assert (await next_of(events, "host_waiting")).reason == "its pod was deleted"
        put_pod(kube, uid="second", ip="127.0.0.2")
        assert (await next_of(events, "host_up")).rank == 0
    await job.kill()


@on_a_loop
async def test_hosts_that_came_and_went_between_two_looks_have_run(kube, job):
    await job.apply()
    events = job.events()
    assert (await anext(events)).kind == "pending"
    put_pod(kube)
    put_pod(kube, conditions=[])
    await until(lambda: job._cluster._have_run)
    for name in kube.names():
        kube.drop(*name.split("/"))
    async with asyncio.timeout(5):
        assert [event.kind async for event in events if not event.mesh] == ["running", "ended"]


@on_a_loop
async def test_who_lost_an_agent_takes_the_next_one_at_its_address(kube, job):
    await job.apply()
    for rank in (0, 1):
        put_pod(kube, f"train-trainers-{rank}", ip=f"127.0.0.{2 + rank}", uid=f"pod-{rank}", **running(0))
    status = await job.ready(timeout=5)
    job._lose(status.hosts[1], "the host's agent was killed by signal 9")
    [_, lost] = (await job.status()).hosts
    assert (lost.state, lost.reason) == ("missing", "the host's agent was killed by signal 9")
    put_pod(kube, "train-trainers-1", ip="127.0.0.3", uid="pod-1", **running(1))
    assert [one.address for one in (await job.ready(timeout=5)).up()] == [one.address for one in status.hosts]
    await job.kill()


def running(restarts):
    return container({"running": {}}, restartCount=restarts) | {"conditions": READY}


CUTS = {
    "dropped": lambda kube: kube.cut(),
    "ended by the server": lambda kube: kube.cut(politely=True),
    "expired": lambda kube: kube.forget(),
}


@pytest.mark.parametrize("how", CUTS)
@on_a_loop
async def test_a_watch_is_resumed(how, kube, job):
    await job.apply()
    await job.status()
    await until(lambda: kube.asked.count(("watch", "pods")) == 1)
    put_pod(kube)
    CUTS[how](kube)
    # What happens while nobody watches is not lost.
    put_pod(kube, "train-trainers-1")
    assert len((await job.ready(timeout=10)).up()) == 2
    assert kube.asked.count(("list", "pods")) == (2 if how == "expired" else 1), (
        "only what was forgotten is asked for again"
    )
    await job.kill()


@on_a_loop
async def test_a_watch_that_has_ended_is_not_believed(kube, job, monkeypatch):
    await job.apply()
    await job.status()
    view = job._cluster._watched.view
    await until(lambda: [what for what, _ in kube.asked].count("watch") == len(view._lists))
    # Nobody had looked for long, and somebody looks at the moment when the first thread has ended for that.
    with monkeypatch.context() as idle:
        idle.setattr("roost.job.kubernetes_watch._IDLE_S", 0.0)
        kube.cut()
        await until(lambda: not any(one.thread.is_alive() for one in view._lists.values()))
    assert not view.is_idle
    put_pod(kube)
    put_pod(kube, "train-trainers-1")
    assert len((await job.ready(timeout=5)).up()) == 2
    await job.kill()


@on_a_loop
async def test_of_what_is_gone_only_the_last_are_known(kube, job, monkeypatch):
    monkeypatch.setattr("roost.job.kubernetes_watch._FORMER_MOST", 2)
    await job.apply()
    await job.status()
    former = job._cluster._watched.view.former("pods")
    for rank in (0, 1, 0, 2):
        put_pod(kube, f"train-trainers-{rank}", uid=f"pod-{rank}")
        kube.drop("pods", f"train-trainers-{rank}")
    await until(lambda: list(former) == ["train-trainers-0", "train-trainers-2"])
    await job.kill()


@on_a_loop
async def test_a_server_that_is_away_is_told_and_taken_back(kube, job):
    await job.apply()
    put_pod(kube)
    put_pod(kube, "train-trainers-1")
    await job.ready(timeout=5)
    kube.is_down = True
    kube.cut()
    async with asyncio.timeout(10):
        while not (status := await job.status()).reason:
            await asyncio.sleep(0.01)
    assert status.reason.startswith(f"Kubernetes at {server_of(kube)} does not answer: ")
    assert [one.state for one in status.hosts] == ["up", "up"], "its pods go on"
    kube.is_down = False
    kube.drop("pods", "train-trainers-1")
    async with asyncio.timeout(10):
        while len((await job.status()).up()) == 2:
            await asyncio.sleep(0.01)
    await job.kill()


def server_of(kube):
    with open(kube.kubeconfig) as file:
        return json.load(file)["clusters"][0]["cluster"]["server"]


@on_a_loop
async def test_more_hosts_and_fewer_though_somebody_else_changes_them_too(kube, job, tmp_path):
    await job.apply()
    kube.faults += [("PATCH", "statefulsets", 409, []), ("PATCH", "statefulsets", 503, [("Retry-After", "0")])]
    await job.resize("trainers", 3)
    assert kube.objects["statefulsets", "train-trainers"]["spec"]["replicas"] == 3
    for rank in range(3):
        put_pod(kube, f"train-trainers-{rank}", ip=f"127.0.0.{2 + rank}")
    assert [one.rank for one in (await job.ready(timeout=5)).up()] == [0, 1, 2]
    elsewhere = KubernetesJob.connect("train", folder=tmp_path / "other", kubeconfig=kube.kubeconfig)
    assert elsewhere.meshes["trainers"].hosts == 3
    await job.resize("trainers", 1)
    assert kube.objects["statefulsets", "train-trainers"]["spec"]["replicas"] == 1
    assert len((await job.status()).hosts) == 1
    await job.kill()


@on_a_loop
async def test_a_name_that_is_taken(kube, job, tmp_path):
    await job.apply()
    other = made(kube, tmp_path / "other")
    with pytest.raises(
        JobError, match=r"another job 'train' is in the namespace 'lab': take it with KubernetesJob\.connect"
    ):
        await other.apply()
    assert (await job.status()).state == "pending", "it has come to no harm"
    await job.kill()
    kube.put("secrets", "train", {"metadata": {}})
    with pytest.raises(JobError, match=r'secrets "train" already exists .*Give this job another name'):
        await other.apply()
    assert kube.names() == ["secrets/train"]


@on_a_loop
async def test_who_ended_while_it_applied_applies_anew(kube, job):
    await job.apply()
    state = os.path.join(job.folder, "job.json")
    with open(state) as file:
        fields = json.load(file)
    with open(state, "w") as file:
        json.dump(fields | {"parts": []}, file)
    await job.apply()
    assert kube.objects["secrets", "train"]["metadata"]["labels"]["roost/run"] != fields["run"]
    await job.kill()


@pytest.mark.parametrize("kind", ["secrets", "networkpolicies", "services", "statefulsets"])
@on_a_loop
async def test_what_is_refused_leaves_nothing(kind, kube, job):
    kube.faults.append(("POST", kind, 422, []))
    with pytest.raises(JobError, match=rf"Kubernetes refuses \(POST .*/{kind}\): the test says so \(422\)"):
        await job.apply()
    assert kube.names() == []
    assert (await job.status()).failed


@on_a_loop
async def test_whom_the_cluster_does_not_let_in_is_told_whom_to_ask(kube, job):
    kube.faults.append(("POST", "secrets", 403, []))
    with pytest.raises(JobError, match=r"the test says so \(403\); ask whoever runs the cluster"):
        await job.apply()


@on_a_loop
async def test_a_namespace_that_is_not_there(kube, tmp_path):
    job = made(kube, tmp_path / "job", namespace="nowhere")
    with pytest.raises(JobError, match=r"namespaces .nowhere. not found \(404\)\. Make the namespace 'nowhere'"):
        await job.apply()
    key = tmp_path / "key"
    make_key(key)
    theirs = made(
        kube, tmp_path / "theirs", image=None, namespace="nowhere", select={"trainers": "app=a"}, key_file=key
    )
    with pytest.raises(JobError, match="Give namespace= one that is there"):
        await theirs.apply()


@on_a_loop
async def test_pods_that_others_made(kube, tmp_path):
    key = tmp_path / "key"
    make_key(key)
    job = made(kube, tmp_path / "job", {"trainers": 2}, image=None, select={"trainers": "app=theirs"}, key_file=key)
    kube.put("namespaces", "lab", {})
    await job.apply()
    for rank, name in enumerate(["zebra", "aardvark"]):
        put_pod(
            kube, name, ip=f"127.0.0.{2 + rank}", labels={"app": "theirs", "apps.kubernetes.io/pod-index": str(rank)}
        )
    put_pod(kube, "other", labels={"app": "ours"})
    assert [one.host for one in (await job.ready(timeout=5)).hosts] == ["zebra", "aardvark"]
    for refused in (job.kill, lambda: job.resize("trainers", 1), lambda: job.resize("trainers", 3)):
        with pytest.raises(JobError, match="the pods of train were made by others"):
            await refused()
    assert "python3 -m roost host" in job.render()


@on_a_loop
async def test_logs_of_a_pod_and_of_the_one_that_takes_its_place(kube, job):
    await job.apply()
    put_pod(kube, uid="first", **running(0))
    put_pod(kube, "train-trainers-1", uid="other", **running(0))
    kube.logs["train-trainers-0"] = "2026-11-30T00:00:00.5Z one\n2026-11-30T00:00:00.5Z two\n2026-11-30T00:00:00.51Z on"
    lines = job.logs("trainers", 0, follow=True)
    assert [await anext(lines), await anext(lines)] == ["one", "two"]
    kube.logs["train-trainers-0"] += "ce\n2026-11-30T00:00:01Z four\n"
    assert [await anext(lines), await anext(lines)] == ["once", "four"]
    # It fails, and what it said last is kept, for errors and for later.
    events = job.events()
    await next_of(events, "host_up")
    kube.logs["train-trainers-0"] = "no module named roost\n"
    failed = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, **CRASHED}
    put_pod(kube, uid="first", **container(failed["state"], lastState=failed["lastState"], restartCount=1))
    await next_of(events, "host_lost")
    with pytest.raises(JobError, match=r"(?s)CrashLoopBackOff.*the last lines of .*no module named roost"):
        await job.ready(timeout=5)
    await job.kill()
    assert [line async for line in lines] == []
    assert list(job.logs("trainers", 0)) == ["no module named roost"]
    with pytest.raises(LookupError, match="no host trainers"):
        job.logs("trainers", 7)


@on_a_loop
async def test_no_cluster_is_told(tmp_path):
    job = KubernetesJob({"trainers": 1}, image="roost", folder=tmp_path / "job", kubeconfig=str(tmp_path / "none"))
    with pytest.raises(Unavailable, match=r"there is no Kubernetes here: .* Give kubeconfig="):
        await job.apply()
