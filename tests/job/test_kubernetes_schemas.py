"""What a `KubernetesJob` renders, against the schemas of the oldest and the newest Kubernetes that is supported."""

import pytest
import yaml

from roost.job import KubernetesJob, MeshSpec

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="schemas are big: `make test-kubernetes` installs them"
)

JOBS = {
    "least": KubernetesJob({"trainers": 1}, image="roost"),
    "most": KubernetesJob(
        {"trainers": MeshSpec(4, gpus=8, cpus=64, memory_mib=1024, args=["gpu=mi300x"]), "data_readers": 2}, image="roost", name="train",
        namespace="lab", resources={"rdma/hca": 2, "hugepages-2Mi": "4Gi"}, ipc_lock=True, shm_mib=512, queue="lab-queue",
        service_account="trainer", labels={"team": "a"}, annotations={"note": "a"}, env={"A": "b"}, prologue=["ulimit -l"],
        cwd="/work", allow=["10.0.0.0/8"], pod={"hostNetwork": True, "containers": [{"name": "agent", "imagePullPolicy": "Always"}]},
    ),
    "batch": KubernetesJob(
        {"trainers": 2}, image="roost", driver=["python3", "train.py"], driver_account="driver", queue="lab-queue",
        driver_pod={"containers": [{"name": "driver", "resources": {"requests": {"cpu": "1"}}}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", ["1.25", "1.37"])
@pytest.mark.parametrize("job", JOBS)
def test_what_is_rendered_is_what_kubernetes_knows(job, version):
    documents = list(yaml.safe_load_all(JOBS[job].render()))
    assert len(documents) == 2 + 2 * len(JOBS[job].meshes) + (job == "batch")
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_what_it_does_not_know_is_noticed(version):
    [*_, stateful_set] = yaml.safe_load_all(JOBS["least"].render())
    stateful_set["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagePolicy"):
        kubernetes_validate.validate(stateful_set, version, strict=True)
