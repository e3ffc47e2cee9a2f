"""Who imports what: templates, so that forked procs need not."""

import subprocess
import sys

import pytest
from loops import on_a_loop
from newcomer import Newcomer

from roost import Channel, this_host

# Only those of a job's first moment find a template that has not imported yet what is for calls of their own.
STARTS_MAX = 50


async def imported_by_procs() -> list[list[str]]:
    async with this_host().spawn_procs({"gpus": 2}, preload=["newcomer"]) as procs:
        mesh = procs.spawn("newcomers", Newcomer)
        newcomer = mesh.slice(gpus=0)
        newcomer.hint.broadcast()
        assert await newcomer.on_a_thread.call_one([1, 2]) == 2
        assert [value async for _, value in newcomer.count.stream()] == [1]
        with pytest.raises(ValueError, match="on purpose"):
            await newcomer.fails.call_one()
        port, receiver = Channel[list].open()
        newcomer.send.broadcast(port)
        assert await receiver.recv() == ["value"]
        return [imported for _, imported in (await mesh.imported.call()).items()]


@on_a_loop
async def test_a_forked_proc_imports_nothing():
    seen = []
    while [[], []] not in seen and len(seen) < STARTS_MAX:
        seen.append(await imported_by_procs())
    assert seen[-1] == [[], []]


SHADOWED = """
import asyncio

from roost import Actor, Restart, endpoint, this_host


class Worker(Actor):
    @endpoint
    def mine(self) -> int:
        import random

        return random.MINE

    @endpoint
    async def fail(self) -> None:
        raise ValueError("on purpose")


async def main() -> None:
    policy = Restart(backoff_s=(0, 0.01), while_down="wait")
    async with this_host().spawn_procs({"cpus": 2}) as procs:
        workers = procs.options(restart=policy).spawn("workers", Worker)
        worker = workers.slice(cpus=0)
        print(await workers.mine.choose())
        events = worker.events()
        print(*(await workers.mine.call()).values())
        await worker.fail.broadcast()
        while (await anext(events)).kind != "recovered":
            pass
        print("recovered")


asyncio.run(main())
"""


def test_a_program_may_have_a_random_of_its_own(tmp_path):
    """It shadows the standard library's, which Roost does without."""
    (tmp_path / "random.py").write_text("MINE = 1\n")
    script = tmp_path / "script.py"
    script.write_text(SHADOWED)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert run.stdout.splitlines() == ["1", "1 1", "recovered"], run.stderr
