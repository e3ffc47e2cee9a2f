//! Memory of devices and pinned memory of the host: owned and counted.
//!
//! - `copies`: what is done with it in the order of streams, so that nothing is freed under a copy
//! - `others`: memory that others allocated: pinning it, and whose an address is

mod copies;
mod others;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::error::GpuError;
use crate::platform::Gpu;
use crate::rocm_compat as rt;
use crate::virtual_memory;

pub use self::copies::InFlight;
pub use self::others::{Owner, Registered};

/// A part of an allocation, which lives as long as this does.
#[derive(Debug, Clone)]
pub struct Memory {
    block: Arc<Block>,
    offset: usize,
    bytes: usize,
}

/// What kind of memory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A device's own.
    Device,
    /// The host's, pinned, so that copies need not stop on their way.
    Pinned,
    /// The host's, as any other: there was no device to pin it for.
    Plain,
    /// A device's, of another process, opened by its handle.
    Imported,
    /// A device's, mapped piece by piece.
    Mapped,
}

pub(crate) enum Release {
    Device,
    Pinned,
    Plain(Layout),
    Imported,
    Mapped,
}

struct Block {
    device: Option<Device>,
    gpu: Option<Gpu>,
    address: usize,
    bytes: usize,
    release: Release,
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block")
            .field("address", &self.address)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let address = self.address as *mut c_void;
        let Some(api) = self.gpu.as_ref().map(Gpu::api) else {
            if let Release::Plain(layout) = self.release {
                // SAFETY: allocated with this layout, and this was the last that had it.
                unsafe { dealloc(address.cast(), layout) };
            }
            return;
        };
        // Errors are not to be helped here: the device is gone, and its memory with it. Copies in flight hold the block
        // themselves (`InFlight`), so none is running.
        // SAFETY: each kind is given back to what it came from, once, when the last that had it is gone.
        let _ = unsafe {
            match &self.release {
                Release::Device => api.free(address),
                Release::Pinned => api.free_host(address),
                Release::Imported => api.close_ipc(address),
                Release::Mapped => virtual_memory::release(api, address, self.bytes),
                Release::Plain(_) => Ok(()),
            }
        };
    }
}

impl Device {
    /// Memory of this device. Its bytes are whatever was there.
    ///
    /// # Errors
    ///
    /// When the device has no more.
    pub fn allocate(&self, bytes: usize) -> Result<Memory, GpuError> {
        let address = self.with(|| self.gpu().api().allocate(bytes.max(1)))?;
        Ok(Memory::new(
            Some(self.clone()),
            Some(self.gpu().clone()),
            address as usize,
            bytes,
            Release::Device,
        ))
    }

    /// Memory of another process by its handle. It is not to be freed there while it is open here.
    ///
    /// # Errors
    ///
    /// When the driver does not know the handle: its process has ended, or is this one.
    pub fn import(&self, handle: &IpcHandle) -> Result<Memory, GpuError> {
        GpuError::check_range(handle.offset, handle.bytes, usize::MAX)?;
        let mut raw = crate::rocm_compat::cudaIpcMemHandle_t { reserved: [0; 64] };
        for (to, from) in raw.reserved.iter_mut().zip(handle.bytes_of_driver) {
            *to = from.cast_signed();
        }
        let address = self.with(|| self.gpu().api().open_ipc(raw))?;
        let whole = handle.offset + handle.bytes;
        let memory = Memory::new(
            Some(self.clone()),
            Some(self.gpu().clone()),
            address as usize,
            whole,
            Release::Imported,
        );
        memory.slice(handle.offset..whole)
    }
}

/// What another process opens a device's memory by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpcHandle {
    /// The driver's 64 bytes for the allocation.
    pub bytes_of_driver: [u8; 64],
    /// Where in the allocation the memory begins.
    pub offset: usize,
    /// How long it is.
    pub bytes: usize,
}

/// Memory of the host that devices copy from and to: pinned where there is a GPU, else plain. Its bytes are zero where it
/// is plain, else whatever was there.
///
/// # Errors
///
/// When the runtime has no more to pin.
pub fn allocate_host(gpu: Option<&Gpu>, bytes: usize) -> Result<Memory, GpuError> {
    if let Some(gpu) = gpu {
        match gpu.api().allocate_host(bytes.max(1)) {
            Ok(address) => {
                return Ok(Memory::new(
                    None,
                    Some(gpu.clone()),
                    address as usize,
                    bytes,
                    Release::Pinned,
                ));
            }
            // A runtime without a device cannot pin either, and the old ones say so in several ways.
            Err(error)
                if matches!(
                    error.code(),
                    Some(rt::cudaErrorNoDevice | rt::cudaErrorInvalidDevice | rt::cudaErrorNotSupported)
                ) => {}
            Err(error) if error.code() == Some(rt::cudaErrorMemoryAllocation) => return Err(error),
            Err(GpuError::MissingFunction { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let layout = Layout::from_size_align(bytes.max(1), 4096)
        .map_err(|_| GpuError::refused(format!("{bytes} bytes are more than memory can have")))?;
    // SAFETY: the layout has at least one byte.
    let address = unsafe { alloc_zeroed(layout) };
    if address.is_null() {
        handle_alloc_error(layout);
    }
    Ok(Memory::new(
        None,
        None,
        address as usize,
        bytes,
        Release::Plain(layout),
    ))
}

impl Memory {
    pub(crate) fn new(
        device: Option<Device>,
        gpu: Option<Gpu>,
        address: usize,
        bytes: usize,
        release: Release,
    ) -> Self {
        Self {
            block: Arc::new(Block {
                device,
                gpu,
                address,
                bytes,
                release,
            }),
            offset: 0,
            bytes,
        }
    }

    /// Its first address.
    pub fn address(&self) -> usize {
        self.block.address + self.offset
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What kind of memory it is.
    pub fn kind(&self) -> Kind {
        match self.block.release {
            Release::Device => Kind::Device,
            Release::Pinned => Kind::Pinned,
            Release::Plain(_) => Kind::Plain,
            Release::Imported => Kind::Imported,
            Release::Mapped => Kind::Mapped,
        }
    }

    /// The device that it lies on; none for the host's.
    pub fn device(&self) -> Option<&Device> {
        self.block.device.as_ref()
    }

    /// A part of it, in bytes.
    ///
    /// # Errors
    ///
    /// When the range passes its end.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, GpuError> {
        let bytes = range
            .end
            .checked_sub(range.start)
            .ok_or_else(|| GpuError::refused("a range that ends before it begins"))?;
        GpuError::check_range(range.start, bytes, self.bytes)?;
        Ok(Self {
            block: Arc::clone(&self.block),
            offset: self.offset + range.start,
            bytes,
        })
    }

    /// What another process opens it by.
    ///
    /// # Errors
    ///
    /// When it is not a device's own, or the driver cannot share it.
    pub fn share(&self) -> Result<IpcHandle, GpuError> {
        let (Some(device), Release::Device) = (&self.block.device, &self.block.release) else {
            return Err(GpuError::refused(format!(
                "{:?} memory has no IPC handle: only a device's own does",
                self.kind()
            )));
        };
        let (api, base) = (device.gpu().api(), self.block.address as *mut c_void);
        // SAFETY: the base of an allocation that lives as this value does.
        let raw = device.with(|| unsafe { api.ipc_handle(base) })?;
        Ok(IpcHandle {
            bytes_of_driver: raw.reserved.map(i8::cast_unsigned),
            offset: self.offset,
            bytes: self.bytes,
        })
    }
}
