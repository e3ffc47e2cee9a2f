//! Shared memory for the large parts of messages between procs of one host.
//!
//! A sender copies the large parts of a message into a *segment*, a sealed file in memory that it keeps
//! mapped, and names the place in the frame: (segment, generation, offset, length). A receiver maps each
//! segment once; its descriptor crosses once, over the control lane. Every part is released when the
//! receiver's last view of it is gone; a segment that nobody holds is filled again, as its next generation. A
//! kill leaves nothing behind: the memory goes with the last process that maps it.
//!
//! Whoever receives a part may write to it and is seen by nobody. Of the two ways to that, a private mapping and a
//! copy out of the shared one, the mapping is taken: it is better for what is read, and far better for what is
//! passed on or not looked at (ms, 2 cores, Linux 6.18; the reader is another process, a copy goes into used memory
//! on huge pages, what is passed on is copied into another segment):
//!
//! | part | fill | map, read | copy, read | map, pass on | copy, pass on | map, write | copy, write |
//! |---|---|---|---|---|---|---|---|
//! | 1 MiB | 0.05 | 0.055 | 0.068 | 0.05 | 0.12 | 0.38 | 0.07 |
//! | 4 MiB | 0.29 | 0.29 | 0.43 | 0.29 | 0.60 | 1.7 | 0.42 |
//! | 16 MiB | 1.3 | 1.4 | 1.9 | 1.3 | 2.5 | 8.8 | 1.8 |
//! | 64 MiB | 5.1 | 9.7 | 11 | 5.5 | 13 | 36 | 13 |
//! | 256 MiB | 25 | 41 | 43 | 27 | 57 | 152 | 53 |
//!
//! A copy is made where a mapping cannot be had: for a second receiver of a part in the same proc, beyond the bytes
//! that a proc may keep mapped, and for `bytes`, which own their memory.
//!
//! A new segment of 64 MiB takes 40 ms to fill through its mapping (each page faults) and 23 ms by `write`, a used
//! one 5 ms.
//!
//! | file | what it is |
//! |---|---|
//! | `memory` | mapping, sealing, copying |
//! | `pool` | the sender's side, over its `segments` |
//! | `map` | the receiver's side |
//! | `origin` | parts that are passed on |
//! | `private` | memory for copies, used again |
//! | `buffer` | what Python sees of a part |
//! | `send`, `receive` | the classes that the data lane and Python use |

mod buffer;
mod map;
mod memory;
mod origin;
mod pool;
mod private;
mod receive;
mod segments;
mod send;

use pyo3::prelude::*;

pub(crate) use self::buffer::NewBytes;
pub(crate) use self::map::Hold;
pub(crate) use self::pool::Way;
pub(crate) use self::private::PrivateBuffer;
pub(crate) use self::receive::SegmentMap;
pub(crate) use self::send::{SegmentPart, SegmentPool};

/// Parts from this size on go through shared memory; below it a copy through the socket costs less than
/// keeping count. An array of 256 KiB there and back takes 0.12 ms by this and 0.29 by the socket, one of 512 KiB 0.2
/// and 1.3; at 128 KiB `bytes` are quicker by the socket.
const SEGMENT_BYTES_MIN: usize = 256 * 1024;

/// Add the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SegmentPool>()?;
    module.add_class::<SegmentMap>()?;
    module.add_class::<SegmentPart>()?;
    module.add_class::<buffer::SharedBuffer>()
}
