"""How tests here drive a program with limits of its own, and what they say of hosts and the failures that they meet."""

import asyncio
from contextlib import asynccontextmanager

from leftovers import eventually

import roost
from roost.config import Config, using
from streams import Sink

# The real figures, and those of the short form, in which a verdict takes seconds.
REAL = Config()
QUICK = Config(beat_s=0.25, verdict_s=2.0, lease_s=4.0)


def drive(program, limits):
    """Run an async program with these limits; nothing of its job remains."""
    with using(limits):
        return asyncio.run(program)


class Hearer:
    """A `supervise` hook that handles everything, and keeps it."""

    def __init__(self):
        self.failures = []

    async def __call__(self, failure):
        self.failures.append(failure)
        return True


@asynccontextmanager
async def attached(network, hosts=None, **options):
    """The hosts of a network, or some of them."""
    hosts = network.hosts if hosts is None else hosts
    async with roost.attach([host.where for host in hosts], key_file=network.key, **options) as mesh:
        yield mesh


@asynccontextmanager
async def working(network, per_host=2, hosts=None, hearer=None, **options):
    """A sink in each of some procs on each host: the hosts' mesh, the procs, the sinks."""
    async with attached(network, hosts, **options) as mesh:
        procs = mesh.spawn_procs({"procs": per_host}, name="procs", supervise=hearer or Hearer())
        async with procs:
            sinks = procs.spawn("sinks", Sink)
            await sinks
            yield mesh, procs, sinks


async def gone(host, within_s):
    """Whether no process of the host is left within the time, but its agent."""
    return await asyncio.to_thread(eventually, lambda: not host.pids(), within_s)
