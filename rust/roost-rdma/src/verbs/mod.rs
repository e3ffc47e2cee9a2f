//! Transfers by NICs: plain reliable connections (RC) of libibverbs, which is opened at run time.
//!
//! `sys` declares, `result` turns codes into errors and is the only caller of `sys`, and the types below own what it gives.
//! A [`Path`] is what one process reaches another's memory by; it has no thread, and whoever has it waits on one descriptor.
//!
//! | module | what it is |
//! |---|---|
//! | `sys`, `result` | libibverbs as it is; its codes as errors |
//! | `device`, `gid`, `topology` | devices, ports that are ACTIVE, their addresses, how near they are |
//! | `memory`, `registry` | memory that NICs may touch; which of it is registered now |
//! | `queue_pair` | reliable connections and where their work completes |
//! | `offer` | what two engines tell each other over their link |
//! | `path`, `operation` | queue pairs to one peer, work striped over them; one read or write on its way |
//! | `layout` | a test: the declarations against libibverbs' headers |

mod device;
mod gid;
#[cfg(test)]
mod layout;
mod memory;
mod offer;
mod operation;
mod path;
mod queue_pair;
mod registry;
mod result;
mod sys;
mod topology;

pub use self::device::{Device, Limits, Port};
pub use self::gid::Gid;
pub use self::memory::Registration;
pub(crate) use self::memory::is_mapped;
pub use self::offer::RemoteRegion;
pub use self::operation::Reach;
pub use self::path::{Event, Failure, Path};
pub use self::result::Error;
pub use self::topology::{FAR, Place};

use self::memory::{Access, Region};
use self::offer::Address;
use self::registry::Registry;
use self::result::Library;
use crate::gpu::Exporter;
use crate::plan::Direction;
use std::path::PathBuf;
use std::sync::Arc;

/// How devices are chosen.
#[derive(Clone, Default)]
pub struct Options {
    /// Another library with libibverbs' functions, for tests.
    pub library: Option<PathBuf>,
    /// The devices that may be used; all when there are none here.
    pub devices: Option<Vec<String>>,
    /// Who knows about GPUs' memory.
    pub exporter: Option<Arc<dyn Exporter>>,
}

/// The RDMA devices of this host, open. Cheap to clone.
#[derive(Clone)]
pub struct Verbs {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Registry,
    left_out: Vec<String>,
}

/// Local memory that stays registered for as long as this lives.
pub struct Hold {
    _regions: Vec<Arc<Region>>,
}

impl Verbs {
    /// Opens the library and all devices that will do.
    ///
    /// # Errors
    /// There is no library, or no device with an ACTIVE port; the text names what was tried and why each was left out.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let library = Arc::new(Library::open(options.library.as_deref())?);
        let wanted = options.devices.as_deref().filter(|names| !names.is_empty());
        let (devices, mut left_out) = Device::open_all(&library, wanted)?;
        let mut is_usable = false;
        for device in &devices {
            let (ports, reasons) = device.ports();
            is_usable |= !ports.is_empty();
            left_out.extend(reasons);
        }
        if !is_usable {
            let reasons = if left_out.is_empty() {
                "this host has none".into()
            } else {
                left_out.join("; ")
            };
            return Err(Error::NoDevice(reasons));
        }
        let registry = Registry::new(devices, options.exporter.clone());
        Ok(Self {
            inner: Arc::new(Inner { registry, left_out }),
        })
    }

    /// The devices that are open.
    pub fn devices(&self) -> &[Arc<Device>] {
        self.inner.registry.devices()
    }

    /// Devices and ports that could not be used when these were opened, each with the reason.
    pub fn left_out(&self) -> &[String] {
        &self.inner.left_out
    }

    /// Registrations with devices that live now.
    pub fn regions(&self) -> usize {
        self.inner.registry.live()
    }

    /// The ports that are ACTIVE now, for a peer who wants to reach this process.
    pub fn card(&self) -> Vec<u8> {
        let addresses: Vec<Address> = self
            .ports()
            .iter()
            .map(|(device, port)| Address::of(device, port))
            .collect();
        offer::encode_card(&addresses)
    }

    fn ports(&self) -> Vec<(Arc<Device>, Port)> {
        let of = |device: &Arc<Device>| {
            device
                .ports()
                .0
                .into_iter()
                .map(|port| (Arc::clone(device), port))
                .collect::<Vec<_>>()
        };
        self.devices().iter().flat_map(of).collect()
    }

    /// Lets others read and write this memory, until the registration is dropped.
    ///
    /// # Errors
    /// No device takes it: too much for memlock, not mapped, read-only, more than the device's regions hold.
    ///
    /// # Safety
    /// The memory stays mapped, and nobody relies on its content, for as long as the registration lives.
    pub unsafe fn register(&self, address: usize, bytes: u64) -> Result<Registration, Error> {
        let region = self.inner.registry.remote(address, bytes)?;
        Registration::of(region, address, bytes, self.devices())
    }

    /// Registers local memory of many transfers at once, neighbours together.
    ///
    /// # Errors
    /// As [`Verbs::register`].
    ///
    /// # Safety
    /// The memory stays mapped for as long as the hold lives.
    pub unsafe fn hold(&self, direction: Direction, ranges: &[(usize, u64)]) -> Result<Hold, Error> {
        let cover = self
            .inner
            .registry
            .cover(Access::of(direction), ranges, self.devices())?;
        Ok(Hold {
            _regions: cover.regions,
        })
    }
}

impl Access {
    fn of(direction: Direction) -> Self {
        match direction {
            Direction::Read => Self::Target,
            Direction::Write => Self::Source,
        }
    }
}
