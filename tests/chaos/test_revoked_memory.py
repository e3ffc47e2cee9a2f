"""H11. Memory that was taken back, or whose owner has ended, is an error to who still has its handle: never other bytes."""

import asyncio
import os
import signal

import nics
import pytest
from lenders import Lender, read_on, read_once, write_on
from loops import on_a_loop
from memories import MIB, two

from roost import Restart
from roost.errors import PeerLostError
from roost.rdma import BufferGone

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(nics.patient(120))]

SIZES = (4096, 4 * MIB)
POLICY = Restart(limit=1_000_000, within_s=60, backoff_s=(0.001, 0.01), while_down="wait")


@on_a_loop
async def test_h11_what_was_taken_back_gives_no_byte_and_takes_none(way, rounds, figures):
    """Its owner uses the memory for something else at once, in the midst of reads and writes."""
    read = failed = 0
    async with two(way, Lender, readers=2) as (owner, others):
        reader, writer = others.slice(readers=0), others.slice(readers=1)
        for number in range(rounds(4, 200)):
            buffer = await owner.lend_marked.call_one(SIZES[number % 2])
            reading, writing = reader.run.call_one(read_on, buffer), writer.run.call_one(write_on, buffer)
            await asyncio.sleep(0.01 * (number % 7))
            await owner.take_back.call_one(buffer)
            before, after, kinds = await reading
            assert kinds == {BufferGone}
            read, failed = read + before, failed + after + await writing
            assert await owner.is_untouched.call_one(buffer)
    figures(f"{way}: {read} reads while it was lent, {failed} errors afterwards, 0 bytes of what came after")


@on_a_loop
async def test_h11_the_handle_of_a_life_opens_nothing_of_the_next(way, rounds, figures):
    """Which lends memory of the same size, most often at the same address."""
    read = failed = 0
    async with two(way, Lender, restart=POLICY) as (owner, reader):
        for number in range(rounds(2, 50)):
            buffer = await owner.lend_marked.call_one(SIZES[number % 2])
            pid = await owner.pid.call_one()
            await reader.run.call_one(read_once, buffer)
            reading = reader.run.call_one(read_on, buffer)
            await asyncio.sleep(0.01 * (number % 7))
            os.kill(pid, signal.SIGKILL)
            other = await owner.lend_marked.call_one(SIZES[number % 2])
            await owner.take_back.call_one(other)
            before, after, kinds = await reading
            assert kinds == {PeerLostError}
            read, failed = read + before + 1, failed + after
    figures(f"{way}: {read} reads of the living, {failed} errors of the dead, 0 bytes of their next lives")
