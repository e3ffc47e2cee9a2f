"""What a `KubernetesJob` is made of, without a cluster: its objects, its settings, the ranks of pods."""

import sys

import pytest
import yaml

from roost.errors import Unavailable
from roost.job import KubernetesJob, MeshSpec
from roost.job.documents import merged
from roost.job.kubernetes_log import PodLog
from roost.job.kubernetes_pods import by_rank


def rendered(meshes=None, **settings):
    """The objects of a job by (kind, name)."""
    job = KubernetesJob(meshes or {"trainers": 1}, **({"image": "roost:1", "name": "train"} | settings))
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(job.render())}


def test_each_mesh_is_a_stateful_set_with_a_service_and_all_are_of_one_job():
    objects = rendered({"trainers": 4, "data_readers": 2}, namespace="lab", labels={"team": "a"}, allow=["10.0.0.0/8"])
    assert set(objects) == {
        ("Secret", "train"), ("NetworkPolicy", "train"), ("Service", "train-trainers"), ("StatefulSet", "train-trainers"),
        ("Service", "train-data-readers"), ("StatefulSet", "train-data-readers"),
    }  # fmt: skip
    for one in objects.values():
        labels = one["metadata"]["labels"]
        assert (one["metadata"]["namespace"], labels["team"], labels["roost/run"]) == ("lab", "a", "RUN")
    spec = objects["StatefulSet", "train-data-readers"]["spec"]
    assert (spec["replicas"], spec["serviceName"], spec["podManagementPolicy"]) == (2, "train-data-readers", "Parallel")
    wanted = {"roost/run": "RUN", "roost/mesh": "data_readers"}
    assert spec["selector"]["matchLabels"] == wanted
    assert wanted.items() <= spec["template"]["metadata"]["labels"].items()
    service = objects["Service", "train-data-readers"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"], service["selector"]) == ("None", True, wanted)
    policy = objects["NetworkPolicy", "train"]["spec"]
    assert policy["podSelector"]["matchLabels"] == {"roost/run": "RUN"}
    assert policy["ingress"] == [{"from": [{"podSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]}]


def pod_of(objects):
    template = objects["StatefulSet", "train-trainers"]["spec"]["template"]
    [agent] = template["spec"]["containers"]
    return template, agent


def test_what_a_host_is_to_have():
    spec = MeshSpec(2, gpus=8, cpus=64, memory_mib=1024, args=["gpu=mi300x"])
    objects = rendered(
        {"trainers": spec}, resources={"rdma/hca": 2, "hugepages-2Mi": "4Gi"}, shm_mib=512, queue="lab-queue",
        annotations={"note": "a"}, service_account="trainer", env={"A": "b c"}, prologue=["ulimit -l"], cwd="/work",
    )  # fmt: skip
    template, agent = pod_of(objects)
    assert agent["resources"] == {
        "requests": {"memory": "1024Mi", "cpu": "64"},
        "limits": {"rdma/hca": "2", "hugepages-2Mi": "4Gi", "amd.com/gpu": "8", "memory": "1024Mi"},
    }
    assert agent["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"], "RDMA pins memory"
    assert template["spec"]["nodeSelector"] == {"gpu": "mi300x"}
    assert template["spec"]["serviceAccountName"] == "trainer"
    assert template["metadata"]["annotations"] == {"note": "a"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}} in template["spec"]["volumes"]
    assert {"name": "A", "value": "b c"} in agent["env"]
    assert "\nulimit -l\nexec python3 -m roost host " in agent["command"][-1]
    assert agent["workingDir"] == "/work"
    labels = objects["StatefulSet", "train-trainers"]["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "lab-queue"


def test_what_is_not_asked_for_is_not_there():
    template, agent = pod_of(rendered(gpu_resource="nvidia.com/gpu"))
    assert not {"resources", "securityContext", "workingDir"} & set(agent)
    assert not {"nodeSelector", "serviceAccountName"} & set(template["spec"])
    assert template["spec"]["automountServiceAccountToken"] is False
    _, agent = pod_of(rendered({"trainers": MeshSpec(1, gpus=2)}, gpu_resource="nvidia.com/gpu", ipc_lock=True))
    assert agent["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert agent["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_the_key_is_no_argument_and_the_agent_says_itself_that_it_listens():
    objects = rendered()
    template, agent = pod_of(objects)
    assert objects["Secret", "train"]["stringData"] == {"key": "KEY"}
    assert "KEY" not in str(template)
    for probe in ("startupProbe", "readinessProbe"):
        assert agent[probe]["exec"]["command"] == ["test", "-e", "/dev/shm/roost.host"]
    assert "--announce /dev/shm/roost.host" in agent["command"][-1]


def test_more_of_a_pod_is_merged_into_it():
    more = {
        "hostNetwork": True,
        "containers": [
            {"name": "agent", "imagePullPolicy": "Always", "env": [{"name": "B", "value": "c"}]},
            {"name": "side"},
        ],
        "tolerations": [{"key": "gpu"}],
    }
    spec = rendered(pod=more)["StatefulSet", "train-trainers"]["spec"]["template"]["spec"]
    agent, side = spec["containers"]
    assert (agent["image"], agent["imagePullPolicy"], side) == ("roost:1", "Always", {"name": "side"})
    assert [entry["name"] for entry in agent["env"]] == ["ROOST_ADDRESS", "B"]
    assert [entry["key"] for entry in spec["tolerations"]][-1] == "gpu"
    assert spec["hostNetwork"] is True
    assert merged({"a": 1, "b": [1]}, {"a": 2, "b": [2]}) == {"a": 2, "b": [1, 2]}


def test_a_batch_job_is_of_jobs_that_end_with_its_driver():
    objects = rendered(
        {"trainers": MeshSpec(2, gpus=8)}, driver=["python3", "train.py", "it's"], driver_account="driver", queue="lab-queue",
        pod={"imagePullSecrets": [{"name": "registry"}]}, driver_pod={"containers": [{"name": "driver", "resources": {}}]},
        env={"A": "b"}, cwd="/work", idle_s=90,
    )  # fmt: skip
    assert [name for name in objects if name[0] in ("StatefulSet", "Job")] == [
        ("Job", "train-trainers"), ("Job", "train-driver")
    ]  # fmt: skip
    hosts = objects["Job", "train-trainers"]
    assert hosts["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "lab-queue"
    assert (hosts["spec"]["completions"], hosts["spec"]["parallelism"], hosts["spec"]["completionMode"]) == (
        2,
        2,
        "Indexed",
    )
    pod = hosts["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["subdomain"]) == ("OnFailure", "train-trainers")
    assert "--idle 90" in pod["containers"][0]["command"][2]
    driver = objects["Job", "train-driver"]["spec"]
    pod = driver["template"]["spec"]
    [container] = pod["containers"]
    assert (driver["backoffLimit"], pod["restartPolicy"], pod["serviceAccountName"]) == (0, "Never", "driver")
    assert (container["command"], container["workingDir"]) == (["python3", "train.py", "it's"], "/work")
    assert {"name": "ROOST_JOB", "value": "train"} in container["env"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "Train"}, "name='Train' is no name for Kubernetes: give small letters"),
        ({"name": "1st"}, "name='1st' is no name for Kubernetes"),
        ({"name": "a" * 50}, r"too long a name for Kubernetes \(59 letters of 52\)"),
        ({"namespace": "My_Space"}, "namespace='My_Space' is none of Kubernetes'"),
        ({"image": None}, "needs image=, a container image with Python and Roost, or select="),
        ({"key_file": "/k"}, "key_file= is for pods of others"),
        ({"select": {"readers": "a=b"}}, "select= is for readers, and the meshes are trainers"),
        ({"select": {"trainers": "a=b"}}, "select= needs key_file="),
        ({"port": 0}, "port=0 is below 1"),
        ({"port": 70000}, "port=70000 is none"),
        ({"shm_mib": 0}, "shm_mib=0 is below 1"),
        ({"allow": ["10.0.0.0/99"]}, r"allow='10.0.0.0/99'.*give networks as"),
        ({"pod": {"a": {1, 2}}}, "pod= or driver_pod= is no document"),
        ({"driver_account": "a"}, "driver_account= is for a job with a driver= of its own"),
        ({"driver": ["a"], "select": {"trainers": "a=b"}}, "give one of them"),
        ({"driver": ["a"], "idle_s": 0}, "idle_s"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_at_once(settings, words):
    with pytest.raises(ValueError, match=words):
        KubernetesJob({"trainers": 1}, **({"image": "roost:1", "name": "train"} | settings))


def test_labels_of_nodes_are_what_arguments_are():
    with pytest.raises(ValueError, match="args of trainers: '--gpu' is no label of a node: give LABEL=VALUE"):
        KubernetesJob({"trainers": MeshSpec(1, args=["--gpu"])}, image="roost:1")
    with pytest.raises(TypeError, match="prologue='a': give a list, such as"):
        KubernetesJob({"trainers": 1}, image="roost:1", prologue="a")


def test_without_the_client_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(Unavailable, match=r"pip install 'roost\[kubernetes\]'"):
        KubernetesJob({"trainers": 1}, image="roost:1").render()


def pod(name, labels=None, **metadata):
    return {"metadata": {"name": name, "labels": labels or {}, **metadata}}


INDEX = "apps.kubernetes.io/pod-index"


@pytest.mark.parametrize(
    ("pods", "ranks"),
    [
        ([pod("b", {INDEX: "0"}), pod("a", {INDEX: "1"})], {0: "b", 1: "a"}),
        ([pod("a-x1", annotations={"batch.kubernetes.io/job-completion-index": "2"})], {2: "a-x1"}),
        ([pod("t-10"), pod("t-9")], {9: "t-9", 10: "t-10"}),
        # Of a JobSet: each of its jobs counts from 0.
        ([pod("j-1-0", {INDEX: "0"}), pod("j-0-0", {INDEX: "0"})], {0: "j-0-0", 1: "j-1-0"}),
        ([pod("t-x10"), pod("t-x9")], {0: "t-x9", 1: "t-x10"}),
        ([pod("t-0", deletionTimestamp="now"), pod("t-1")], {0: "t-0", 1: "t-1"}),
        ([], {}),
    ],
)
def test_ranks_of_pods(pods, ranks):
    assert {rank: one["metadata"]["name"] for rank, one in by_rank(pods).items()} == ranks


def test_a_log_is_read_bit_by_bit():
    asked = []
    answers = [
        "10:00:00.1+02:00 a\n10:00:00.1+02:00 b\n",
        "10:00:00.1+02:00 a\n10:00:00.1+02:00 b\n10:00:00.12+02:00 c\n",
        "",
    ]

    def fetch(query):
        asked.append(query.get("sinceTime"))
        return answers[len(asked) - 1]

    log = PodLog(fetch)
    assert [log.read(), log.read(), log.read()] == [b"a\nb\n", b"c\n", b""]
    assert asked == [None, "10:00:00.1+02:00", "10:00:00.12+02:00"]


def test_only_a_line_with_its_time_is_one():
    bar = "10:00:00Z a\n10:00:01Z step 1\rstep 2\rstep 3\x0b\u2028 end\n"
    answers = iter(
        [
            bar,
            "unable to retrieve container logs\n",
            "10:00:01Z step 1\rstep 2\rstep 3\x0b\u2028 end\n10:00:02Z b\n10:00:02Z no",
        ]
    )
    asked = []

    def fetch(query):
        asked.append(query.get("sinceTime"))
        return next(answers)

    log = PodLog(fetch)
    read = [log.read().decode() for _ in range(3)]
    # A last line without an end is what a container that died has left.
    assert read == ["a\nstep 1\rstep 2\rstep 3\x0b\u2028 end\n", "", "b\nno"]
    assert asked == [None, "10:00:01Z", "10:00:01Z"]
