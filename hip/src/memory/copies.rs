//! Copies of memory, and filling it.

use std::ffi::c_void;

use super::Memory;
use crate::device::Device;
use crate::error::GpuError;
use crate::stream::{Event, Stream};

impl Memory {
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
