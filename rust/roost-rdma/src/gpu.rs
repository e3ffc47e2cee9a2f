//! The door to memory of a GPU, behind which a driver stands that knows it.
//!
//! The rules, for who implements the trait and for who calls it:
//!
//! - What is registered with a NIC is a whole allocation, never a tensor inside one: base and size must be multiples
//!   of a page, and an allocation is registered once however many tensors lie in it. A tensor is the allocation and its
//!   offset in it.
//! - Registrations are cached by allocation and validated on every use: an allocator may have given the same
//!   addresses to another allocation since, or moved a mapping under a tensor that lives on. See [`Registrations`].
//! - A descriptor from [`Exporter::dma_buf`] may begin before the allocation's base: the offset that comes with it is
//!   added to (address − base).
//! - An exporter makes no context of its own on a device: it takes the one that is current, or fails by name.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// A whole allocation of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Allocation {
    /// Its first address.
    pub base: usize,
    /// Its size.
    pub bytes: u64,
    /// The device's number, as the driver of this process counts.
    pub device: u32,
    /// What tells it from a later allocation at the same address; zero where the driver cannot tell.
    pub number: u64,
}

impl Allocation {
    /// Where a range lies inside, in bytes from the base; none when it is not inside as a whole.
    pub fn offset_of(&self, address: usize, bytes: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base)? as u64;
        (offset.checked_add(bytes)? <= self.bytes).then_some(offset)
    }
}

/// What knows about a device's memory.
pub trait Exporter: Send + Sync {
    /// The allocation that an address lies in, as of now; none when it is not this driver's memory or was freed.
    fn allocation(&self, address: usize) -> Option<Allocation>;

    /// A dma-buf descriptor of a whole allocation, and where in it the allocation begins.
    ///
    /// # Errors
    ///
    /// Why the driver or the kernel gives none; the caller then tries to register the address itself, which needs the
    /// vendor's peer-memory module.
    fn dma_buf(&self, base: usize, bytes: u64) -> Result<(OwnedFd, u64), String>;

    /// A device's PCI address, such as "0000:c1:00.0", from the driver: numbers are changed by the variables that
    /// make devices visible.
    fn pci_address(&self, device: u32) -> Option<String>;
}

/// What was registered for allocations, one value each.
#[derive(Debug)]
pub struct Registrations<T> {
    by_base: HashMap<usize, (Allocation, T)>,
}

impl<T> Default for Registrations<T> {
    fn default() -> Self {
        Self {
            by_base: HashMap::new(),
        }
    }
}

/// What a device's memory is not registered for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unregistered {
    /// No allocation has the whole range: it was freed, or never was the device's.
    Gone,
    /// The driver or the NIC refused, for this reason.
    Failed(String),
}

impl<T> Registrations<T> {
    /// The registration for a range and where the range begins in its allocation. It is made when there is none; one
    /// for an allocation that is no longer what it was is let go of first.
    ///
    /// # Errors
    ///
    /// When the range is not inside one allocation, or `register` fails.
    pub fn get(
        &mut self,
        exporter: &dyn Exporter,
        address: usize,
        bytes: u64,
        register: impl FnOnce(&Allocation) -> Result<T, String>,
    ) -> Result<(&T, u64), Unregistered> {
        let now = exporter.allocation(address).ok_or(Unregistered::Gone)?;
        let offset = now.offset_of(address, bytes).ok_or(Unregistered::Gone)?;
        // Whatever is known of these addresses and is not this allocation, is history.
        let end = now.base as u64 + now.bytes;
        self.by_base.retain(|_, (known, _)| {
            *known == now || known.base as u64 >= end || known.base as u64 + known.bytes <= now.base as u64
        });
        if let std::collections::hash_map::Entry::Vacant(place) = self.by_base.entry(now.base) {
            let made = register(&now).map_err(Unregistered::Failed)?;
            place.insert((now, made));
        }
        let (_, registered) = self.by_base.get(&now.base).ok_or(Unregistered::Gone)?;
        Ok((registered, offset))
    }

    /// How many allocations are registered.
    pub fn count(&self) -> usize {
        self.by_base.len()
    }

    /// Let go of all of them.
    pub fn clear(&mut self) {
        self.by_base.clear();
    }
}
