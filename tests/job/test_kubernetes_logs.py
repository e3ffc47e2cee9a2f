"""What pods of a `KubernetesJob` wrote, on the API server of ours."""

import pytest
from loops import next_of, on_a_loop
from test_kubernetes import CRASHED, container, made, put_pod, running

from roost.errors import JobError
from roost.job.kubernetes_log import PodLog

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(60)]

FAILED = container({"waiting": {"reason": "CrashLoopBackOff"}}, **CRASHED) | {"phase": "Running"}
BUSY = ("GET", "pods", 503, [("Retry-After", "0")])


@pytest.fixture
def job(kube, tmp_path):
    return made(kube, tmp_path / "job", {"trainers": 1})


def test_a_line_that_has_no_end_is_read_as_far_as_it_goes():
    log = ""
    reads = PodLog(lambda _query: log)
    seen = []
    for more in (
        "1Z one\n1Z tw",
        "o",
        "",
        " and\r more",
        "\n2Z three\n",
        "3Z killed",
        "\n4Z anew\n5Z no end",
        "",
        "\n6Z next",
    ):
        log += more
        seen.append(reads.read().decode())
    assert seen == ["one\ntw", "o", "", " and\r more", "\nthree\n", "killed", "\nanew\nno end", "", "\nnext"]
    # Another container begins with a line of its own, whoever has ended in the midst of one.
    log = "7Z other\n"
    assert reads.read().decode() == "\nother\n"


@on_a_loop
async def test_the_last_line_of_a_container_that_has_ended(kube, job):
    await job.apply()
    put_pod(kube, **container({"terminated": {"exitCode": 1}}))
    kube.logs["train-trainers-0"] = "2026-11-30T00:00:00Z one\n2026-11-30T00:00:01Z no end"
    while "exited with code 1" not in (await job.status()).hosts[0].reason:
        pass
    assert [line async for line in job.logs("trainers")] == ["one", "no end"]
    await job.kill()


@on_a_loop
async def test_last_words_are_asked_for_again_while_the_server_is_busy(kube, job):
    await job.apply()
    put_pod(kube, **running(0))
    events = job.events()
    await next_of(events, "host_up")
    kube.logs["train-trainers-0"] = "no module named roost"
    # As often as a request is made, and once more.
    kube.faults += [BUSY] * 5
    put_pod(kube, **FAILED)
    await next_of(events, "host_lost")
    while kube.faults:
        await job.status()
    await job.status()
    with pytest.raises(JobError, match=r"(?s)CrashLoopBackOff.*the last lines of .*no module named roost"):
        await job.ready(timeout=5)
    await job.kill()


@on_a_loop
async def test_who_asks_for_a_log_is_told_that_the_server_is_busy_and_who_follows_waits(kube, job):
    await job.apply()
    put_pod(kube, **running(0))
    await job.ready(timeout=5)
    kube.logs["train-trainers-0"] = "2026-11-30T00:00:00Z one\n"
    kube.faults += [BUSY] * 4
    with pytest.raises(JobError, match="the test says so"):
        await anext(job.logs("trainers"))
    kube.faults += [BUSY] * 4
    assert await anext(job.logs("trainers", follow=True)) == "one"
    kube.faults.append(("GET", "pods", 403, []))
    with pytest.raises(JobError, match="ask whoever runs the cluster for these rights"):
        await anext(job.logs("trainers", follow=True))
    await job.kill()
