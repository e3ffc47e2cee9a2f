"""`LocalJob`: the program that is to run on many hosts, on this one alone."""

import json
import os

import pytest
from loops import next_of, on_a_loop, process_state
from working import Worker

from roost import Actor, context, endpoint, spmd
from roost.errors import ActorDied, JobError, StoppedError
from roost.job import Job, LocalJob, MeshSpec

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(60)]


class Lead(Actor):
    """Spawns procs of its own on hosts that it is handed."""

    @endpoint
    async def sum_on(self, hosts):
        async with hosts.spawn_procs({"gpus": 2}) as procs:
            return sum((await procs.spawn("workers", Worker).add.call(1)).values())

    @endpoint
    async def seen(self):
        return os.environ.get("HINT"), dict(context().point), os.getpid()


@pytest.fixture
def job(tmp_path):
    return LocalJob({"trainers": MeshSpec(1, gpus=8), "readers": 1}, name="j", folder=tmp_path / "j")


@on_a_loop
async def test_a_program_from_its_beginning_to_its_end(job, monkeypatch):
    monkeypatch.setenv("HINT", "of the program")
    applied = await job.apply()
    node = os.uname().nodename
    assert [str(one) for one in applied.hosts] == [f"trainers[0] up {node}", f"readers[0] up {node}"]
    assert (await job.apply()) == applied
    events = job.events()
    assert (await next_of(events, "running", "host_up")).kind == "running"
    async with await job.state(timeout=5) as hosts:
        assert {name: dict(mesh.sizes) for name, mesh in hosts.items()} == {
            "trainers": {"hosts": 1},
            "readers": {"hosts": 1},
        }
        procs = hosts.trainers.spawn_procs({"gpus": 2})
        leads = procs.spawn("leads", Lead)
        seen = list(await leads.seen.call())
        assert [one[:2] for one in seen] == [("of the program", {"hosts": 0, "gpus": gpu}) for gpu in range(2)]
        assert await leads.slice(hosts=0, gpus=0).sum_on.call_one(hosts.readers) == 22, "an actor may have it, too"
        assert await hosts.more() == {}
        with pytest.raises(JobError, match="in use"):
            await LocalJob.connect("j", folder=job.folder).state()
    # What was spawned there ends with it, as on hosts that were attached.
    with pytest.raises(StoppedError):
        await leads.seen.call()
    assert all(process_state(pid) in "XZ" for _, _, pid in seen)
    assert list(job.logs("trainers")) == []
    ended = await job.kill()
    assert (ended.state, ended.failed) == ("ended", False)
    assert [event.kind async for event in events] == ["host_up", "host_up", "ended"]


@on_a_loop
async def test_a_proc_that_fails_is_heard_of_as_everywhere(job):
    await job.apply()
    with pytest.raises(ExceptionGroup) as caught:
        async with await job.state() as hosts:
            procs = hosts.trainers.spawn_procs()
            procs.spawn("workers", Worker).make.broadcast(os._exit, 3)
            await procs.wait()
    assert caught.group_contains(ActorDied)
    await job.kill()


@on_a_loop
async def test_a_later_program_and_one_on_another_machine(job):
    await job.apply()
    found = Job.connect("j", folder=job.folder)
    assert (type(found), found.meshes) == (LocalJob, job.meshes)
    async with await found.state() as hosts, hosts.readers.spawn_procs() as procs:
        assert await procs.spawn("workers", Worker).add.call_one(1) == 11
    state = os.path.join(job.folder, "job.json")
    with open(state) as file:
        fields = json.load(file)
    fields["parts"] = [[*part[:3], "elsewhere"] for part in fields["parts"]]
    with open(state, "w") as file:
        json.dump(fields, file)
    with pytest.raises(
        JobError, match=r"trainers needs 1 hosts of j, and 0 are left: .*it is elsewhere, and this program"
    ):
        await job.state()
    await job.kill()


@on_a_loop
async def test_this_machine_is_one_host(job):
    with pytest.raises(
        ValueError, match="trainers is to have 2 hosts, and this machine is one: give it 1, or take a ProcessJob"
    ):
        LocalJob({"trainers": 2})
    await job.apply()
    with pytest.raises(JobError, match="trainers is to have 2 hosts, and this machine is one"):
        await job.resize("trainers", 2)
    assert (await job.resize("trainers", 1)).state == "running"
    await job.kill()
    node = os.uname().nodename
    assert job.render() == f"trainers is {node}, in the program itself\nreaders is {node}, in the program itself\n"


@on_a_loop
async def test_scripts_of_torchruns_run_there(job, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nsys.exit(10 + int(os.environ['LOCAL_RANK']))\n")
    await job.apply()
    async with await job.state() as hosts, hosts.trainers.spawn_procs({"gpus": 1}) as procs:
        assert list(await spmd.run(procs, script)) == [10]
    await job.kill()
