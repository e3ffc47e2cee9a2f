"""One-sided memory: what other processes read and write without this one's Python.

`Buffer(tensor)` registers memory, and is a small handle to send to other actors. They `await buffer.read_into(tensor)` or
`write_from`, many at once with a `Batch`, whole state dicts with `Buffers`. The owner's event loop and GIL have no part in it.
"""

from roost.rdma.batch import Batch
from roost.rdma.buffer import Buffer, empty
from roost.rdma.buffers import Buffers
from roost.rdma.errors import BufferGone, VersionError
from roost.rdma.layout import View

__all__ = ["Batch", "Buffer", "BufferGone", "Buffers", "VersionError", "View", "empty"]
