//! Code of a device: modules, their kernels, and starting one.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use crate::device::Device;
use crate::error::GpuError;
use crate::memory::{InFlight, Memory};
use crate::result::Launch;
use crate::rocm_compat as rt;
use crate::stream::Stream;

/// Code that was loaded for a device.
#[derive(Debug, Clone)]
pub struct Module(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    device: Device,
    handle: rt::CUmodule,
}

// SAFETY: both vendors' drivers say that modules and functions may be used from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// A kernel of a module.
#[derive(Debug, Clone)]
pub struct Kernel {
    module: Module,
    handle: rt::CUfunction,
}

// SAFETY: as for `Loaded`, whose function it is.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// What the device's compiler made of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Registers of a thread.
    pub registers: i32,
    /// Bytes of a block's shared memory.
    pub shared_bytes: i32,
    /// Bytes of a thread's memory that did not fit its registers.
    pub spilled_bytes: i32,
    /// How many blocks of so many threads run on a multiprocessor at a time.
    pub blocks_per_multiprocessor: i32,
}

impl Device {
    /// Loads code for this device.
    ///
    /// # Safety
    ///
    /// `image` is a whole code object or cubin, or PTX text with a zero byte at its end: the driver reads as far as its
    /// headers say.
    ///
    /// # Errors
    ///
    /// When it is for another architecture, or what the driver says.
    pub unsafe fn load(&self, image: &[u8]) -> Result<Module, GpuError> {
        let api = self.gpu().api();
        // SAFETY: as the caller promises.
        let load = || unsafe { api.load_module(image) };
        let handle = self.with(|| api.with_context(self.number(), "loading code", load))?;
        Ok(Module(Arc::new(Loaded {
            device: self.clone(),
            handle,
        })))
    }
}

impl Module {
    /// A kernel by its name.
    ///
    /// # Errors
    ///
    /// When the module has none of that name.
    pub fn kernel(&self, name: &CStr) -> Result<Kernel, GpuError> {
        let device = &self.0.device;
        let api = device.gpu().api();
        // SAFETY: the module is live as this value is.
        let find = || unsafe { api.module_function(self.0.handle, name) };
        let handle = device.with(|| api.with_context(device.number(), "looking up a kernel", find))?;
        Ok(Kernel {
            module: self.clone(),
            handle,
        })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let api = self.device.gpu().api();
        // SAFETY: loaded once, unloaded once; kernels hold the module, and work in flight holds kernels.
        let unload = || unsafe { api.unload_module(self.handle) };
        let _ = api.with_context(self.device.number(), "unloading code", unload);
    }
}

impl Kernel {
    /// What the device's compiler made of it, for blocks of so many threads.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn usage(&self, threads: u32) -> Result<Usage, GpuError> {
        let device = &self.module.0.device;
        let api = device.gpu().api();
        api.with_context(device.number(), "asking about a kernel", || {
            // SAFETY: the module is live as this value is.
            let ask = |attribute| unsafe { api.function_attribute(self.handle, attribute) };
            Ok(Usage {
                registers: ask(rt::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
                shared_bytes: ask(rt::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
                spilled_bytes: ask(rt::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
                // SAFETY: as above.
                blocks_per_multiprocessor: unsafe { api.blocks_per_multiprocessor(self.handle, threads) }?,
            })
        })
    }

    /// Starts it in a stream's order. What of `memory` it uses lives until it has ended.
    ///
    /// # Safety
    ///
    /// `arguments` has a pointer to each of its parameters, in their types; the addresses among these lie in `memory` or
    /// in what the caller keeps until the work is done.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn start(
        &self,
        blocks: u32,
        threads: u32,
        stream: &Stream,
        arguments: &mut [*mut c_void],
        memory: Vec<Memory>,
    ) -> Result<InFlight, GpuError> {
        let device = &self.module.0.device;
        let api = device.gpu().api();
        let event = device.event()?;
        let size = Launch { blocks, threads };
        api.with_context(device.number(), "starting a kernel", || {
            // SAFETY: as the caller promises; the function's module and the stream are live as these values are.
            unsafe { api.launch(self.handle, size, stream.raw(), arguments) }
        })?;
        InFlight::after(stream, event, memory)
    }
}
