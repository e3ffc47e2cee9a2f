//! The page of started numbers: what the host reads after this proc's death, to tell others what of theirs was surely not
//! started, and what of this proc's may still be on its way to them.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use roost_core::limits::STARTED_SLOTS;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Two counters a session: what was started, and behind all of these what was said.
pub(crate) const BYTES: usize = 2 * STARTED_SLOTS as usize * 8;

/// One shared page of counters, two a session.
pub(crate) struct StartedPage {
    counters: NonNull<AtomicU64>,
}

// SAFETY: the page is only touched through atomics, which any thread may use; it is unmapped when the last owner drops it.
unsafe impl Send for StartedPage {}
// SAFETY: as above.
unsafe impl Sync for StartedPage {}

impl StartedPage {
    /// Map the page that the host made.
    pub(crate) fn map(fd: &OwnedFd) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use. The host made the file
        // with at least BYTES bytes and sealed it against shrinking.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )?
        };
        NonNull::new(address.cast())
            .map(|counters| Self { counters })
            .ok_or(rustix::io::Errno::NOMEM)
    }

    /// A message of this session starts.
    pub(crate) fn started(&self, session: u32, sequence: u64) {
        if session < STARTED_SLOTS {
            self.counter(session).fetch_max(sequence, Ordering::Relaxed);
        }
    }

    /// What is written to this session's connection from now on ends with this frame.
    pub(crate) fn said(&self, session: u32, sequence: u64) {
        if session < STARTED_SLOTS {
            let counter = self.counter(STARTED_SLOTS + session);
            counter.store(sequence, Ordering::Relaxed);
        }
    }

    /// One of the counters, of which there are twice as many as slots.
    fn counter(&self, number: u32) -> &AtomicU64 {
        assert!(number < 2 * STARTED_SLOTS, "a slot has two counters");
        // SAFETY: `number` is below the number of counters in the mapping, which lives as long as `self`; an all-zero or any
        // other bit pattern is a valid AtomicU64, and the mapping is page-aligned.
        unsafe { self.counters.add(number as usize).as_ref() }
    }
}

impl Drop for StartedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and nobody holds a reference into it any more.
        let unmapped = unsafe { munmap(self.counters.as_ptr().cast(), BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}
