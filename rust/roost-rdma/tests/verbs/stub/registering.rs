//! What is registered with devices, how often and for how long: memory of the host, and of GPUs.

use super::Stub;
use crate::bed::{Bed, pattern, read};
use roost_rdma::gpu::{Allocation, Exporter};
use roost_rdma::verbs::{Options, Verbs};
use roost_rdma::{Direction, Run};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

#[test]
fn registrations_are_shared_while_somebody_holds_them() {
    let stub = Stub::new(&[]);
    let bed = stub.bed();
    let mut owned = pattern(1, 1 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    let mut target = vec![0; 1 << 20];
    let ranges: Vec<(usize, u64)> = (0..64)
        .map(|at| (target.as_mut_ptr().expose_provenance() + at * 16_384, 16_384))
        .collect();
    let before = stub.get("registered");
    // SAFETY: the target lives longer than the hold.
    let hold = unsafe { bed.asker.hold(Direction::Read, &ranges) }.unwrap();
    assert_eq!(stub.get("registered"), before + 1, "neighbours are one region");
    read(&mut path, &mut target[5..70_000], 5, &published).unwrap();
    read(&mut path, &mut target[100_000..], 100_000, &published).unwrap();
    assert_eq!(stub.get("registered"), before + 1);
    drop(hold);
    read(&mut path, &mut target[..10], 0, &published).unwrap();
    assert_eq!((stub.get("registered"), bed.asker.regions()), (before + 2, 0));
}

#[test]
fn rows_of_a_matrix_are_one_registration_and_a_hole_between_two_ranges_is_no_error() {
    let stub = Stub::new(&[]);
    let bed = stub.bed();
    let page = rustix::param::page_size();
    let mapping = map(5 * page);
    // SAFETY: nobody uses these pages; the others stay.
    unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(mapping + 2 * page), page) }.unwrap();
    let before = stub.get("registered");
    let ranges = [
        (mapping, page as u64),
        (mapping + page, page as u64),
        (mapping + 3 * page, 100),
    ];
    // SAFETY: these pages stay mapped to the end.
    let hold = unsafe { bed.asker.hold(Direction::Read, &ranges) }.unwrap();
    assert_eq!(stub.get("registered") - before, 2);
    drop(hold);
    let matrix = map(256 * page);
    let rows: Vec<(usize, u64)> = (0..64).map(|row| (matrix + row * 4 * page, 512)).collect();
    // SAFETY: as above.
    let hold = unsafe { bed.asker.hold(Direction::Read, &rows) }.unwrap();
    assert_eq!(stub.get("registered") - before, 3);
    drop(hold);
}

/// Pages that stay to the end of the process.
fn map(bytes: usize) -> usize {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: a new mapping where nothing was.
    let mapped = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    mapped.unwrap().expose_provenance()
}

#[test]
fn too_little_memlock_is_said_with_its_fix() {
    let stub = Stub::new(&[("memlock", 65_536)]);
    let bed = stub.bed();
    let mut owned = vec![0; 1 << 20];
    // SAFETY: it is refused.
    let error = unsafe {
        bed.owner
            .register(owned.as_mut_ptr().expose_provenance(), 1 << 20)
    }
    .err()
    .unwrap()
    .to_string();
    assert!(
        error.contains("1048576 bytes") && error.contains("stub0"),
        "{error}"
    );
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    assert!(
        limit.is_none() || error.contains("ulimit -l unlimited"),
        "{error}"
    );
}

/// Says that this process' memory is a GPU's.
struct Gpu {
    allocation: Mutex<Allocation>,
    has_dma_buf: bool,
}

impl Exporter for Gpu {
    fn allocation(&self, address: usize) -> Option<Allocation> {
        let allocation = *self.allocation.lock().unwrap();
        allocation.offset_of(address, 0).map(|_| allocation)
    }

    fn dma_buf(&self, _base: usize, _bytes: u64) -> Result<(OwnedFd, u64), String> {
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        if self.has_dma_buf {
            Ok((file(), 512))
        } else {
            Err("this kernel has none".into())
        }
    }

    fn pci_address(&self, _device: u32) -> Option<String> {
        None
    }
}

#[test]
fn gpu_memory_is_registered_by_allocation_and_looked_at_on_each_use() {
    let stub = Stub::new(&[]);
    let bed = stub.bed();
    let mut owned = pattern(1, 1 << 20);
    let published = bed.publish(&mut owned);
    for has_dma_buf in [true, false] {
        let mut memory = vec![0; 1 << 20];
        let base = memory.as_mut_ptr().expose_provenance();
        let allocation = Allocation {
            base,
            bytes: 1 << 20,
            device: 0,
            number: 1,
        };
        let gpu = Arc::new(Gpu {
            allocation: Mutex::new(allocation),
            has_dma_buf,
        });
        let options = Options {
            library: Some(stub.path.clone()),
            devices: None,
            exporter: Some(gpu.clone()),
        };
        let bed = Bed {
            asker: Verbs::open(&options).unwrap(),
            owner: bed.owner.clone(),
        };
        let (mut path, _serving) = bed.path();
        let (dma_bufs, registered) = (stub.get("dmabufs"), stub.get("registered"));
        read(&mut path, &mut memory[1000..2000], 0, &published).unwrap();
        read(&mut path, &mut memory[500_000..], 0, &published).unwrap();
        assert_eq!(
            (
                stub.get("dmabufs") - dma_bufs,
                stub.get("registered") - registered
            ),
            (i64::from(has_dma_buf), 1)
        );
        assert!(!has_dma_buf || stub.get("dmabuf_offset") == 512);
        // Freed, and another allocation at its place.
        gpu.allocation.lock().unwrap().number = 2;
        read(&mut path, &mut memory[1000..2000], 0, &published).unwrap();
        assert_eq!(
            (stub.get("dmabufs") - dma_bufs, bed.asker.regions()),
            (2 * i64::from(has_dma_buf), 1)
        );
        gpu.allocation.lock().unwrap().bytes = 1500;
        let run = Run {
            remote: 0,
            local: base + 1000,
            bytes: 1000,
        };
        // SAFETY: it is refused.
        let refused = unsafe { path.post(1, Direction::Read, &[run], &published.remote()) }
            .unwrap_err()
            .to_string();
        assert!(refused.contains("passes the end of its allocation"), "{refused}");
    }
}
