"""Memory that is written again and again while others read it: no half of an update is ever read."""

import memories
import pytest
from loops import on_a_loop
from nics import on_soft_roce

# Four readers of 256 MiB a hundred times each would take an emulated processor an hour by its soft-RoCE.
LARGE_MIB = 16 if on_soft_roce() else 256


@pytest.mark.usefixtures("nothing_left")
@on_a_loop
async def test_no_half_of_an_update_is_ever_read(way, rounds, figures):
    seconds, least = rounds(2, 60), rounds(5, 100)
    async with memories.two(way, memories.Writer, readers=rounds(1, 4)) as (owner, readers):
        buffer = await owner.lend.call_one(rounds(8, LARGE_MIB) * memories.MIB)
        usual = await readers.run.call(memories.seconds_of_a_read, buffer)
        await owner.start.call_one(buffer, 1.5 * max(usual))
        read = await readers.run.call(memories.read_versions, buffer, seconds, least)
        good, torn = zip(*read.values(), strict=True)
        versions = await owner.end.call_one()
    figures(f"{versions} versions of {buffer.size >> 20} MiB, {sum(torn)} torn of {' + '.join(map(str, good))} reads")
    assert not any(torn)
    assert versions > 1
