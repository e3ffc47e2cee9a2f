"""Who lends memory and takes it back, and who goes on reading and writing it, for tests. Imported by procs: no pytest here."""

import numpy as np
from memories import Owner

from roost import endpoint
from roost.errors import PeerLostError
from roost.rdma import BufferGone

# What the memory is filled with: while it is lent, afterwards, and by who writes there.
LENT, AFTERWARDS, WRITTEN = 1, 2, 3
# Attempts after the first that failed.
MORE = 5


class Lender(Owner):
    """Lends memory that it uses for something else as soon as it was taken back."""

    @endpoint
    async def lend_marked(self, size):
        buffer = await super().lend(size)
        self.memory[buffer][:] = LENT
        return buffer

    @endpoint
    async def take_back(self, buffer):
        await buffer.drop()
        self.memory[buffer][:] = AFTERWARDS

    @endpoint
    async def is_untouched(self, buffer):
        return bool((self.memory.pop(buffer) == AFTERWARDS).all())


async def read_once(buffer):
    target = np.zeros(buffer.size, np.uint8)
    await buffer.read_into(target)
    assert (target == LENT).all()


async def read_on(buffer):
    """Read again and again, also when that begins to fail: what was read whole, the error, and how often it came."""
    target = np.zeros(buffer.size, np.uint8)
    read, failed, kinds = 0, 0, set()
    while failed <= MORE:
        target[:] = 0
        try:
            await buffer.read_into(target)
        except (BufferGone, PeerLostError) as error:
            failed += 1
            kinds.add(type(error))
        else:
            assert not failed, "what was taken back is read again"
            assert (target == LENT).all()
            read += 1
        assert not (target == AFTERWARDS).any(), "bytes that nobody has lent"
    return read, failed, kinds


async def write_on(buffer):
    """The same of writes, of what is there already, and then of something else."""
    failed = 0
    while failed <= MORE:
        source = np.full(buffer.size, WRITTEN if failed else LENT, np.uint8)
        try:
            await buffer.write_from(source)
        except (BufferGone, PeerLostError):
            failed += 1
        else:
            assert not failed, "what was taken back is written again"
    return failed
