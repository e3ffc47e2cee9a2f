//! Which memory is registered now, so that nothing is registered twice while somebody uses it.
//!
//! Host memory stays registered only as long as somebody holds it. A region kept for the next time would go on naming its old
//! pages after the memory was unmapped and mapped anew, and a read would write where nobody looks. GPU allocations have a number
//! that tells one life of an address from the next, so these are kept, and compared on each use.

use super::device::Device;
use super::memory::{Access, Region};
use super::result::Error;
use super::topology::{FAR, Place};
use crate::gpu::{Allocation, Exporter, Registrations};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// GPU allocations that stay registered. Each is a whole block of the allocator, so a model has few.
const ALLOCATIONS_KEPT_MAX: usize = 256;

/// Ranges with so many bytes between them are registered as one, at first and if that is refused: rows of a matrix are many, and
/// each registration costs as much as copying some hundred KiB.
const GAPS: [usize; 2] = [64 << 10, 0];

/// The registrations of one process.
pub(super) struct Registry {
    devices: Vec<Arc<Device>>,
    exporter: Option<Arc<dyn Exporter>>,
    live: Arc<AtomicUsize>,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    host: BTreeMap<(usize, u64, Access), Weak<Region>>,
    gpu: Registrations<Arc<Region>>,
}

/// Ranges, each with the region that it lies in.
pub(super) struct Cover {
    pub(super) regions: Vec<Arc<Region>>,
    /// For each range its place in `regions`.
    pub(super) of: Vec<usize>,
}

/// Where registered ranges may be merged: pages are registered whole in any case.
fn page() -> usize {
    rustix::param::page_size()
}

impl Registry {
    pub(super) fn new(devices: Vec<Arc<Device>>, exporter: Option<Arc<dyn Exporter>>) -> Self {
        Self {
            devices,
            exporter,
            live: Arc::default(),
            tables: Mutex::default(),
        }
    }

    pub(super) fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// Registrations with devices that live now.
    pub(super) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// A region of exactly this range, for others; of a GPU's memory, of the whole allocation.
    pub(super) fn remote(&self, address: usize, bytes: u64) -> Result<Arc<Region>, Error> {
        if let Some((exporter, allocation)) = self.allocation(address, bytes)? {
            // Never one that is kept: a key must die with its registration.
            return Ok(Arc::new(self.gpu_region(exporter, &allocation, Access::Remote)));
        }
        Ok(self.keep(self.region(address, bytes, Access::Remote)))
    }

    /// Regions that contain the ranges, registered with each of the devices: those that live, and new ones for the rest, in
    /// which neighbours are one.
    pub(super) fn cover(
        &self,
        access: Access,
        ranges: &[(usize, u64)],
        devices: &[Arc<Device>],
    ) -> Result<Cover, Error> {
        let mut cover = Cover {
            regions: Vec::new(),
            of: vec![usize::MAX; ranges.len()],
        };
        let mut missing = Vec::new();
        for (at, &(address, bytes)) in ranges.iter().enumerate() {
            let last = cover
                .regions
                .last()
                .filter(|region| region.contains(address, bytes))
                .cloned();
            let found = match last {
                Some(region) => Some(region),
                None => match self.of_gpu(address, bytes)? {
                    Some(region) => Some(register(region, devices)?),
                    None => self
                        .find(access, address, bytes)
                        .filter(|region| is_usable(region, devices)),
                },
            };
            match found {
                Some(region) => cover.put(at, region),
                None => missing.push(at),
            }
        }
        missing.sort_unstable_by_key(|at| ranges[*at].0);
        self.register_all(access, ranges, &missing, devices, &GAPS, &mut cover)?;
        Ok(cover)
    }

    /// Makes regions for these ranges, which are in the order of their addresses.
    ///
    /// What lies between neighbours may not be mapped, or be of a kind that cannot be registered: then neighbours are only what
    /// touches, and at last each range is for itself, which also finds out whose error it is.
    fn register_all(
        &self,
        access: Access,
        ranges: &[(usize, u64)],
        order: &[usize],
        devices: &[Arc<Device>],
        gaps: &[usize],
        cover: &mut Cover,
    ) -> Result<(), Error> {
        let Some((gap, smaller)) = gaps.split_first() else {
            for &at in order {
                let (address, bytes) = ranges[at];
                let region = self.keep(self.region(address, bytes, access));
                cover.put(at, register(region, devices)?);
            }
            return Ok(());
        };
        let mut rest = order;
        while !rest.is_empty() {
            let (start, end, count) = merged(rest, ranges, *gap);
            let (members, others) = rest.split_at(count);
            let region = self.keep(self.region(start, (end - start) as u64, access));
            if is_usable(&region, devices) {
                for &at in members {
                    cover.put(at, Arc::clone(&region));
                }
            } else {
                self.register_all(access, ranges, members, devices, smaller, cover)?;
            }
            rest = others;
        }
        Ok(())
    }

    fn region(&self, address: usize, bytes: u64, access: Access) -> Region {
        Region::new(address, bytes, access, self.devices.len(), &self.live)
    }

    fn keep(&self, region: Region) -> Arc<Region> {
        let region = Arc::new(region);
        let mut tables = self.lock();
        tables.host.retain(|_, region| region.strong_count() > 0);
        tables.host.insert(
            (region.address, region.bytes, region.access),
            Arc::downgrade(&region),
        );
        region
    }

    /// A live region around this range. Ranges that overlap it without being inside are none of its.
    fn find(&self, access: Access, address: usize, bytes: u64) -> Option<Arc<Region>> {
        // Regions rarely overlap, so the one that contains the range is among the last that begin before its end.
        const LOOKED_AT_MAX: usize = 32;
        let tables = self.lock();
        let before = tables
            .host
            .range(..=(address, u64::MAX, Access::Remote))
            .rev()
            .take(LOOKED_AT_MAX);
        before
            .filter_map(|(_, region)| region.upgrade())
            .find(|region| region.access >= access && region.contains(address, bytes))
    }

    /// The GPU's allocation around the range; None for host memory.
    fn allocation(&self, address: usize, bytes: u64) -> Result<Option<(&dyn Exporter, Allocation)>, Error> {
        let Some(exporter) = self.exporter.as_deref() else {
            return Ok(None);
        };
        let Some(allocation) = exporter.allocation(address) else {
            return Ok(None);
        };
        if allocation.offset_of(address, bytes).is_none() {
            let reason = format!(
                "it passes the end of its allocation of {} bytes at {:#x}",
                allocation.bytes, allocation.base
            );
            return Err(Error::Register {
                address,
                bytes,
                device: format!("GPU {}", allocation.device),
                reason,
            });
        }
        Ok(Some((exporter, allocation)))
    }

    /// The region of the GPU's allocation around the range, kept for the next time.
    fn of_gpu(&self, address: usize, bytes: u64) -> Result<Option<Arc<Region>>, Error> {
        let Some((exporter, allocation)) = self.allocation(address, bytes)? else {
            return Ok(None);
        };
        // A driver that cannot tell one allocation from the next at its place leaves nothing to compare.
        if allocation.number == 0 {
            return Ok(Some(Arc::new(self.gpu_region(
                exporter,
                &allocation,
                Access::Target,
            ))));
        }
        let mut tables = self.lock();
        if tables.gpu.count() >= ALLOCATIONS_KEPT_MAX {
            tables.gpu.clear();
        }
        let make =
            |allocation: &Allocation| Ok(Arc::new(self.gpu_region(exporter, allocation, Access::Target)));
        match tables.gpu.get(exporter, address, bytes, make) {
            Ok((region, _)) => Ok(Some(Arc::clone(region))),
            Err(_) => Err(Error::Register {
                address,
                bytes,
                device: format!("GPU {}", allocation.device),
                reason: "it was freed meanwhile".into(),
            }),
        }
    }

    /// The whole allocation, since devices want it page-aligned.
    fn gpu_region(&self, exporter: &dyn Exporter, allocation: &Allocation, access: Access) -> Region {
        let has_dma_buf = self.devices.iter().any(|device| device.library().has_dma_buf());
        // Without a dma-buf the driver's peer-memory module may still know the address.
        let dma_buf = if has_dma_buf {
            exporter.dma_buf(allocation.base, allocation.bytes).ok()
        } else {
            None
        };
        let address = exporter.pci_address(allocation.device);
        let place = address.map(|address| Place::of_pci(&address));
        let near = self.near(place.as_ref());
        self.region(allocation.base, allocation.bytes, access)
            .of_gpu(dma_buf, near)
    }

    /// The devices at the smallest distance from there, by bit; all where nothing is known.
    fn near(&self, place: Option<&Place>) -> u64 {
        let distance = |device: &Arc<Device>| place.map_or(FAR, |place| place.distance(&device.place));
        let smallest = self.devices.iter().map(distance).min().unwrap_or(FAR);
        let nearest = self.devices.iter().filter(|device| distance(device) == smallest);
        // The highest bit tells a GPU's region from the host's `u64::MAX`.
        nearest.fold(0, |mask, device| mask | 1 << (device.index % 63))
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cover {
    fn put(&mut self, at: usize, region: Arc<Region>) {
        let known = self.regions.iter().rposition(|known| Arc::ptr_eq(known, &region));
        self.of[at] = known.unwrap_or_else(|| {
            self.regions.push(region);
            self.regions.len() - 1
        });
    }
}

fn register(region: Arc<Region>, devices: &[Arc<Device>]) -> Result<Arc<Region>, Error> {
    for device in devices {
        region.keys(device)?;
    }
    Ok(region)
}

fn is_usable(region: &Region, devices: &[Arc<Device>]) -> bool {
    devices.iter().all(|device| region.keys(device).is_ok())
}

/// The pages of the first ranges with at most `gap` bytes between each other, and how many ranges these are. `order` is by address.
fn merged(order: &[usize], ranges: &[(usize, u64)], gap: usize) -> (usize, usize, usize) {
    let pages = |at: usize| {
        let (address, bytes) = ranges[at];
        let end = address.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
        (
            address & !(page() - 1),
            end.checked_next_multiple_of(page()).unwrap_or(end),
        )
    };
    let (start, mut end) = pages(order[0]);
    let mut count = 1;
    for &at in &order[1..] {
        let next = pages(at);
        if next.0 > end.saturating_add(gap) {
            break;
        }
        end = end.max(next.1);
        count += 1;
    }
    (start, end, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_that_nobody_holds_are_forgotten_whoever_made_them() {
        let registry = Registry::new(Vec::new(), None);
        let held = registry.remote(page(), 1 << 20).unwrap();
        for at in 1..100 {
            drop(registry.remote(page() + at, 8).unwrap());
        }
        // The last one that was let go is seen by who comes next.
        assert!(registry.lock().host.len() <= 2);
        let found = registry.find(Access::Target, page() + 200, 8).unwrap();
        assert!(Arc::ptr_eq(&held, &found));
    }

    #[test]
    fn neighbours_are_registered_once() {
        let page = page();
        let ranges = [
            (page, 10),
            (page + 100, 10),
            (2 * page + 5, page as u64),
            (9 * page, 1),
        ];
        let order: Vec<usize> = (0..ranges.len()).collect();
        assert_eq!(merged(&order, &ranges, 0), (page, 4 * page, 3));
        assert_eq!(merged(&order[3..], &ranges, 0), (9 * page, 10 * page, 1));
    }
}
