"""A program with a sink on each of some hosts: KEY LEASE_S ADDRESS…; tells what its sinks were told when stdin says so."""

import asyncio
import sys

import roost
from roost.config import Config
from streams import Sink, Traffic


async def main(key, addresses):
    async with roost.attach(addresses, key_file=key, wait_for=len(addresses), timeout=60) as hosts:
        await tell(hosts.spawn_procs({"procs": 2}))


async def tell(procs):
    async with procs:
        sinks = procs.spawn("sinks", Sink)
        traffic = Traffic(
            "other", {host: sinks.slice(hosts=host, procs=0) for host in range(procs.sizes["hosts"])}, 0.02
        )
        await sinks
        print("up", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        sent, _ = await traffic.end()
        told = list(await sinks.slice(procs=0).told.call())
        right = [({"other": sent[host]}, []) for host in range(procs.sizes["hosts"])]
        print("as sent" if told == right else f"sent {sent}, taken {told}", flush=True)


if __name__ == "__main__":
    roost.run(main(sys.argv[1], sys.argv[3:]), config=Config(lease_s=float(sys.argv[2])))
