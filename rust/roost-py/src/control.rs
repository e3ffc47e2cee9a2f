//! The control thread: starts procs, watches them, ends them; hands out data lanes and segments. It never takes the
//! GIL, so nothing that Python does can look like a death or delay a kill.
//!
//! | module | what it is |
//! |---|---|
//! | `handle` | what a process has of its control thread; `class` is its face in Python, `Control`: `convert` reads what that is given, `notice` makes what it gives |
//! | `beginning` | starts the thread, with what Python set and the descriptors that a proc was given |
//! | `restarts` | what a restart policy has seen of one actor |
//! | `shared` | what Python and the control thread share: two queues, two eventfds, a socket for descriptors; `door` is the thread's side of it |
//! | `client` | the thread in a proc |
//! | `host` | the thread in the driver, around `roost_core::agent`, and what does the same on another host |
//! | `standing` | the thread of `python -m roost host` |
//! | `net` | connections to other hosts |
//! | `table` | threads with a file table of their own; `tombstone` is the first use of it |
//! | `lane` | control messages over a socket, descriptors beside them; `socket` and `memory` are below it |
//! | `descendants`, `procfs` | finding and ending what a proc leaves behind |
//! | `clock` | its time |
//! | `links` | links to memory, on their way to the engine of one-sided memory |
//! | `stall` | whether Python's loop moves, and where it is stuck |
//! | `log` | the output of procs, on its way to the driver's |
//! | `template` | what the template needs and Python's library does not have |
//!
//! The control thread has a **file table of its own**. What the user forks, closes or runs out of cannot touch its
//! sockets; and no forked worker keeps a tombstone open. Descriptors for Python cross by a socket between the two
//! tables of the one process.

mod beginning;
mod class;
mod client;
mod clock;
mod convert;
mod descendants;
mod door;
mod handle;
mod host;
mod lane;
mod links;
mod log;
mod memory;
mod net;
mod notice;
mod procfs;
mod restarts;
mod shared;
mod socket;
mod stall;
mod standing;
mod table;
mod template;
mod tombstone;

use pyo3::prelude::*;

pub(crate) use self::handle::Control;
pub(crate) use self::links::{LinkCaller, LinkNews, LinkReader, no_descriptors};

/// Add what this module publishes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Control>()?;
    module.add_class::<restarts::History>()?;
    template::register(module)
}
