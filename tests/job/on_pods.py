"""What tests have on pods, and programs that use such jobs: `on_pods.py PROGRAM FOLDER …` prints what it saw. No pytest here."""

import asyncio
import json
import os
import sys

from roost import Actor, endpoint
from roost.job import KubernetesJob, opening


class Node(Actor):
    @endpoint(concurrent=True)
    async def name(self):
        return os.uname().nodename

    @endpoint(concurrent=True)
    async def name_of(self, other):
        return await other.name.call_one()

    @endpoint(concurrent=True)
    async def work(self):
        await asyncio.sleep(600)


async def names_on(hosts):
    async with hosts.spawn_procs() as procs:
        return list(await procs.spawn("nodes", Node).name.call())


async def handled(_failure):
    return True


async def inside(folder):
    """A driver in a pod, from nothing to nothing."""
    job = KubernetesJob({"trainers": 1}, image="roost", name="inside", folder=folder, cwd=os.getcwd())
    status = await job.apply()
    async with await job.state(timeout=60) as hosts:
        seen = {"ids": status.ids, "names": await names_on(hosts.trainers)}
    return seen | {"state": (await job.kill()).state}


async def driving(folder, code):
    """The driver of a batch job, which ends with this code."""
    job = KubernetesJob.from_environment(folder=folder)
    async with await job.state(timeout=60) as hosts:
        print(json.dumps({"names": await names_on(hosts.trainers)}), flush=True)
    sys.exit(int(code))


async def second(folder, name, kubeconfig):
    """A driver of a job that has one."""
    opening._ATTACH_S = 2.0
    job = KubernetesJob.connect(name, folder=folder, kubeconfig=kubeconfig)
    try:
        await job.state(timeout=30)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it was let in"


if __name__ == "__main__":
    print(json.dumps(asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))))
