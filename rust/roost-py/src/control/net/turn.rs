//! An epoll set inside another: what of it is ready now.

use std::os::fd::OwnedFd;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};

/// Events taken at once; the others are there the next time.
const EVENTS_MAX: usize = 256;

/// The numbers of what is ready.
pub(super) fn ready(set: &OwnedFd) -> Vec<u64> {
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // It fails only when a signal came, and this thread blocks all; then the next turn sees the same.
    let _ = epoll::wait(set, rustix::buffer::spare_capacity(&mut events), Some(&now));
    events.iter().map(|event| event.data.u64()).collect()
}
