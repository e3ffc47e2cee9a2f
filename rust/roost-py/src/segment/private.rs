//! Private memory for copies of large parts: on huge pages, and used again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::{Maker, Mapping, Source, copy};

/// Idle memory that is kept for the next copies; above it, what is freed goes back to the system.
const IDLE_BYTES_MAX: usize = 256 * 1024 * 1024;

const MIB: usize = 1024 * 1024;

/// Memory that is free at the moment.
pub(super) struct PrivatePool {
    idle: Mutex<Vec<Mapping>>,
    maker: Maker,
}

impl Default for PrivatePool {
    fn default() -> Self {
        Self {
            idle: Mutex::default(),
            maker: Maker::this(),
        }
    }
}

impl PrivatePool {
    /// Copy bytes into memory of their own.
    ///
    /// # Safety
    ///
    /// As for [`copy`]; the source never overlaps pooled memory that is idle.
    pub(super) unsafe fn copy_of(self: &Arc<Self>, source: Source) -> std::io::Result<PrivateBuffer> {
        let buffer = self.room(source.length)?;
        if let Some(mapping) = &buffer.mapping {
            // SAFETY: the caller vouches for the source, and the mapping is ours alone.
            unsafe { copy(source, mapping, 0) };
        }
        Ok(buffer)
    }

    /// Memory to be filled.
    pub(super) fn room(self: &Arc<Self>, length: usize) -> std::io::Result<PrivateBuffer> {
        let mapping = self.take(length)?;
        Ok(PrivateBuffer {
            mapping: Some(mapping),
            pool: self.clone(),
        })
    }

    fn take(&self, length: usize) -> std::io::Result<Mapping> {
        let mut idle = self.lock();
        let fits = |mapping: &Mapping| mapping.length() >= length && mapping.length() / 4 <= length;
        let best = (0..idle.len())
            .filter(|&at| fits(&idle[at]))
            .min_by_key(|&at| idle[at].length());
        match best {
            Some(at) => Ok(idle.swap_remove(at)),
            None => Mapping::anonymous(length.next_multiple_of(MIB)),
        }
    }

    fn give_back(&self, mapping: Mapping) {
        let mut idle = self.lock();
        let kept: usize = idle.iter().map(Mapping::length).sum();
        if kept + mapping.length() <= IDLE_BYTES_MAX {
            idle.push(mapping);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Mapping>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Private memory with a copy in it, which goes back to its pool when dropped.
pub(crate) struct PrivateBuffer {
    mapping: Option<Mapping>,
    pool: Arc<PrivatePool>,
}

impl PrivateBuffer {
    /// All of its memory, which may be more than was asked for.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.mapping.as_ref().map_or(&mut [], |mapping| {
            // SAFETY: the mapping is readable and writable for its length, its pages are zero or were written, and nobody
            // else has this value.
            unsafe { std::slice::from_raw_parts_mut(mapping.pointer(0), mapping.length()) }
        })
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.mapping
            .as_ref()
            .map_or(std::ptr::null_mut(), |mapping| mapping.pointer(0))
    }
}

impl Drop for PrivateBuffer {
    fn drop(&mut self) {
        if let Some(mapping) = self.mapping.take().filter(|_| self.pool.maker.is_here()) {
            self.pool.give_back(mapping);
        }
    }
}
