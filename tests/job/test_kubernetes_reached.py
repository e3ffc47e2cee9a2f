"""Pods of a `KubernetesJob` that are reached through the API server, and that are gone, on the API server of ours."""

import asyncio
import time

import pytest
from loops import on_a_loop, until
from test_kubernetes import agent, container, free_port, made, put_pod, running
from working import Worker

from roost.errors import HostLostError, JobError
from roost.job import KubernetesJob

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(60)]


@on_a_loop
async def test_who_may_not_have_ports_forwarded_is_told_at_once(kube, tmp_path):
    job = made(kube, tmp_path / "job", port_forward=True)
    await job.apply()
    put_pod(kube, ip="127.0.0.2")
    kube.refuses_forwards = 403
    words = r"does not forward port 26600 of train-trainers-0: the test forwards nothing \(403\); ask for the rights"
    for verb in (job.ready, job.state):
        with pytest.raises(JobError, match=words):
            await asyncio.wait_for(verb(), 10)
    await job.kill()


@on_a_loop
async def test_what_is_in_the_way_to_a_pod_is_in_the_error(kube, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("roost.job.opening._ATTACH_S", 1.0)
    job = made(kube, tmp_path / "job", port_forward=True)
    await job.apply()
    put_pod(kube, ip="127.0.0.2")
    kube.refuses_forwards = 502
    words = (
        r"no host of 1 are there.*does not forward port 26600 of train-trainers-0: the test forwards nothing \(502\)"
    )
    with caplog.at_level("WARNING", logger="roost.job"), pytest.raises(HostLostError, match=words):
        await job.state(timeout=5)
    assert caplog.text.count("does not forward") == 1, "it is warned of once"
    await job.kill()


@on_a_loop
async def test_a_pod_that_does_not_answer_keeps_nobody_from_others(kube, tmp_path, monkeypatch):
    monkeypatch.setattr("roost.job.kubernetes_forward._ANSWER_S", 2.0)
    port = free_port()
    job = made(kube, tmp_path / "job", {"trainers": 2}, port=port, port_forward=True)
    await job.apply()
    server = await asyncio.start_server(says_there, "127.0.0.3", port)
    kube.silent.add("train-trainers-0")
    for rank in (0, 1):
        put_pod(kube, f"train-trainers-{rank}", ip=f"127.0.0.{2 + rank}")
    addresses = [one.address.rpartition(":")[2] for one in (await job.ready(timeout=5)).hosts]
    silent, silent_writer = await asyncio.open_connection("127.0.0.1", addresses[0])
    await until(lambda: kube.asked.count(("forward", "train-trainers-0")) == 2)
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", addresses[1])
    assert await asyncio.wait_for(reader.read(5), 5) == b"there"
    assert time.monotonic() - began < 2.0, "it waited for the other one"
    # Who waits in vain is told so after a while, and may try again.
    assert await asyncio.wait_for(silent.read(), 10) == b""
    assert "train-trainers-0" in job._troubles()[0]
    for one in (silent_writer, writer):
        one.close()
    server.close()
    await job.kill()


async def says_there(reader, writer):
    writer.write(b"there")
    await reader.read()
    writer.close()


@on_a_loop
async def test_nobody_listens_for_a_pod_that_has_gone(kube, tmp_path):
    job = made(kube, tmp_path / "job", port_forward=True)
    await job.apply()
    ports = []
    for incarnation in ("first", "second"):
        put_pod(kube, uid=incarnation, **running(0))
        ports.append(int((await job.ready(timeout=5)).hosts[0].address.rpartition(":")[2]))
        # One that is not ready for a while is the same one later.
        put_pod(kube, uid=incarnation, **container({"running": {}}))
        while (await job.status()).up():
            await asyncio.sleep(0.01)
        assert await listens(ports[-1])
        kube.drop("pods", "train-trainers-0")
        while await listens(ports[-1]):
            await job.status()
    assert len(set(ports)) == 2
    assert not job._cluster._tunnels._doors
    await job.kill()


async def listens(port):
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


@on_a_loop
async def test_a_pod_that_was_deleted_by_force_is_lost_though_it_goes_on(kube, tmp_path, monkeypatch):
    monkeypatch.setattr(KubernetesJob, "_keep_s", 0.1)
    port = free_port()
    job = made(kube, tmp_path / "job", port=port)
    await job.apply()
    # The first as it was attached with the state, the second as it came after that had lost all that it had.
    with agent(kube, "127.0.0.2", port), agent(kube, "127.0.0.3", port):
        put_pod(kube, uid="first", ip="127.0.0.2")
        async with await job.state() as hosts:
            await is_lost_without(kube, hosts.trainers)
            put_pod(kube, uid="second", ip="127.0.0.3")
            came = await hosts.more(timeout=10)
            await is_lost_without(kube, came["trainers"])
    await job.kill()


async def is_lost_without(kube, mesh):
    """A mesh of one host hears that its pod is gone long before that is silent for too long: its agent works."""
    events = mesh.events()
    async with mesh.spawn_procs(supervise=handled) as procs:
        workers = await procs.spawn("workers", Worker)
        assert await workers.add.call_one(1) == 11
        kube.drop("pods", "train-trainers-0")
        async with asyncio.timeout(5):
            event = await anext(event async for event in events if event.kind == "failed")
    assert "Kubernetes has its pod no more" in event.reason
    assert "Kubernetes: its pod was deleted" in event.reason


async def handled(_failure):
    return True
