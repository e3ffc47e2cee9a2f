//! Parts that are passed on: where the pages of a received part are still those that came, they are copied from the
//! shared mapping.
//!
//! A private mapping that nobody has looked at yet costs a page fault for every few pages; in the shared mapping of
//! the same file the pages are there from one message to the next. For 64 MiB that is 12 ms against 7.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::memory::Source;

const PAGE_BYTES: usize = 4096;
/// Below this size the question costs as much as it saves.
const PASSED_ON_BYTES_MIN: usize = 256 * 1024;

// What /proc/self/pagemap says of a page (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// The claimed parts of this process by the address of their private memory, with that of the shared.
static CLAIMED: Mutex<BTreeMap<usize, Claimed>> = Mutex::new(BTreeMap::new());

struct Claimed {
    length: usize,
    shared: Address,
}

#[derive(Clone, Copy)]
struct Address(*const u8);

// SAFETY: an address alone; it is read from only while the part that it belongs to is held.
unsafe impl Send for Address {}

/// A part was claimed: `private` shows the same file as `shared`, but for what was written to it since.
pub(super) fn claimed(private: *mut u8, shared: Source) {
    let claimed = Claimed {
        length: shared.length,
        shared: Address(shared.address),
    };
    lock().insert(private as usize, claimed);
}

/// A part is no longer looked at.
pub(super) fn given_up(private: *mut u8) {
    lock().remove(&(private as usize));
}

/// The same bytes as they are best read: in runs, one behind the other.
///
/// The runs may be read as long as the source may.
pub(super) fn runs(source: Source) -> Vec<Source> {
    shared_runs(source).unwrap_or_else(|| vec![source])
}

fn shared_runs(source: Source) -> Option<Vec<Source>> {
    if source.length < PASSED_ON_BYTES_MIN {
        return None;
    }
    let start = source.address as usize;
    let end = start.checked_add(source.length)?;
    let shared = {
        let claimed = lock();
        let (&first, part) = claimed.range(..=start).next_back()?;
        if end > first + part.length {
            return None;
        }
        part.shared.0.wrapping_add(start - first)
    };
    let pages = pages_of(start, end)?;
    let mut runs: Vec<Source> = Vec::new();
    let mut was_written = None;
    let mut at = start;
    for page in pages {
        let stop = end.min((at / PAGE_BYTES + 1) * PAGE_BYTES);
        let is_written = page & (PRESENT | SWAPPED) != 0 && page & OF_FILE == 0;
        match runs.last_mut() {
            Some(run) if was_written == Some(is_written) => run.length += stop - at,
            _ => {
                let base = if is_written { source.address } else { shared };
                runs.push(Source {
                    address: base.wrapping_add(at - start),
                    length: stop - at,
                });
            }
        }
        was_written = Some(is_written);
        at = stop;
    }
    (at == end).then_some(runs)
}

/// What the kernel knows of each page. The file is opened anew each time: it tells of the process that opened it,
/// which after a fork is the parent.
fn pages_of(start: usize, end: usize) -> Option<Vec<u64>> {
    let first = start / PAGE_BYTES;
    let count = end.div_ceil(PAGE_BYTES) - first;
    let mut bytes = vec![0; count * 8];
    let pagemap = File::open("/proc/self/pagemap").ok()?;
    pagemap.read_exact_at(&mut bytes, first as u64 * 8).ok()?;
    let words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    Some(words.collect())
}

fn lock() -> MutexGuard<'static, BTreeMap<usize, Claimed>> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}
