"""What `roost.job.skypilot_sdk` calls is there, as it calls it, in the SDK that is installed: `make test-skypilot` has one."""

import copy
import inspect
import io

import pytest

from roost.job import MeshSpec, SkyPilotJob
from roost.job.record import Part, new_record
from roost.job.skypilot_sdk import Sdk, word

sky = pytest.importorskip("sky", reason="SkyPilot's SDK is not installed: `make test-skypilot` has one of its own")

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def task(tmp_path):
    """One with all that a job can say."""
    job = SkyPilotJob(
        {"trainers": MeshSpec(4, gpus=8, cpus=32, memory_mib=524_288, args=["use_spot=true"])}, folder=tmp_path, name="train",
        infra="kubernetes", accelerator="H200", resources={"image_id": "docker:python:3.12"}, setup=["pip install roost"],
        prologue=["ulimit -n 65536"], env={"MODE": "a b"}, port=26600, external=True,
    )  # fmt: skip
    record = new_record(str(tmp_path), "skypilot", "train", {})
    record.make_folders()
    return job._task(record, Part("trainers", 0, 4, ""))


def test_the_six_calls_are_what_the_sdk_takes(task, monkeypatch):
    called = {}

    def checked(name):
        signature = inspect.signature(getattr(sky, name))

        def call(*arguments, **named):
            # As it is called, the SDK would take it.
            called[name] = signature.bind(*arguments, **named).arguments
            return "request"

        monkeypatch.setattr(sky, name, call)

    for name in ("launch", "get", "queue", "status", "down", "tail_logs"):
        checked(name)
    sdk = Sdk()
    output = io.StringIO()
    assert sdk.launch(task, "train-trainers", 10) == sdk.queue("c") == sdk.status("c") == sdk.down("c") == "request"
    sdk.get("request")
    sdk.tail_logs("c", output, follow=False)
    assert (called["launch"]["cluster_name"], called["launch"]["down"]) == ("train-trainers", True)
    assert called["launch"]["idle_minutes_to_autostop"] == 10
    assert called["status"]["cluster_names"] == ["c"]
    assert (called["tail_logs"]["job_id"], called["tail_logs"]["follow"]) == (None, False)
    assert called["tail_logs"]["output_stream"] is output


def test_a_task_is_one_of_skypilots(task):
    # It takes the document apart.
    made = sky.Task.from_yaml_config(copy.deepcopy(task))
    assert (made.num_nodes, made.name) == (4, "train-trainers")
    [resources] = made.resources
    assert resources.accelerators == {"H200": 8}
    assert (resources.use_spot, resources.cpus, resources.memory, resources.ports) == (True, "32+", "512+", ["26600"])
    assert made.to_yaml_config()["run"] == task["run"]


def test_the_words_for_how_it_is_are_known():
    assert {"INIT", "UP", "STOPPED"} <= {word(one) for one in sky.ClusterStatus}
    known = {"INIT", "PENDING", "SETTING_UP", "RUNNING", "SUCCEEDED"}
    tasks = {word(one) for one in sky.JobStatus}
    assert known <= tasks
    assert all(one.startswith("FAILED") or one == "CANCELLED" for one in tasks - known), tasks


def test_what_it_says_of_a_cluster_has_the_fields_that_are_read():
    from sky.backends import CloudVmRayResourceHandle

    assert hasattr(CloudVmRayResourceHandle, "stable_internal_external_ips") or (
        "stable_internal_external_ips" in inspect.signature(CloudVmRayResourceHandle.__init__).parameters
    )
    assert issubclass(sky.exceptions.ApiServerConnectionError, Exception)
