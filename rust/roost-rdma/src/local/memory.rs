//! Mapped memory: the only place of this crate that maps and unmaps.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::fs::SealFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Pid;

/// What a file must be sealed against before it is mapped: one that shrinks would kill who reads it.
pub(crate) const SEALS_NEEDED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A mapped region of this process, unmapped when dropped.
pub(crate) struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
    /// A forked child may not have the region, and another may lie there in it.
    maker: Pid,
}

// SAFETY: the region stays mapped at its address for the life of the value, whichever thread looks at it; its bytes
// are reached through raw pointers and atomics alone, whose users uphold the rules of access.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods change nothing but the page table, which the kernel guards.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map a file; every change is seen by all who map it.
    pub(crate) fn shared(file: BorrowedFd<'_>, bytes: usize, is_writable: bool) -> io::Result<Self> {
        let access = if is_writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        let anywhere = std::ptr::null_mut();
        // SAFETY: the kernel chooses the address, so no mapping of anyone's is replaced.
        let address = unsafe { rustix::mm::mmap(anywhere, bytes, access, MapFlags::SHARED, file, 0)? };
        Ok(Self {
            address: NonNull::new(address.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?,
            bytes,
            maker: rustix::process::getpid(),
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of a byte inside, or of the end.
    pub(crate) fn pointer(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes, "offsets are checked when a lease is opened");
        // SAFETY: the offset is inside the region or at its end, and the region is one allocation.
        unsafe { self.address.as_ptr().add(offset) }
    }

    /// Ask for huge pages. Without them it is only slower.
    pub(crate) fn want_huge_pages(&self) {
        self.advise(Advice::LinuxHugepage).ok();
    }

    /// Bring in all pages, so that a lack of memory is an error now and not a signal later.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.advise(Advice::LinuxPopulateWrite)
    }

    /// Leave the region out of forked children, which would keep its memory alive.
    pub(crate) fn keep_from_children(&self) {
        self.advise(Advice::LinuxDontFork).ok();
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the region is ours, and none of the advice above changes its content.
        Ok(unsafe { rustix::mm::madvise(self.address.as_ptr().cast(), self.bytes, advice) }?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if rustix::process::getpid() == self.maker {
            // SAFETY: this process mapped the region, and whatever points into it holds this value.
            unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) }.ok();
        }
    }
}

/// Check that a file is what a peer says: of at least this size, and unable to shrink.
pub(crate) fn check_file(file: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let refuse = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let seals = rustix::fs::fcntl_get_seals(file)?;
    if !seals.contains(SEALS_NEEDED) {
        return Err(refuse("shared memory that is not sealed".into()));
    }
    let size = rustix::fs::fstat(file)?.st_size;
    if u64::try_from(size).is_ok_and(|size| size >= bytes as u64) {
        return Ok(());
    }
    Err(refuse(format!(
        "shared memory of {size} bytes, said to have {bytes}"
    )))
}
