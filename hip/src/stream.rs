//! Streams and events: the order of a device's work, and how the host hears that a piece of it is done.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use crate::device::Device;
use crate::error::GpuError;
use crate::memory::{InFlight, Memory};
use crate::rocm_compat as rt;

/// A queue of a device's work.
#[derive(Debug, Clone)]
pub struct Stream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: Device,
    handle: rt::cudaStream_t,
    owned: bool,
}

// SAFETY: both vendors' runtimes say that a stream may be used from any thread, several at a time.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Device {
    /// A new stream, which does not wait for the default one.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn stream(&self) -> Result<Stream, GpuError> {
        let handle = self.with(|| self.gpu().api().create_stream())?;
        Ok(Stream(Arc::new(Inner {
            device: self.clone(),
            handle,
            owned: true,
        })))
    }

    /// A stream that someone else made, by its handle as torch gives it; zero is the default stream.
    ///
    /// # Safety
    ///
    /// It is a live stream of this device, and its owner keeps it until this value and what was made of it are gone.
    pub unsafe fn foreign_stream(&self, handle: usize) -> Stream {
        Stream(Arc::new(Inner {
            device: self.clone(),
            handle: handle as rt::cudaStream_t,
            owned: false,
        }))
    }

    /// A new event for the end of work, without a clock.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn event(&self) -> Result<Event, GpuError> {
        self.new_event(rt::cudaEventDisableTiming | rt::cudaEventBlockingSync)
    }

    /// A new event that keeps the time at which it came.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn timed_event(&self) -> Result<Event, GpuError> {
        self.new_event(rt::cudaEventBlockingSync)
    }

    fn new_event(&self, flags: u32) -> Result<Event, GpuError> {
        let handle = self.with(|| self.gpu().api().create_event(flags))?;
        Ok(Event {
            device: self.clone(),
            handle,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: made in `stream`, and this was the last one that had it. Work in flight goes on to its end; an
            // error means that the device is gone, and the stream with it.
            let _ = unsafe { self.device.gpu().api().destroy_stream(self.handle) };
        }
    }
}

impl Stream {
    /// The device that it belongs to.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The vendor's handle, as a number: for torch, and for the collectives.
    pub fn handle(&self) -> usize {
        self.0.handle as usize
    }

    pub(crate) fn raw(&self) -> rt::cudaStream_t {
        self.0.handle
    }

    /// Whether all its work is done. Never waits.
    ///
    /// # Errors
    ///
    /// What went wrong on the device.
    pub fn is_idle(&self) -> Result<bool, GpuError> {
        // SAFETY: live, as this value is.
        unsafe { self.0.device.gpu().api().stream_is_idle(self.0.handle) }
    }

    /// Waits for all its work. Blocks the thread.
    ///
    /// # Errors
    ///
    /// What went wrong on the device.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        // SAFETY: live, as this value is.
        unsafe { self.0.device.gpu().api().synchronize_stream(self.0.handle) }
    }

    /// What comes after in this stream waits for the event. The host does not.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn wait_for(&self, event: &Event) -> Result<(), GpuError> {
        // SAFETY: both are live, as these values are; an event that ends earlier is kept by the runtime until it came.
        unsafe {
            self.0
                .device
                .gpu()
                .api()
                .stream_waits(self.0.handle, event.handle)
        }
    }

    /// Writes a number to four bytes of memory when the stream has come to this point.
    ///
    /// # Errors
    ///
    /// When the memory is not four aligned bytes, or what the driver says.
    pub fn write_value(&self, memory: &Memory, value: u32) -> Result<InFlight, GpuError> {
        let (api, address) = (self.0.device.gpu().api(), word(memory)?);
        let event = self.0.device.event()?;
        let number = self.0.device.number();
        // SAFETY: four aligned bytes, which `InFlight` keeps until the stream has come this far.
        let write = || unsafe { api.write_value(self.0.handle, address, value) };
        api.with_context(number, "writing a value in a stream", write)?;
        InFlight::after(self, event, vec![memory.clone()])
    }

    /// What comes after in this stream waits until four bytes of memory have at least this value. Whoever writes it may be
    /// another stream, process or the host.
    ///
    /// # Errors
    ///
    /// When the memory is not four aligned bytes, or what the driver says.
    pub fn wait_value(&self, memory: &Memory, value: u32) -> Result<InFlight, GpuError> {
        let (api, address) = (self.0.device.gpu().api(), word(memory)?);
        let event = self.0.device.event()?;
        let number = self.0.device.number();
        // SAFETY: four aligned bytes, which `InFlight` keeps until the stream has come past this.
        let wait = || unsafe { api.wait_value(self.0.handle, address, value) };
        api.with_context(number, "waiting for a value in a stream", wait)?;
        InFlight::after(self, event, vec![memory.clone()])
    }

    /// Calls a function on a thread of the runtime's when the stream has come to this point: to write an eventfd, say.
    /// It must be short and must not call the runtime. A device that fails before that may never call it.
    ///
    /// # Errors
    ///
    /// What the runtime says; the function is then dropped.
    pub fn then(&self, function: impl FnOnce() + Send + 'static) -> Result<(), GpuError> {
        let boxed: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(function));
        let data = Box::into_raw(boxed);
        // SAFETY: live, as this value is; the trampoline takes the box exactly once and catches a panic.
        let done = unsafe {
            self.0
                .device
                .gpu()
                .api()
                .call_in_stream(self.0.handle, trampoline, data.cast())
        };
        if done.is_err() {
            // SAFETY: the runtime refused it, so the trampoline will not take it.
            drop(unsafe { Box::from_raw(data) });
        }
        done
    }
}

/// The address of memory that is one aligned word.
fn word(memory: &Memory) -> Result<*mut std::ffi::c_void, GpuError> {
    if memory.len() != 4 || !memory.address().is_multiple_of(4) {
        return Err(GpuError::refused(format!(
            "{} bytes at {:#x} are not one aligned word",
            memory.len(),
            memory.address()
        )));
    }
    Ok(memory.address() as *mut std::ffi::c_void)
}

unsafe extern "C" fn trampoline(data: *mut std::ffi::c_void) {
    // SAFETY: `then` made this box for this one call.
    let function = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    // A panic must not unwind into the runtime. The panic hook has said it.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(function));
}

/// A point in a stream's work that can be waited for.
#[derive(Debug)]
pub struct Event {
    device: Device,
    handle: rt::cudaEvent_t,
}

// SAFETY: both vendors' runtimes say that an event may be used from any thread, several at a time.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// It comes when the stream has done all that it has got so far.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn record(&self, stream: &Stream) -> Result<(), GpuError> {
        // SAFETY: both are live, as these values are.
        unsafe { self.device.gpu().api().record(self.handle, stream.raw()) }
    }

    /// Whether it has come; one that was never recorded has. Never waits.
    ///
    /// # Errors
    ///
    /// What went wrong on the device.
    pub fn has_come(&self) -> Result<bool, GpuError> {
        // SAFETY: live, as this value is.
        unsafe { self.device.gpu().api().event_has_come(self.handle) }
    }

    /// Waits for it. Blocks the thread, which sleeps.
    ///
    /// # Errors
    ///
    /// What went wrong on the device.
    pub fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: live, as this value is.
        unsafe { self.device.gpu().api().wait_for_event(self.handle) }
    }

    /// Milliseconds from an earlier timed event to this one, when both have come.
    ///
    /// # Errors
    ///
    /// When one has not come or keeps no time.
    pub fn elapsed_ms_since(&self, start: &Self) -> Result<f32, GpuError> {
        // SAFETY: both are live, as these values are; the runtime checks that they came and have times.
        unsafe { self.device.gpu().api().elapsed_ms(start.handle, self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new_event`, dropped once; the runtime keeps one that is waited for until it came.
        let _ = unsafe { self.device.gpu().api().destroy_event(self.handle) };
    }
}
