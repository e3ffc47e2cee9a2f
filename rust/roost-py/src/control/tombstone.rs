//! How a death is seen before the memory of the dead is torn down.
//!
//! SIGKILL ends the threads of a process first; its memory, and with it the pidfd, takes a second for some GiB.
//! So two parked threads each hold one end of a socket pair, in a file table of their own: the first of them to end
//! closes its end. Nothing that the process forks has a copy.

use std::os::fd::{AsFd, OwnedFd};
use std::{io, thread};

use super::table;

/// Small: the thread does nothing.
const STACK_BYTES: usize = 64 << 10;

/// Hold this end until the process ends.
pub(super) fn hold(end: OwnedFd) -> io::Result<()> {
    table::start("roost-tombstone", STACK_BYTES, &[end.as_fd()], |_end| {
        loop {
            thread::park();
        }
    })?;
    // The caller's copy closes here: only the parked thread has one now.
    drop(end);
    Ok(())
}
