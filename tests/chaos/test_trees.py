"""Casts and calls to many hosts: the driver talks to eight of them, however many there are, and answers come gathered."""

import time

import pytest
from test_many_hosts import Counter

from roost import Config, ProcessHosts, process, run

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_calls_and_casts_to_many_agents_come_back_gathered(rounds, promised, figures):
    hosts_count, per_host, times = rounds(short=(8, 4, 5), long=(64, 4, 20))

    async def main():
        async with (
            ProcessHosts(hosts_count, timeout=120) as hosts,
            hosts.spawn_procs({"procs": per_host}) as procs,
        ):
            counters = await procs.spawn("counters", Counter)
            count = len(counters)
            assert list(await counters.get.call()) == [0] * count
            members, batches = process.current().members, []
            take = members._on_letters

            def came(letters):
                batches.append(len(letters))
                take(letters)

            members._on_letters = came
            calling, busy = [], []
            for _ in range(times):
                # The answers to the one before have acknowledged all, so that this goes along the tree.
                began, ran = time.monotonic(), time.process_time()
                assert len(list(await counters.get.call())) == count
                calling.append(time.monotonic() - began)
                busy.append(time.process_time() - ran)
            answers, gathered = sum(batches), len(batches)
            casting = []
            for number in range(times):
                ran = time.process_time()
                counters.add.broadcast(1)
                casting.append(time.process_time() - ran)
                assert list(await counters.get.call()) == [number + 1] * count
            del members._on_letters
            assert answers >= count, (answers, batches)
            figures(
                f"{hosts_count} hosts, {count} procs: {answers} of {count * times} answers came along the tree, in "
                f"{gathered} batches, the largest of {max(batches)}; the driver is busy {min(busy) * 1e3:.1f} ms for a call to "
                f"all, {min(casting) * 1e3:.1f} ms for a cast"
            )
            promised("a call to all", calling, 100, 2.0)

    run(main(), config=Config(start_timeout_s=300, tree_procs_min=32))
