//! Memory that NICs may touch: registered with a device on first use there, given back with the last holder.

use super::device::Device;
use super::offer::RemoteRegion;
use super::result::Error;
use super::sys;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// What a NIC may do with a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    /// Read it for this process: the source of writes, which may be read-only memory.
    Source,
    /// Write it for this process: the target of reads.
    Target,
    /// Both, for whoever has the key.
    Remote,
}

impl Access {
    fn flags(self) -> i32 {
        match self {
            Self::Source => 0,
            Self::Target => sys::ACCESS_LOCAL_WRITE,
            Self::Remote => sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_READ | sys::ACCESS_REMOTE_WRITE,
        }
    }
}

/// A region's registration with one device.
struct Registered {
    device: Arc<Device>,
    raw: NonNull<sys::MemoryRegion>,
    live: Arc<AtomicUsize>,
}

// SAFETY: "By default all verbs objects are safe for multi-threaded access" (ibv_alloc_td(3)); a region is only read until its end.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    fn keys(&self) -> (u32, u32) {
        // SAFETY: the region lives as long as `self`; the library does not change it after making it.
        unsafe { ((*self.raw.as_ptr()).lkey, (*self.raw.as_ptr()).rkey) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: nobody else has the pointer.
        unsafe { self.device.library().dereg_mr(self.raw) };
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A range of memory, and its registrations.
pub(super) struct Region {
    pub(super) address: usize,
    pub(super) bytes: u64,
    pub(super) access: Access,
    /// GPU memory as a dma-buf, and where in that the range begins. None: as the process has it mapped.
    dma_buf: Option<(OwnedFd, u64)>,
    /// The devices that are nearest to this memory, by bit. All of them for host memory.
    pub(super) near: u64,
    by_device: Vec<OnceLock<Result<Registered, Error>>>,
    live: Arc<AtomicUsize>,
}

impl Region {
    /// Registers nothing yet.
    pub(super) fn new(
        address: usize,
        bytes: u64,
        access: Access,
        devices: usize,
        live: &Arc<AtomicUsize>,
    ) -> Self {
        let by_device = (0..devices).map(|_| OnceLock::new()).collect();
        Self {
            address,
            bytes,
            access,
            dma_buf: None,
            near: u64::MAX,
            by_device,
            live: Arc::clone(live),
        }
    }

    /// The same for the memory of a GPU.
    pub(super) fn of_gpu(mut self, dma_buf: Option<(OwnedFd, u64)>, near: u64) -> Self {
        self.dma_buf = dma_buf;
        self.near = near;
        self
    }

    pub(super) fn contains(&self, address: usize, bytes: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|offset| {
            (offset as u64)
                .checked_add(bytes)
                .is_some_and(|end| end <= self.bytes)
        })
    }

    /// The local and the remote key of this memory with the device.
    pub(super) fn keys(&self, device: &Arc<Device>) -> Result<(u32, u32), Error> {
        let slot = &self.by_device[usize::from(device.index)];
        slot.get_or_init(|| self.register(device))
            .as_ref()
            .map(Registered::keys)
            .map_err(Clone::clone)
    }

    fn register(&self, device: &Arc<Device>) -> Result<Registered, Error> {
        let refused = |reason: String| Error::Register {
            address: self.address,
            bytes: self.bytes,
            device: device.name().to_owned(),
            reason,
        };
        let most = device.limits.region_bytes_max;
        if most != 0 && self.bytes > most {
            return Err(refused(format!("the device's regions have {most} bytes at most")));
        }
        let bytes = usize::try_from(self.bytes).map_err(|_| refused("more than the address space".into()))?;
        let (library, pd, flags) = (device.library(), device.pd(), self.access.flags());
        let made = match &self.dma_buf {
            // SAFETY: the protection domain lives as long as the device.
            Some((fd, offset)) => unsafe {
                library.reg_dmabuf_mr(pd, *offset, bytes, self.address as u64, fd.as_raw_fd(), flags)
            },
            // SAFETY: as above.
            None => unsafe { library.reg_mr(pd, self.address, bytes, flags) },
        };
        let raw = made.map_err(|errno| refused(self.why(errno, device)))?;
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok(Registered {
            device: Arc::clone(device),
            raw,
            live: Arc::clone(&self.live),
        })
    }

    fn why(&self, errno: i32, device: &Device) -> String {
        let text = io::Error::from_raw_os_error(errno).to_string();
        match errno {
            // Not every driver says EFAULT of memory that is not there.
            libc::ENOMEM if self.dma_buf.is_none() && !is_mapped(self.address, self.bytes) => {
                format!("{text}: it is not mapped")
            }
            libc::ENOMEM => match memlock() {
                Some(limit) => format!(
                    "{text}: this process may lock {limit} bytes (RLIMIT_MEMLOCK). Raise it: ulimit -l unlimited, \
                     LimitMEMLOCK=infinity of a systemd service, --ulimit memlock=-1 of a container"
                ),
                None => format!(
                    "{text}: it is read-only, or all {} regions of the device are in use, or the host has no memory left that can stay in place",
                    device.limits.regions_max
                ),
            },
            libc::EFAULT if self.access == Access::Source => format!("{text}: it is not mapped"),
            libc::EFAULT => format!("{text}: it is not mapped, or read-only"),
            libc::EINVAL if self.near != u64::MAX && self.dma_buf.is_none() => format!(
                "{text}: GPU memory without dma-buf needs the driver's peer-memory module (amdgpu's peer-mem, nvidia-peermem)"
            ),
            libc::EOPNOTSUPP if self.dma_buf.is_some() => {
                format!("{text}: kernel 5.12 or newer and libibverbs 34 or newer register dma-bufs")
            }
            _ => text,
        }
    }
}

/// Whether all of these pages are there.
pub(crate) fn is_mapped(address: usize, bytes: u64) -> bool {
    let start = address & !(rustix::param::page_size() - 1);
    let Ok(length) = usize::try_from(bytes) else {
        return false;
    };
    let length = length.saturating_add(address - start);
    // SAFETY: with this flag Linux looks whether the range is mapped, and does nothing else.
    unsafe {
        libc::msync(
            std::ptr::with_exposed_provenance_mut(start),
            length,
            libc::MS_ASYNC,
        ) == 0
    }
}

/// The bytes that may be locked; None when that is not limited.
fn memlock() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    limit.current
}

/// Memory that others may read and write for as long as this lives. Dropping it makes their keys worthless.
pub struct Registration {
    region: Arc<Region>,
    address: usize,
    bytes: u64,
    keys: Vec<(u8, u32)>,
}

impl Registration {
    /// Registers with every device that takes it; an error when none does.
    pub(super) fn of(
        region: Arc<Region>,
        address: usize,
        bytes: u64,
        devices: &[Arc<Device>],
    ) -> Result<Self, Error> {
        let (mut keys, mut refusal) = (Vec::new(), None);
        for device in devices {
            match region.keys(device) {
                Ok((_, key)) => keys.push((device.index, key)),
                Err(error) => refusal = Some(error),
            }
        }
        match refusal {
            Some(error) if keys.is_empty() => Err(error),
            _ => Ok(Self {
                region,
                address,
                bytes,
                keys,
            }),
        }
    }

    /// What others need to reach it.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            base: self.address as u64,
            bytes: self.bytes,
            keys: self.keys.clone(),
        }
    }

    /// A NIC goes to this memory directly, though it is a GPU's.
    pub fn is_gpu(&self) -> bool {
        self.region.near != u64::MAX
    }
}
