//! Stamps: which version of its content a buffer has, and whether the owner is changing it right now.
//!
//! Each buffer has a slot of two numbers in a page of the owner, which readers on the host map and readers elsewhere
//! fetch with the data. The first is a sequence, odd while an update is in progress and never the same again; the
//! second is the version that the last update gave. A reader looks, copies, looks again: what it copied is whole when
//! both looks found the slot still and equal. A slot that stays odd while its owner is dead is an update that will
//! never end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::local::memory::Mapping;
use crate::plan::Misuse;

#[cfg(test)]
mod tests;

/// Slots of one table. It is a file of 64 KiB; there are as many tables as needed.
const SLOTS: u32 = 4096;

/// Bytes of a slot: sequence and version.
pub const SLOT_BYTES: usize = 16;

const TABLE_BYTES: usize = SLOTS as usize * SLOT_BYTES;

/// What no table may do once it was handed out: change its size, or be written to by anybody else.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// A slot at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Differs after each update.
    pub sequence: u64,
    /// What the last update gave; zero before the first.
    pub version: u64,
}

/// What a look at a slot finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing is in progress.
    Still(Stamp),
    /// The owner is writing, or died while it did.
    Updating,
}

impl Look {
    /// From the two numbers as they lie in a slot, for who fetched them by other means.
    pub fn of(sequence: u64, version: u64) -> Self {
        if sequence.is_multiple_of(2) {
            Self::Still(Stamp { sequence, version })
        } else {
            Self::Updating
        }
    }
}

/// The owner's tables of slots.
#[derive(Default)]
pub struct Stamps {
    tables: Mutex<Vec<Arc<Table>>>,
}

struct Table {
    file: OwnedFd,
    mapping: Mapping,
    free: Mutex<Vec<u32>>,
}

impl Stamps {
    /// No slots yet; the first table is made for the first.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Take a slot, at version zero. It is free again when dropped.
    ///
    /// # Errors
    ///
    /// When there is no memory or no descriptor for a new table.
    pub fn take(&self) -> io::Result<Slot> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        for table in tables.iter() {
            if let Some(slot) = Slot::of(table) {
                return Ok(slot);
            }
        }
        let table = Arc::new(Table::new()?);
        let slot = Slot::of(&table).ok_or(io::ErrorKind::OutOfMemory)?;
        tables.push(table);
        Ok(slot)
    }
}

impl Table {
    fn new() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("roost-stamps", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, TABLE_BYTES as u64)?;
        let mapping = Mapping::shared(file.as_fd(), TABLE_BYTES, true)?;
        // After the mapping: the seal is against any that comes later.
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok(Self {
            file,
            mapping,
            free: Mutex::new((0..SLOTS).rev().collect()),
        })
    }
}

/// The two numbers of a slot in a mapped table.
#[allow(
    clippy::cast_ptr_alignment,
    reason = "a mapping begins at a page, and each number at a multiple of 8 in it"
)]
fn numbers(mapping: &Mapping, index: u32) -> [&AtomicU64; 2] {
    [0, 1].map(|number| {
        let at = mapping
            .pointer(index as usize * SLOT_BYTES + number * 8)
            .cast::<u64>();
        // SAFETY: `pointer` checks the place, a mapping begins at a page, so each number is aligned, and the borrow
        // of the mapping keeps it mapped. Nobody reads or writes a table but through atomics.
        unsafe { AtomicU64::from_ptr(at) }
    })
}

/// Look at a slot: the sequence before and after the version, which only then belong together.
fn look(mapping: &Mapping, index: u32) -> Look {
    let [sequence, version] = numbers(mapping, index);
    // What the reader copied before this look must have been read before it.
    fence(Ordering::SeqCst);
    loop {
        let before = sequence.load(Ordering::Acquire);
        let found = version.load(Ordering::Acquire);
        if sequence.load(Ordering::Acquire) == before {
            return Look::of(before, found);
        }
    }
}

/// The owner's side of one slot.
pub struct Slot {
    table: Arc<Table>,
    index: u32,
}

impl Slot {
    fn of(table: &Arc<Table>) -> Option<Self> {
        let index = table.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Self {
            table: Arc::clone(table),
            index,
        })
    }

    /// The owner is about to write.
    ///
    /// # Errors
    ///
    /// [`Misuse`] when it is at it already.
    pub fn begin(&self) -> Result<(), Misuse> {
        let [sequence, _] = numbers(&self.table.mapping, self.index);
        let found = sequence.load(Ordering::Relaxed);
        let begun = found.is_multiple_of(2)
            && sequence
                .compare_exchange(found, found + 1, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        // No byte of the update may be seen before its beginning. The strongest fence, since what writes the bytes
        // may be a copy past the caches, and once an update it costs nothing.
        fence(Ordering::SeqCst);
        if begun {
            Ok(())
        } else {
            Err(Misuse::Update("an update of this buffer is in progress"))
        }
    }

    /// The owner has written; from now on the content has this version.
    ///
    /// # Errors
    ///
    /// [`Misuse`] when it had not begun.
    pub fn end(&self, new_version: u64) -> Result<(), Misuse> {
        let [sequence, version] = numbers(&self.table.mapping, self.index);
        let found = sequence.load(Ordering::Relaxed);
        if found.is_multiple_of(2) {
            return Err(Misuse::Update("no update of this buffer is in progress"));
        }
        // Every byte of the update must be seen before its end is.
        fence(Ordering::SeqCst);
        version.store(new_version, Ordering::Relaxed);
        sequence.store(found + 1, Ordering::Release);
        Ok(())
    }

    /// Look at it, as a reader does.
    pub fn look(&self) -> Look {
        look(&self.table.mapping, self.index)
    }

    /// Its place in the table.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The table's file, to be handed to readers on this host.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.table.file.as_fd()
    }

    /// Where the two numbers lie, sequence first, 8 bytes each.
    pub fn address(&self) -> usize {
        self.table
            .mapping
            .pointer(self.index as usize * SLOT_BYTES)
            .addr()
    }

    /// Where the table lies and its size, to be registered as a whole.
    pub fn table(&self) -> (usize, usize) {
        (self.table.mapping.pointer(0).addr(), TABLE_BYTES)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let [sequence, version] = numbers(&self.table.mapping, self.index);
        // The sequence goes on and never back: a reader that still looks at the slot of a buffer that was dropped must
        // not take its successor for it.
        let found = sequence.load(Ordering::Relaxed);
        version.store(0, Ordering::Relaxed);
        sequence.store(found + 2 - found % 2, Ordering::Release);
        let mut free = self.table.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(self.index);
    }
}

/// A reader's side of a table.
pub struct View {
    mapping: Mapping,
}

impl View {
    /// Map the table of an owner on this host.
    ///
    /// # Errors
    ///
    /// When the file is not a table, or cannot be mapped.
    pub fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        crate::local::memory::check_file(file, TABLE_BYTES)?;
        let mapping = Mapping::shared(file, TABLE_BYTES, false)?;
        mapping.keep_from_children();
        Ok(Self { mapping })
    }

    /// Look at a slot; none when the table has no such slot.
    pub fn look(&self, index: u32) -> Option<Look> {
        (index < SLOTS).then(|| look(&self.mapping, index))
    }
}
