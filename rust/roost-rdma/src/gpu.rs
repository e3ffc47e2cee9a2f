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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A driver whose allocations the test changes.
    struct Driver(Mutex<Vec<Allocation>>);

    impl Exporter for Driver {
        fn allocation(&self, address: usize) -> Option<Allocation> {
            let all = self.0.lock().unwrap();
            all.iter()
                .find(|allocation| allocation.offset_of(address, 1).is_some())
                .copied()
        }

        fn dma_buf(&self, _: usize, _: u64) -> Result<(OwnedFd, u64), String> {
            Err("a driver without dma-buf".into())
        }

        fn pci_address(&self, _: u32) -> Option<String> {
            None
        }
    }

    fn allocation(base: usize, bytes: u64, number: u64) -> Allocation {
        Allocation {
            base,
            bytes,
            device: 0,
            number,
        }
    }

    #[test]
    fn an_allocation_is_registered_once_and_again_when_it_is_another() {
        let driver = Driver(Mutex::new(vec![allocation(4096, 8192, 1)]));
        let mut registrations = Registrations::default();
        let mut made = 0;
        let mut get = |address, bytes| {
            let found = registrations.get(&driver, address, bytes, |_| {
                made += 1;
                Ok(made)
            });
            found.map(|(&which, offset)| (which, offset))
        };
        assert_eq!(get(4096, 100), Ok((1, 0)));
        assert_eq!(get(5000, 100), Ok((1, 904)));
        assert_eq!(get(4096, 8193), Err(Unregistered::Gone));
        assert_eq!(get(0, 1), Err(Unregistered::Gone));
        // Grown in place, then freed and given again, then split by another.
        *driver.0.lock().unwrap() = vec![allocation(4096, 16384, 1)];
        assert_eq!(get(5000, 100), Ok((2, 904)));
        *driver.0.lock().unwrap() = vec![allocation(4096, 16384, 2)];
        assert_eq!(get(5000, 100), Ok((3, 904)));
        *driver.0.lock().unwrap() = vec![allocation(8192, 4096, 3)];
        assert_eq!(get(8192, 100), Ok((4, 0)));
        driver.0.lock().unwrap().clear();
        assert_eq!(get(8192, 100), Err(Unregistered::Gone));
        assert_eq!(
            registrations.count(),
            1,
            "what nobody asks for goes with the next use or the end"
        );
        registrations.clear();
        assert_eq!(registrations.count(), 0);
    }

    #[test]
    fn a_refusal_leaves_nothing_registered() {
        let driver = Driver(Mutex::new(vec![allocation(4096, 8192, 1)]));
        let mut registrations: Registrations<()> = Registrations::default();
        let refused = registrations.get(&driver, 4096, 1, |_| Err("no memory to lock".into()));
        assert_eq!(
            refused.err(),
            Some(Unregistered::Failed("no memory to lock".into()))
        );
        assert_eq!(registrations.count(), 0);
    }
}
