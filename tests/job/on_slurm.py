"""Programs of a user on a cluster: `on_slurm.py PROGRAM FOLDER` prints what it saw, as JSON. No pytest here."""

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import datetime

from roost import Actor, endpoint
from roost.job import JobError, MeshSpec, SlurmJob
from roost.job.slurm_commands import said_by

TRAINERS = {"trainers": 4}


class Node(Actor):
    @endpoint(concurrent=True)
    async def name(self):
        return os.uname().nodename

    @endpoint(concurrent=True)
    async def gpus(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    @endpoint(concurrent=True)
    async def work(self):
        await asyncio.sleep(600)


class Told:
    """A job's events as they come."""

    def __init__(self, job):
        self.all = []
        self._new = asyncio.Event()
        self._task = asyncio.create_task(self._listen(job))

    async def _listen(self, job):
        async for event in job.events():
            self.all.append((event.kind, event.host, event.reason))
            self._new.set()

    async def until(self, kind):
        while all(event[0] != kind for event in self.all):
            self._new.clear()
            await self._new.wait()

    async def end(self):
        await self._task
        return self.all


async def handled(_failure):
    return True


async def names_on(hosts):
    async with hosts.spawn_procs() as procs:
        return list(await procs.spawn("nodes", Node).name.call())


async def first_call(folder):
    """From nothing to a call on four nodes."""
    job = SlurmJob(TRAINERS, name="first", folder=folder, time=30)
    await job.apply()
    async with await job.state() as hosts:
        names = await names_on(hosts.trainers)
        now = time.time()
    line = said_by(["scontrol", "show", "job", "-o", (await job.status()).ids[0]])
    granted = datetime.fromisoformat(line.partition(" StartTime=")[2].split()[0]).timestamp()
    return {"names": names, "seconds_since_grant": now - granted}


async def once_more(folder):
    """Another program finds the job by its folder, by its name, by its number in the queue."""
    by_folder = SlurmJob.connect("first", folder=folder)
    number = (await by_folder.status()).ids[0]
    found = [by_folder, SlurmJob.connect("first"), SlurmJob.connect(number)]
    async with await found[-1].state() as hosts:
        names = await names_on(hosts.trainers)
    # Somebody else ends it.
    told = Told(by_folder)
    await told.until("running")
    said_by(["scancel", number])
    return {"folders": [job.folder for job in found], "names": names, "last": (await told.end())[-1]}


async def node_dies(folder, *power_off):
    """A node loses its power while all of them work."""
    job = SlurmJob(TRAINERS, name="dies", folder=folder)
    await job.apply()
    told = Told(job)
    async with await job.state() as hosts, hosts.trainers.spawn_procs(supervise=handled) as procs:
        nodes = await procs.spawn("nodes", Node)
        call = nodes.work.call()
        await told.until("host_up")
        subprocess.run(power_off, check=True)
        dead_at = time.monotonic()
        await told.until("host_lost")
        seconds = time.monotonic() - dead_at
        left = [await nodes.slice(hosts=rank).name.call_one() for rank in (0, 1, 3)]
        # Events of the job and ends of calls come by different ways.
        await asyncio.wait([call])
        error = call.exception().exceptions[0]
    await job.kill()
    lost = [event for event in await told.end() if event[0] == "host_lost"]
    return {"lost": lost, "seconds": seconds, "left": left, "error": f"{type(error).__name__}: {error}"}


async def preempted(folder):
    """Somebody more important takes the nodes, and gives them back."""
    job = SlurmJob(TRAINERS, name="preempted", folder=folder, requeue=True)
    await job.apply()
    told = Told(job)
    async with await job.state() as hosts:
        before = hosts.restarts, await names_on(hosts.trainers)
        other = subprocess.Popen(["srun", "--partition=urgent", "--nodes=4", "--exclusive", "sleep", "1"])
        await told.until("requeued")
    await asyncio.to_thread(other.wait)
    # Slurm lets two minutes pass before it starts a job again.
    said_by(["scontrol", "update", f"JobId={(await job.status()).ids[0]}", "StartTime=now"])
    async with await job.state() as hosts:
        after = hosts.restarts, await names_on(hosts.trainers)
    await job.kill()
    return {"before": before, "after": after, "kinds": [event[0] for event in await told.end()]}


async def two_meshes(folder):
    """Nodes with GPUs and nodes without, and little time."""
    meshes = {"trainers": MeshSpec(2, gpus=1), "readers": MeshSpec(1, cpus=2)}
    job = SlurmJob(meshes, name="meshes", folder=folder, time=2, warn_s=300)
    await job.apply()
    told = Told(job)
    async with await job.state() as hosts:
        async with hosts.trainers.spawn_procs() as procs:
            gpus = list(await procs.spawn("nodes", Node).gpus.call())
        names = await names_on(hosts.trainers) + await names_on(hosts.readers)
    await told.until("time_left")
    ids = (await job.status()).ids
    await job.kill()
    return {"gpus": gpus, "names": names, "ids": ids}


async def neighbour(folder):
    """A job on two nodes, which others use too; ends when its standard input does."""
    job = SlurmJob({"trainers": 2}, name="neighbour", folder=folder, args=["--nodelist=n1,n2"])
    await job.apply()
    async with await job.state() as hosts:
        print(json.dumps({"names": await names_on(hosts.trainers), "user": os.getuid()}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
    return {"state": (await job.kill()).state}


async def batch(folder):
    """Submit a job that has its driver with it, and wait for its end."""
    driver = [sys.executable, __file__, "driver", folder]
    job = SlurmJob({"trainers": 2}, name="batch", folder=folder, driver=driver)
    await job.apply()
    ended = await job.wait()
    return {"state": ended.state, "reason": ended.reason, "log": list(job.logs("driver"))}


async def driver(_folder):
    """What runs on the first node, beside the agents."""
    async with await SlurmJob.from_environment().state() as hosts:
        return {"on": os.uname().nodename, "names": await names_on(hosts.trainers)}


async def allocation(_folder):
    """Inside an allocation of somebody else's."""
    job = SlurmJob.from_environment("nodes")
    await job.apply()
    async with await job.state() as hosts:
        names = await names_on(hosts.nodes)
    try:
        await job.resize("nodes", 9)
    except JobError as error:
        said = str(error)
    ended = await job.kill()
    return {"names": names, "state": ended.state, "failed": ended.failed, "said": said, "from": os.uname().nodename}


async def refused(folder):
    """What Slurm does not give, and why."""
    said = {}
    for what, settings in {
        "partition": {"partition": "nope"}, "gres": {"args": ["--gres=foo:1"]}, "option": {"args": ["--bogus"]},
    }.items():  # fmt: skip
        try:
            await SlurmJob({"trainers": 1}, name=what, folder=f"{folder}/{what}", **settings).apply()
        except Exception as error:
            said[what] = f"{type(error).__name__}: {error}"
    job = SlurmJob({"trainers": 9}, name="many", folder=f"{folder}/many")
    await job.apply()
    try:
        await job.ready(timeout=1)
    except Exception as error:
        said["many"] = f"{type(error).__name__}: {error}"
    await job.kill()
    return said


if __name__ == "__main__":
    print(json.dumps(asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))))
