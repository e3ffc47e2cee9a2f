//! Memory that is made to be shared: a sealed file in memory that its owner has mapped, and that readers map as well.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::process::Pid;

use super::memory::{Mapping, SEALS_NEEDED, check_file};

#[cfg(test)]
mod tests;

/// Huge pages are asked for from this size on; smaller memory would hold none.
const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// The segments of this process by their first address, for memory that is registered by address.
static SEGMENTS: Mutex<BTreeMap<usize, Weak<Segment>>> = Mutex::new(BTreeMap::new());

fn segments() -> MutexGuard<'static, BTreeMap<usize, Weak<Segment>>> {
    SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of this process that others may map.
pub struct Segment {
    file: OwnedFd,
    mapping: Mapping,
    maker: Pid,
}

impl Segment {
    /// Memory of at least so many bytes, zeroed, page-aligned, on huge pages where the kernel has them for shared
    /// memory. All of it is there at once: a lack of memory is an error here and not a signal at some later write.
    ///
    /// # Errors
    ///
    /// For zero bytes, and when there is no memory or no descriptor.
    pub fn empty(bytes: usize) -> io::Result<Arc<Self>> {
        let page = rustix::param::page_size();
        let bytes = bytes
            .checked_next_multiple_of(page)
            .filter(|&bytes| bytes > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("roost-memory", flags)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let mapping = Mapping::shared(file.as_fd(), bytes, true)?;
        if bytes >= HUGE_PAGE_BYTES {
            mapping.want_huge_pages();
        }
        if let Err(error) = mapping.populate() {
            // Linux before 5.14 cannot; then the pages are there, and only their mapping waits for their first use.
            if error.kind() != io::ErrorKind::InvalidInput {
                return Err(error);
            }
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
        }
        rustix::fs::fcntl_add_seals(&file, SEALS_NEEDED | SealFlags::SEAL)?;
        let segment = Arc::new(Self {
            file,
            mapping,
            maker: rustix::process::getpid(),
        });
        segments().insert(segment.address(), Arc::downgrade(&segment));
        Ok(segment)
    }

    /// Its first address.
    pub fn address(&self) -> usize {
        self.mapping.pointer(0).addr()
    }

    /// Its first byte.
    pub fn pointer(&self) -> *mut u8 {
        self.mapping.pointer(0)
    }

    /// Its size, a multiple of the page's.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Its file, to be handed to readers.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // A forked child inherits the table's lock as it was, maybe held.
        if rustix::process::getpid() == self.maker {
            // Before the memory is unmapped, when its address may become another's.
            segments().remove(&self.address());
        }
    }
}

/// The segment of this process that a range lies in as a whole, and where in it.
pub fn find(address: usize, bytes: u64) -> Option<(Arc<Segment>, u64)> {
    // Let go of outside of the lock, which the segment's end takes as well.
    let segment = segments()
        .range(..=address)
        .next_back()
        .and_then(|(_, segment)| segment.upgrade())?;
    let offset = (address - segment.address()) as u64;
    let is_inside = offset.checked_add(bytes)? <= segment.bytes() as u64;
    is_inside.then_some((segment, offset))
}

/// How many segments this process has.
pub fn count() -> usize {
    segments().len()
}

/// A segment that is mapped here.
pub struct Mapped {
    memory: Memory,
}

enum Memory {
    Theirs(Mapping),
    Own(Arc<Segment>),
}

impl Mapped {
    /// A segment of this process, which is mapped already.
    pub fn own(segment: Arc<Segment>) -> Self {
        Self {
            memory: Memory::Own(segment),
        }
    }

    fn mapping(&self) -> &Mapping {
        match &self.memory {
            Memory::Theirs(mapping) => mapping,
            Memory::Own(segment) => &segment.mapping,
        }
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.mapping().bytes()
    }

    /// The address of a range; none when it is not inside as a whole.
    pub(crate) fn range(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        if end > self.bytes() as u64 {
            return None;
        }
        Some(self.mapping().pointer(usize::try_from(offset).ok()?))
    }
}

/// The segments of others that are mapped here, each once, unmapped when nobody holds it any more.
#[derive(Default)]
pub struct Mappings {
    /// By the file's number, which is nobody else's while the file is mapped.
    by_file: Mutex<HashMap<(u64, u64), Weak<Mapped>>>,
}

impl Mappings {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A segment of at least so many bytes, from a file that its owner handed over.
    ///
    /// # Errors
    ///
    /// When the file is smaller, or could shrink, or cannot be mapped.
    pub fn map(&self, file: BorrowedFd<'_>, bytes: u64) -> io::Result<Arc<Mapped>> {
        let needed = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        check_file(file, needed)?;
        let stat = rustix::fs::fstat(file)?;
        let size = usize::try_from(stat.st_size).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut by_file = self.by_file.lock().unwrap_or_else(PoisonError::into_inner);
        by_file.retain(|_, mapped| mapped.strong_count() > 0);
        let number = (stat.st_dev, stat.st_ino);
        if let Some(mapped) = by_file.get(&number).and_then(Weak::upgrade) {
            return Ok(mapped);
        }
        let mapping = Mapping::shared(file, size, true)?;
        mapping.keep_from_children();
        if size >= HUGE_PAGE_BYTES {
            mapping.want_huge_pages();
        }
        let mapped = Arc::new(Mapped {
            memory: Memory::Theirs(mapping),
        });
        by_file.insert(number, Arc::downgrade(&mapped));
        Ok(mapped)
    }

    /// How many are mapped now.
    pub fn count(&self) -> usize {
        let by_file = self.by_file.lock().unwrap_or_else(PoisonError::into_inner);
        by_file
            .values()
            .filter(|mapped| mapped.strong_count() > 0)
            .count()
    }
}
