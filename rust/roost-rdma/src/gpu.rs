//! What a GPU's runtime is asked for, by whoever has one.

use std::os::fd::OwnedFd;

/// One allocation of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Where it begins.
    pub base: usize,
    /// How much.
    pub bytes: u64,
    /// On which device.
    pub device: u32,
}

/// A GPU's runtime, as far as memory is given to other devices.
pub trait Exporter: Send + Sync {
    /// The allocation that this address is in now; none when it is no GPU's memory.
    fn allocation(&self, address: usize) -> Option<Allocation>;

    /// The memory as a dma-buf, and where in that it begins.
    ///
    /// # Errors
    ///
    /// Why the driver gives none.
    fn dma_buf(&self, base: usize, bytes: u64) -> Result<(OwnedFd, u64), String>;

    /// Where the device is on the bus, as sysfs writes it.
    fn pci_address(&self, device: u32) -> Option<String>;
}
