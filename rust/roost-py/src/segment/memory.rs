//! Mapped memory: the only place that maps, unmaps and copies by address.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use roost_rdma::local::streaming;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Pid;

use super::origin::runs;

/// Huge pages are asked for from this size on; a smaller region would hold one or none.
const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// What a descriptor must be sealed against before its memory is mapped: a file that shrinks would kill its
/// readers.
const SEALS_NEEDED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The process that made something. A forked child inherits the memory of a lock that another thread may hold, and of
/// regions that it does not map: what is dropped in it is left as it is.
#[derive(Clone, Copy)]
pub(super) struct Maker(Pid);

impl Maker {
    pub(super) fn this() -> Self {
        Self(rustix::process::getpid())
    }

    pub(super) fn is_here(self) -> bool {
        rustix::process::getpid() == self.0
    }
}

/// A mapped region of this process, unmapped when dropped.
pub(super) struct Mapping {
    address: NonNull<u8>,
    length: usize,
    maker: Maker,
}

// SAFETY: the region stays mapped at its address for the life of the value, whichever thread looks at it;
// access to the bytes goes through raw pointers alone, and their users uphold the rules of access.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods that take `&self` change the page table, which the kernel guards.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map a file for reading and writing, every change seen by all who map it.
    pub(super) fn shared_writable(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        Self::of_file(file, length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }

    /// Map a file for reading only.
    pub(super) fn shared_readable(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        Self::of_file(file, length, ProtFlags::READ, MapFlags::SHARED)
    }

    /// Map a file so that what is written here is seen by nobody else.
    pub(super) fn private(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        Self::of_file(
            file,
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }

    /// Memory of no file, on huge pages where the kernel has them.
    pub(super) fn anonymous(length: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: the kernel chooses the address, so no mapping of anyone's is replaced.
        let address = unsafe { rustix::mm::mmap_anonymous(anywhere, length, access, MapFlags::PRIVATE)? };
        let mapping = Self::at(address, length)?;
        if length >= HUGE_PAGE_BYTES {
            mapping.advise(Advice::LinuxHugepage).ok(); // without huge pages it is only slower
        }
        Ok(mapping)
    }

    fn of_file(file: BorrowedFd<'_>, length: usize, access: ProtFlags, flags: MapFlags) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address, so no mapping of anyone's is replaced.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, flags, file, 0) }?;
        Self::at(address, length)
    }

    fn at(address: *mut c_void, length: usize) -> io::Result<Self> {
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self {
            address,
            length,
            maker: Maker::this(),
        })
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// The address of a byte inside.
    pub(super) fn pointer(&self, offset: usize) -> *mut u8 {
        assert!(
            offset <= self.length,
            "an offset is checked against the segment's size before it is used"
        );
        // SAFETY: the offset is inside the region or one past its end, which is one allocation.
        unsafe { self.address.as_ptr().add(offset) }
    }

    /// Forget what was written to a private mapping, so that it shows the file again.
    pub(super) fn discard(&self) -> io::Result<()> {
        self.advise(Advice::LinuxDontNeed)
    }

    /// Bring in all pages at once, for writing: a fault for each costs three times as much.
    pub(super) fn populate(&self) {
        self.advise(Advice::LinuxPopulateWrite).ok(); // before Linux 5.14 each page comes at its first use
    }

    /// Leave the region out of forked children, which then do not keep its memory alive.
    pub(super) fn keep_from_children(&self) {
        self.advise(Advice::LinuxDontFork).ok(); // a child that has it does no harm but to hold memory
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the region is ours, and no advice used here unmaps it; `discard` is only called
        // for private mappings of which no view is left.
        Ok(unsafe { rustix::mm::madvise(self.address.as_ptr().cast(), self.length, advice) }?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.maker.is_here() {
            // SAFETY: the region was mapped by this process and everything that points into it holds this
            // value alive.
            unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.length) }.ok();
        }
    }
}

/// A new file in memory of a fixed size whose pages are there: filling it cannot run out of memory half way.
pub(super) fn make_file(length: usize) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("roost", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, length as u64)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
    Ok(file)
}

/// Fix a file's size; from now on only mappings that exist already can write to it.
pub(super) fn seal(file: BorrowedFd<'_>) -> io::Result<()> {
    let seals = SEALS_NEEDED | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(file, seals)?)
}

/// Check that a file is what a peer says: of at least this size, and unable to shrink.
pub(super) fn check_file(file: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    let seals = rustix::fs::fcntl_get_seals(file)?;
    if !seals.contains(SEALS_NEEDED) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "shared memory that is not sealed",
        ));
    }
    let size = rustix::fs::fstat(file)?.st_size;
    if u64::try_from(size).is_ok_and(|size| size >= length as u64) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("shared memory of {size} bytes, said to have {length}"),
    ))
}

/// Memory to copy from. The caller vouches for it, see [`copy`].
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) address: *const u8,
    pub(super) length: usize,
}

// SAFETY: an address alone; who copies from it upholds what `copy` asks.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

/// Copy bytes into a mapping.
///
/// # Safety
///
/// `source` must be readable for its length for the whole call, and must not overlap the target range. Others
/// may write to either side meanwhile, as threads may to any buffer that Python lends: the bytes are then
/// whatever was seen.
pub(super) unsafe fn copy(source: Source, target: &Mapping, offset: usize) {
    assert!(
        source.length <= target.length() - offset,
        "a segment is taken for the size of its parts"
    );
    let mut to = target.pointer(offset);
    for run in runs(source) {
        // SAFETY: the caller vouches for the source, and so for its runs; the assertion for the target.
        unsafe {
            streaming::copy(run.address, to, run.length, source.length as u64);
            to = to.add(run.length);
        }
    }
}

/// Write bytes into a file. For memory that is new this is twice as fast as through a mapping, where each
/// page faults.
///
/// # Safety
///
/// As for [`copy`].
pub(super) unsafe fn write_file(source: Source, file: impl AsFd, offset: usize) -> io::Result<()> {
    let mut offset = offset as u64;
    for run in runs(source) {
        // SAFETY: the caller vouches for the source; the kernel only reads from it.
        let mut rest = unsafe { std::slice::from_raw_parts(run.address, run.length) };
        while !rest.is_empty() {
            let written = rustix::io::pwrite(&file, rest, offset)?;
            rest = &rest[written..];
            offset += written as u64;
        }
    }
    Ok(())
}

/// New memory of the interpreter's to copy to.
pub(super) struct Target(*mut u8);

// SAFETY: an address alone; who copies to it upholds what `copy_from` asks.
unsafe impl Send for Target {}

impl Target {
    pub(super) fn new(address: *mut u8) -> Self {
        Self(address)
    }

    /// Copy bytes to the target.
    ///
    /// # Safety
    ///
    /// As for [`copy`]; the target is as long as the source, and nobody else looks at it yet.
    pub(super) unsafe fn copy_from(self, source: Source) {
        self.advise_huge(source.length);
        // SAFETY: the caller vouches for both.
        unsafe { streaming::copy(source.address, self.0, source.length, source.length as u64) };
    }

    /// Ask for huge pages where a large region is new: its pages otherwise come in 4 KiB at a time.
    pub(super) fn advise_huge(&self, length: usize) {
        let address = self.0 as usize;
        let start = address.next_multiple_of(HUGE_PAGE_BYTES);
        let end = (address + length) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if start < end {
            let first = self.0.wrapping_add(start - address);
            // SAFETY: the range lies inside the target; the advice changes no byte of it.
            unsafe { rustix::mm::madvise(first.cast(), end - start, Advice::LinuxHugepage) }.ok();
        }
    }
}
