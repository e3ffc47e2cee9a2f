//! Memory that others allocated.

use std::ffi::c_void;

use crate::error::GpuError;
use crate::platform::Gpu;
use crate::result::Kind as Found;

/// Memory of the host's that someone else allocated and that was pinned for devices. Unpinned when this goes.
#[derive(Debug)]
pub struct Registered {
    gpu: Gpu,
    address: usize,
}

impl Gpu {
    /// Pins memory that someone else allocated, so that copies from and to it need not stop on their way.
    ///
    /// # Safety
    ///
    /// The range stays mapped while the returned value lives, and no copy from or to it is in flight when that goes.
    ///
    /// # Errors
    ///
    /// When the runtime cannot: it is pinned already, or the limit of locked memory is reached.
    pub unsafe fn register(&self, address: usize, bytes: usize) -> Result<Registered, GpuError> {
        // SAFETY: as the caller promises.
        unsafe { self.api().register_host(address as *mut c_void, bytes) }?;
        Ok(Registered {
            gpu: self.clone(),
            address,
        })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered once, and by the promise of `register` no copy is in flight.
        let _ = unsafe { self.gpu.api().unregister_host(self.address as *mut c_void) };
    }
}

/// Whose memory an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The host's, known to no device.
    Host,
    /// The host's, pinned or registered.
    Pinned,
    /// A device's, by its number.
    Device(i32),
    /// Moves between host and device.
    Managed,
}

impl Gpu {
    /// Whose memory an address is. Any address may be asked for; none is touched.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn owner_of(&self, address: usize) -> Result<Owner, GpuError> {
        Ok(match self.api().kind(address as *const c_void)? {
            Found::Unknown => Owner::Host,
            Found::Host => Owner::Pinned,
            Found::Device(number) => Owner::Device(number),
            Found::Managed => Owner::Managed,
        })
    }
}
