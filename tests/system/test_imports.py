"""Who imports what: templates, so that forked procs need not."""

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
