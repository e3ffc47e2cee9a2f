//! The owner's table: which of its memory others may reach, who holds a lease on it, and how it is taken back.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::io;
use std::sync::Arc;

use crate::gpu::Exporter;
use crate::handle::Key;
use crate::local::shared::{self, Segment};
use crate::stamp::Slot;

#[cfg(test)]
mod tests;

/// Whatever keeps memory alive. It is dropped only by who takes it out of a completion: dropping it may run the
/// user's code.
pub type Keep = Box<dyn Any + Send>;

/// Memory that others may read and write.
#[derive(Clone)]
pub enum Memory {
    /// Somebody else allocated it, and may take its pages away although it is held.
    Foreign {
        /// Where it begins in this process.
        address: usize,
        /// How much.
        bytes: u64,
    },
    /// Memory that was made to be shared; it stays.
    Shared {
        /// The segment that it lies in.
        segment: Arc<Segment>,
        /// Where in it.
        offset: u64,
        /// How much.
        bytes: u64,
    },
    /// Memory of a device.
    Device {
        /// Where it begins, as the device's driver counts.
        address: usize,
        /// How much.
        bytes: u64,
        /// Who knows the device.
        exporter: Arc<dyn Exporter>,
    },
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Foreign { .. } => "Foreign",
            Self::Shared { .. } => "Shared",
            Self::Device { .. } => "Device",
        };
        write!(f, "{kind}({:#x}, {} bytes)", self.address(), self.bytes())
    }
}

impl Memory {
    /// Host memory at an address: shared where it lies in a segment of this process, else foreign.
    pub fn of(address: usize, bytes: u64) -> Self {
        match shared::find(address, bytes) {
            Some((segment, offset)) => Self::Shared {
                segment,
                offset,
                bytes,
            },
            None => Self::Foreign { address, bytes },
        }
    }

    /// Its first address.
    pub fn address(&self) -> usize {
        match self {
            Self::Foreign { address, .. } | Self::Device { address, .. } => *address,
            Self::Shared { segment, offset, .. } => {
                segment.address() + usize::try_from(*offset).unwrap_or(usize::MAX)
            }
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Foreign { bytes, .. } | Self::Shared { bytes, .. } | Self::Device { bytes, .. } => *bytes,
        }
    }

    /// The address of a range of it; none when the range is not inside as a whole.
    pub fn range(&self, offset: u64, bytes: u64) -> Option<usize> {
        let end = offset.checked_add(bytes)?;
        if end > self.bytes() {
            return None;
        }
        self.address().checked_add(usize::try_from(offset).ok()?)
    }
}

/// Why somebody is not let near a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It was dropped, or is being dropped.
    Gone,
    /// It never was, or the key is not its key.
    Forged,
}

/// A buffer of this process. `H` is whoever holds a lease.
pub struct Region<H> {
    /// What a handle must have.
    pub key: Key,
    /// Its memory.
    pub memory: Memory,
    /// Its version.
    pub slot: Arc<Slot>,
    keep: Keep,
    holders: HashSet<H>,
    /// The token of the drop that waits for the holders.
    dropping: Option<u64>,
}

impl<H> Region<H> {
    /// How many hold a lease.
    pub fn leases(&self) -> usize {
        self.holders.len()
    }

    /// Whether it is being dropped.
    pub fn is_dropping(&self) -> bool {
        self.dropping.is_some()
    }
}

/// What is left of a buffer that was taken out of the table.
pub struct Removed {
    /// Of the drop.
    pub token: Option<u64>,
    /// Its memory, for what has to be deregistered.
    pub memory: Memory,
    /// To be given back to who registered it.
    pub keep: Keep,
}

/// All buffers of this process.
pub struct Regions<H> {
    issued: u64,
    live: HashMap<u64, Region<H>>,
}

impl<H> Default for Regions<H> {
    fn default() -> Self {
        Self {
            issued: 0,
            live: HashMap::new(),
        }
    }
}

impl<H: Copy + Eq + Hash> Regions<H> {
    /// Take memory in; gives the buffer's number, never used before, and its key. Memory may be in it many times.
    ///
    /// # Errors
    ///
    /// When the kernel has no random numbers.
    pub fn add(&mut self, memory: Memory, keep: Keep, slot: Arc<Slot>) -> io::Result<(u64, Key)> {
        let mut key = Key::default();
        let drawn = rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
        if drawn < key.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.issued += 1;
        let region = Region {
            key,
            memory,
            slot,
            keep,
            holders: HashSet::new(),
            dropping: None,
        };
        self.live.insert(self.issued, region);
        Ok((self.issued, key))
    }

    /// A buffer, for who has its key.
    ///
    /// # Errors
    ///
    /// [`Refusal`]. Who has no key learns of a live buffer only that the key is wrong.
    pub fn get(&self, number: u64, key: &Key) -> Result<&Region<H>, Refusal> {
        let Some(region) = self.live.get(&number) else {
            let was = number > 0 && number <= self.issued;
            return Err(if was { Refusal::Gone } else { Refusal::Forged });
        };
        if !is_same(&region.key, key) {
            return Err(Refusal::Forged);
        }
        if region.is_dropping() {
            return Err(Refusal::Gone);
        }
        Ok(region)
    }

    /// A buffer of one's own, also one that is being dropped.
    pub fn own(&self, number: u64) -> Option<&Region<H>> {
        self.live.get(&number)
    }

    /// Note that somebody holds a lease from now on, again or for the first time.
    ///
    /// # Errors
    ///
    /// As [`Regions::get`]; then nothing is noted.
    pub fn lease(&mut self, number: u64, key: &Key, holder: H) -> Result<&Region<H>, Refusal> {
        self.get(number, key)?;
        let region = self.live.get_mut(&number).ok_or(Refusal::Gone)?;
        region.holders.insert(holder);
        Ok(region)
    }

    /// Begin to drop a buffer: nobody gets it from now on. Gives those who must be told and answer with
    /// [`Regions::release`], or end, before [`Regions::remove`]; none is left when the list is empty.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`] when it was dropped, or is being dropped, already.
    pub fn revoke(&mut self, number: u64, token: u64) -> Result<Vec<H>, Refusal> {
        let region = self.live.get_mut(&number).ok_or(Refusal::Gone)?;
        if region.is_dropping() {
            return Err(Refusal::Gone);
        }
        region.dropping = Some(token);
        Ok(region.holders.iter().copied().collect())
    }

    /// A lease ends. True when a drop waited for it and for no other.
    pub fn release(&mut self, number: u64, holder: H) -> bool {
        let Some(region) = self.live.get_mut(&number) else {
            return false;
        };
        region.holders.remove(&holder) && region.is_dropping() && region.holders.is_empty()
    }

    /// All leases of somebody end, who has ended. Gives the buffers whose drop waited for that alone.
    pub fn lost(&mut self, holder: H) -> Vec<u64> {
        let numbers: Vec<u64> = self.live.keys().copied().collect();
        numbers
            .into_iter()
            .filter(|&number| self.release(number, holder))
            .collect()
    }

    /// Take a buffer out, whoever still holds a lease. Its memory must be out of everyone's reach before what is
    /// returned is dropped.
    pub fn remove(&mut self, number: u64) -> Option<Removed> {
        let region = self.live.remove(&number)?;
        Some(Removed {
            token: region.dropping,
            memory: region.memory,
            keep: region.keep,
        })
    }

    /// The buffers that have bytes of this range.
    pub fn over(&self, address: usize, bytes: u64) -> Vec<u64> {
        let (start, end) = (address as u64, (address as u64).saturating_add(bytes));
        let meets = |memory: &Memory| {
            let base = memory.address() as u64;
            base < end && start < base.saturating_add(memory.bytes())
        };
        let mut numbers: Vec<u64> = self
            .live
            .iter()
            .filter(|(_, region)| meets(&region.memory))
            .map(|(&number, _)| number)
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// How many buffers there are.
    pub fn count(&self) -> usize {
        self.live.len()
    }

    /// How many leases are held on all of them.
    pub fn leases(&self) -> usize {
        self.live.values().map(Region::leases).sum()
    }

    /// All numbers, for the end of the process.
    pub fn numbers(&self) -> Vec<u64> {
        self.live.keys().copied().collect()
    }
}

/// Whether two keys are the same, in a time that does not tell how many of their bytes are.
fn is_same(one: &Key, other: &Key) -> bool {
    let differing = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(differing) == 0
}
