//! Allocations, copies, and what an address is.

use std::ffi::{c_int, c_void};

use super::{Api, Result, call};
use crate::rocm_compat as rt;

/// What the runtime knows about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing: plain memory of the process.
    Unknown,
    /// Pinned or registered memory of the host.
    Host,
    /// A device's memory.
    Device(c_int),
    /// Memory that moves between host and device.
    Managed,
}

impl Api {
    pub(crate) fn allocate(&self, bytes: usize) -> Result<*mut c_void> {
        let mut address = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { call!(self, cudaMalloc(&raw mut address, bytes)) }?;
        Ok(address)
    }

    /// # Safety
    ///
    /// `address` is from [`Self::allocate`], no work that uses it is in flight, and nobody uses it again.
    pub(crate) unsafe fn free(&self, address: *mut c_void) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaFree(address)) }
    }

    /// Free and total bytes of the current device.
    pub(crate) fn memory_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        unsafe { call!(self, cudaMemGetInfo(&raw mut free, &raw mut total)) }?;
        Ok((free, total))
    }

    pub(crate) fn allocate_host(&self, bytes: usize) -> Result<*mut c_void> {
        let mut address = std::ptr::null_mut();
        // SAFETY: writes one pointer. Portable: pinned for every device, not only for the one that is current.
        unsafe {
            call!(
                self,
                cudaHostAlloc(&raw mut address, bytes, rt::cudaHostAllocPortable)
            )
        }?;
        Ok(address)
    }

    /// # Safety
    ///
    /// As for [`Self::free`], of memory from [`Self::allocate_host`].
    pub(crate) unsafe fn free_host(&self, address: *mut c_void) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaFreeHost(address)) }
    }

    /// # Safety
    ///
    /// The range is the caller's and stays mapped until [`Self::unregister_host`].
    pub(crate) unsafe fn register_host(&self, address: *mut c_void, bytes: usize) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            call!(
                self,
                cudaHostRegister(address, bytes, rt::cudaHostRegisterPortable)
            )
        }
    }

    /// # Safety
    ///
    /// No copy from or to the range is in flight.
    pub(crate) unsafe fn unregister_host(&self, address: *mut c_void) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaHostUnregister(address)) }
    }

    /// # Safety
    ///
    /// Both ranges are `bytes` long, live, and written or read by nobody else meanwhile.
    pub(crate) unsafe fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize) -> Result<()> {
        // SAFETY: as the caller promises; the runtime sees from the addresses where each lies.
        unsafe { call!(self, cudaMemcpy(to, from, bytes, rt::cudaMemcpyDefault)) }
    }

    /// # Safety
    ///
    /// As for [`Self::copy`], until the stream has come to this point.
    pub(crate) unsafe fn copy_async(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        stream: rt::cudaStream_t,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            call!(
                self,
                cudaMemcpyAsync(to, from, bytes, rt::cudaMemcpyDefault, stream)
            )
        }
    }

    /// # Safety
    ///
    /// As for [`Self::copy_async`]; the devices are those of the two ranges.
    pub(crate) unsafe fn copy_peer_async(
        &self,
        (to, to_device): (*mut c_void, c_int),
        (from, from_device): (*const c_void, c_int),
        bytes: usize,
        stream: rt::cudaStream_t,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            call!(
                self,
                cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream)
            )
        }
    }

    /// # Safety
    ///
    /// The range is `bytes` long, live, and nobody else's, until the stream has come to this point.
    pub(crate) unsafe fn set_async(
        &self,
        to: *mut c_void,
        value: u8,
        bytes: usize,
        stream: rt::cudaStream_t,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaMemsetAsync(to, c_int::from(value), bytes, stream)) }
    }

    /// What an address is. Any address may be asked for.
    pub(crate) fn kind(&self, address: *const c_void) -> Result<Kind> {
        // SAFETY: plain integers and pointers, for which zero is a value.
        let mut found: rt::cudaPointerAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: writes the structure of its version, for which there is room; the address is looked up, not followed.
        match unsafe { call!(self, cudaPointerGetAttributes(&raw mut found, address)) } {
            // HIP, and CUDA before 11, have an error for memory that they do not know.
            Err(error) if error.code() == Some(rt::cudaErrorInvalidValue) => return Ok(Kind::Unknown),
            done => done?,
        }
        Ok(self.kind_of(&found))
    }

    /// HIP before 6 counted its kinds of memory from the host's 0; what tells them apart is the device's address.
    fn kind_of(&self, found: &rt::cudaPointerAttributes) -> Kind {
        let old = self.platform == crate::platform::Platform::Rocm
            && self.versions().is_ok_and(|(runtime, _)| runtime < 60_000_000);
        match if old { found.r#type + 1 } else { found.r#type } {
            rt::cudaMemoryTypeHost => Kind::Host,
            rt::cudaMemoryTypeDevice => Kind::Device(found.device),
            rt::cudaMemoryTypeManaged => Kind::Managed,
            _ => Kind::Unknown,
        }
    }
}
