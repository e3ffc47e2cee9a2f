//! Physical memory of a device mapped at addresses of its own: what can be given to another process as a descriptor.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::device::Device;
use crate::error::GpuError;
use crate::memory::{Memory, Release};
use crate::result::Api;
use crate::rocm_compat as rt;

/// Physical memory of a device. It lives while this, a mapping of it, or a descriptor for it in any process does.
#[derive(Debug)]
pub struct Physical {
    device: Device,
    handle: rt::CUmemGenericAllocationHandle,
    bytes: usize,
}

// SAFETY: both vendors' drivers say that such a handle may be used from any thread.
unsafe impl Send for Physical {}
// SAFETY: as above.
unsafe impl Sync for Physical {}

/// Gives a mapped range back.
///
/// # Safety
///
/// The range was mapped as a whole by [`Physical::map`], and nobody uses it again.
pub(crate) unsafe fn release(api: &Api, address: *mut c_void, bytes: usize) -> Result<(), GpuError> {
    // SAFETY: as the caller promises.
    unsafe { api.unmap(address, bytes) }?;
    // SAFETY: as the caller promises; what was mapped is not any more.
    unsafe { api.free_addresses(address, bytes) }
}

impl Device {
    /// Physical memory of at least so many bytes, rounded up to what the device maps at a time.
    ///
    /// # Errors
    ///
    /// When the device cannot do it or has no more.
    pub fn physical(&self, bytes: usize) -> Result<Physical, GpuError> {
        let wanted = wanted(self);
        let api = self.gpu().api();
        let piece = api.granularity(&wanted)?.max(1);
        let bytes = bytes.max(1).checked_next_multiple_of(piece);
        let bytes = bytes.ok_or_else(|| GpuError::refused("more bytes than an address can count"))?;
        let handle = self.with(|| api.create_physical(bytes, &wanted))?;
        Ok(Physical {
            device: self.clone(),
            handle,
            bytes,
        })
    }

    /// Physical memory that another process gave as a descriptor. `bytes` is what it was made with.
    ///
    /// # Errors
    ///
    /// When the descriptor is of something else.
    pub fn import_physical(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Physical, GpuError> {
        let handle = self.with(|| self.gpu().api().import_physical(descriptor))?;
        Ok(Physical {
            device: self.clone(),
            handle,
            bytes,
        })
    }
}

fn wanted(device: &Device) -> rt::CUmemAllocationProp {
    rt::CUmemAllocationProp {
        r#type: rt::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: rt::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: rt::CUmemLocation {
            r#type: rt::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device.number(),
        },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: crate::sys::hipMemAllocationFlags {
            gpuDirectRDMACapable: 1,
            ..Default::default()
        },
    }
}

impl Physical {
    /// Its length in bytes, rounded up as the device wanted it.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never: it has at least one piece.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A descriptor that another process imports it by.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn export(&self) -> Result<OwnedFd, GpuError> {
        // SAFETY: live, as this value is.
        unsafe { self.device.gpu().api().export_physical(self.handle) }
    }

    /// Maps it at addresses of its own, readable and writable by its device.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn map(&self) -> Result<Memory, GpuError> {
        let api = self.device.gpu().api();
        self.device.with(|| {
            let address = api.reserve_addresses(self.bytes)?;
            // SAFETY: reserved just now, as long as the memory, which is live as this value is.
            if let Err(error) = unsafe { api.map(address, self.bytes, self.handle) } {
                // SAFETY: reserved just now, and nothing was mapped.
                unsafe { api.free_addresses(address, self.bytes) }?;
                return Err(error);
            }
            let (device, gpu) = (Some(self.device.clone()), Some(self.device.gpu().clone()));
            let memory = Memory::new(device, gpu, address as usize, self.bytes, Release::Mapped);
            // SAFETY: mapped as a whole just now.
            unsafe { api.allow_access(address, self.bytes, self.device.number()) }?;
            Ok(memory)
        })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: made or imported once, dropped once; mappings keep the memory by themselves.
        let _ = unsafe { self.device.gpu().api().release_physical(self.handle) };
    }
}
