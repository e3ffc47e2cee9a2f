//! Memory of devices and pinned memory of the host: owned, counted, and copied so that nothing is freed under a copy.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::error::GpuError;
use crate::platform::Gpu;
use crate::result::Kind as Found;
use crate::rocm_compat as rt;
use crate::stream::{Event, Stream};
use crate::virtual_memory;

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

    /// Copies bytes of the host's into it and waits. Blocks the thread.
    ///
    /// # Errors
    ///
    /// When they are not as many as it has, or what the runtime says.
    pub fn write(&self, bytes: &[u8]) -> Result<(), GpuError> {
        GpuError::check_range(0, bytes.len(), self.bytes)?;
        // SAFETY: both ranges are live and as long; whether something else writes the memory meanwhile is the owner's to
        // order, as with any memory of a device.
        unsafe { self.copy_now(self.address() as *mut c_void, bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Copies it into bytes of the host's and waits. Blocks the thread.
    ///
    /// # Errors
    ///
    /// When they are more than it has, or what the runtime says.
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), GpuError> {
        GpuError::check_range(0, bytes.len(), self.bytes)?;
        // SAFETY: as in `write`.
        unsafe {
            self.copy_now(
                bytes.as_mut_ptr().cast(),
                self.address() as *const c_void,
                bytes.len(),
            )
        }
    }

    /// # Safety
    ///
    /// Both ranges are live and `bytes` long.
    unsafe fn copy_now(&self, to: *mut c_void, from: *const c_void, bytes: usize) -> Result<(), GpuError> {
        match &self.block.gpu {
            // SAFETY: as the caller promises.
            Some(gpu) if bytes > 0 => unsafe { gpu.api().copy(to, from, bytes) },
            None => {
                // SAFETY: as the caller promises; plain memory and a Rust slice do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), bytes) };
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// Copies it into another in the order of a stream. The host does not wait; both live until it is done.
    ///
    /// # Errors
    ///
    /// When their lengths differ, or what the runtime says.
    pub fn copy_to(&self, to: &Self, stream: &Stream) -> Result<InFlight, GpuError> {
        if self.bytes != to.bytes {
            return Err(GpuError::refused(format!(
                "{} bytes do not fit {} bytes",
                self.bytes, to.bytes
            )));
        }
        let (api, event) = (stream.device().gpu().api(), stream.device().event()?);
        let (target, source) = (to.address() as *mut c_void, self.address() as *const c_void);
        let devices = to
            .device()
            .map(Device::number)
            .zip(self.device().map(Device::number));
        if self.bytes > 0 {
            // SAFETY: both ranges are live and as long, and `InFlight` keeps them until the stream has come this far.
            unsafe {
                match devices {
                    Some((there, here)) if there != here => {
                        api.copy_peer_async((target, there), (source, here), self.bytes, stream.raw())
                    }
                    _ => api.copy_async(target, source, self.bytes, stream.raw()),
                }
            }?;
        }
        InFlight::after(stream, event, vec![self.clone(), to.clone()])
    }

    /// Sets every byte in the order of a stream. The host does not wait.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn fill(&self, value: u8, stream: &Stream) -> Result<InFlight, GpuError> {
        let (api, event) = (stream.device().gpu().api(), stream.device().event()?);
        if self.bytes > 0 {
            // SAFETY: the range is live, and `InFlight` keeps it until the stream has come this far.
            unsafe { api.set_async(self.address() as *mut c_void, value, self.bytes, stream.raw()) }?;
        }
        InFlight::after(stream, event, vec![self.clone()])
    }
}

/// Work of a stream and the memory that it uses. Dropping it waits for the work: the memory must not go before.
#[derive(Debug)]
#[must_use = "dropping it waits for the work"]
pub struct InFlight {
    event: Event,
    _memory: Vec<Memory>,
    waits: bool,
}

impl InFlight {
    pub(crate) fn after(stream: &Stream, event: Event, memory: Vec<Memory>) -> Result<Self, GpuError> {
        if let Err(error) = event.record(stream) {
            // Without an event there is nothing to wait on but the whole stream.
            stream.synchronize()?;
            return Err(error);
        }
        Ok(Self {
            event,
            _memory: memory,
            waits: true,
        })
    }

    /// Whether it is done. Never waits.
    ///
    /// # Errors
    ///
    /// What went wrong on the device.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        self.event.has_come()
    }

    /// Waits until it is done. Blocks the thread.
    ///
    /// # Errors
    ///
    /// What went wrong on the device.
    pub fn wait(&self) -> Result<(), GpuError> {
        self.event.wait()
    }
}

impl InFlight {
    /// Lets go without a wait: other work, later in the same stream, keeps the same memory.
    pub(crate) fn forget(mut self) {
        self.waits = false;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.waits {
            // An error says that the device has failed: it writes no more.
            let _ = self.event.wait();
        }
    }
}

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
