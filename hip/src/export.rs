//! What one-sided memory wants to know about a device's memory: the allocation behind an address, a dma-buf of it, and
//! where its device sits. The shapes are those of `roost-rdma`'s door for GPUs, so that the two are joined by a few lines.

use std::ffi::c_void;
use std::os::fd::OwnedFd;

use crate::error::GpuError;
use crate::memory::Owner;
use crate::platform::Gpu;

/// A whole allocation of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Allocation {
    /// Its first address.
    pub base: usize,
    /// Its size in bytes.
    pub bytes: u64,
    /// The device's number in this process.
    pub device: u32,
    /// What tells it from a later allocation at the same address; zero where the driver cannot tell.
    pub number: u64,
}

/// Answers about memory of this process's devices. It makes no context: a device that nobody has used yet has no memory
/// to ask for.
#[derive(Debug, Clone)]
pub struct Exporter {
    gpu: Gpu,
}

impl Exporter {
    /// Of these GPUs.
    pub fn new(gpu: Gpu) -> Self {
        Self { gpu }
    }

    /// The allocation that an address lies in, as of now; none when it is not a device's or was freed.
    pub fn allocation(&self, address: usize) -> Option<Allocation> {
        let Ok(Owner::Device(device)) = self.gpu.owner_of(address) else {
            return None;
        };
        let api = self.gpu.api();
        let pointer = address as *mut c_void;
        let found = api.with_context(device, "looking up an allocation", || {
            let number = api.buffer_id(pointer).unwrap_or(0);
            Ok(api
                .address_range(pointer)
                .map(|(base, bytes)| (base, bytes, number)))
        });
        let (base, bytes, number) = found.ok().flatten()?;
        Some(Allocation {
            base,
            bytes: bytes as u64,
            device: u32::try_from(device).ok()?,
            number,
        })
    }

    /// A dma-buf descriptor of a whole allocation, and where in it the allocation begins.
    ///
    /// # Errors
    ///
    /// Why the driver or the kernel gives none.
    pub fn dma_buf(&self, base: usize, bytes: u64) -> Result<(OwnedFd, u64), GpuError> {
        let Owner::Device(device) = self.gpu.owner_of(base)? else {
            return Err(GpuError::refused(format!(
                "address {base:#x} is not a device's memory"
            )));
        };
        let bytes =
            usize::try_from(bytes).map_err(|_| GpuError::refused("more bytes than an address can count"))?;
        let api = self.gpu.api();
        api.with_context(device, "exporting a dma-buf", || {
            api.dma_buf(base as *mut c_void, bytes)
        })
    }

    /// Makes the driver wait for copies into an allocation before it calls them done, as one-sided reads need.
    ///
    /// # Errors
    ///
    /// What the driver says; HIP before 5.7 has no such thing.
    pub fn make_copies_wait(&self, address: usize) -> Result<(), GpuError> {
        let Owner::Device(device) = self.gpu.owner_of(address)? else {
            return Ok(());
        };
        let api = self.gpu.api();
        api.with_context(device, "setting an attribute of memory", || {
            api.set_sync_memops(address as *mut c_void)
        })
    }

    /// A device's PCI address, such as "0000:c1:00.0", from the driver.
    pub fn pci_address(&self, device: u32) -> Option<String> {
        self.gpu
            .device(i32::try_from(device).ok()?)
            .ok()?
            .pci_address()
            .ok()
    }
}
