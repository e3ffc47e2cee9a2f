//! The functions of `rocm_compat` with errors instead of codes; the only caller of that table.
//!
//! A failed call is asked for once by `cudaGetLastError`, so that the error does not show up again in the next call that
//! torch makes. Without a device even that call fails, so it is never asked twice.
//!
//! - `memory`: allocations, copies, what an address is
//! - `streams`: streams, events, host functions
//! - `driver`: contexts, modules and launches, virtual memory, dma-buf, IPC

mod driver;
mod memory;
mod streams;

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

use crate::error::{Copies, GpuError};
use crate::library::Library;
use crate::platform::Platform;
use crate::rocm_compat::attribute::Attribute;
use crate::rocm_compat::{self as rt, Runtime};
use crate::sys;
pub(crate) use driver::Launch;
pub(crate) use memory::Kind;

pub(crate) type Result<T> = std::result::Result<T, GpuError>;

/// A platform's functions. See [`crate::platform::Gpu`] for the safe face.
pub struct Api {
    platform: Platform,
    table: Box<Runtime>,
    runtime: Library,
    /// Of CUDA the driver, of ROCm the HSA library.
    other: Option<Library>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("platform", &self.platform)
            .field("library", &self.runtime.path())
            .finish_non_exhaustive()
    }
}

/// Calls a function of the table. It stands in the caller's `unsafe`, who knows what the arguments point to.
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $api.table.$function {
            Some(function) => $api.check(stringify!($function), function($($argument),*)),
            None => Err($api.missing(stringify!($function))),
        }
    };
}
pub(crate) use call;

impl Api {
    pub(crate) fn new(
        platform: Platform,
        table: Box<Runtime>,
        runtime: Library,
        other: Option<Library>,
    ) -> Self {
        Self {
            platform,
            table,
            runtime,
            other,
        }
    }

    /// Which platform it is.
    pub fn platform(&self) -> Platform {
        self.platform
    }

    /// The runtime's file.
    pub fn library(&self) -> &Path {
        self.runtime.path()
    }

    /// The file of CUDA's driver or of the HSA library.
    pub fn other_library(&self) -> Option<&Path> {
        self.other.as_ref().map(Library::path)
    }

    /// Two copies of the runtime in this process.
    pub fn copies(&self) -> Option<Copies> {
        self.runtime.copies()
    }

    /// The functions that the libraries do not have, by their names here.
    pub fn missing_functions(&self) -> Vec<&'static str> {
        let rocm = self.platform == Platform::Rocm;
        let meant: Vec<_> = Runtime::symbols()
            .into_iter()
            .filter(|s| if rocm { s.rocm } else { s.cuda }.is_some())
            .collect();
        self.table
            .missing()
            .into_iter()
            .filter(|name| meant.iter().any(|symbol| symbol.name == *name))
            .collect()
    }

    fn missing(&self, function: &'static str) -> GpuError {
        GpuError::MissingFunction {
            function: self.name_of(function),
            library: self.library().display().to_string(),
        }
    }

    /// A function's name in the library, which is what the vendor's documentation calls it.
    fn name_of(&self, function: &'static str) -> &'static str {
        let symbol = Runtime::symbols()
            .into_iter()
            .find(|symbol| symbol.name == function);
        let named = symbol.and_then(|symbol| {
            if self.platform == Platform::Rocm {
                symbol.rocm
            } else {
                symbol.cuda
            }
        });
        named.unwrap_or(function)
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == rt::cudaSuccess {
            Ok(())
        } else {
            Err(self.failure(function, code))
        }
    }

    fn failure(&self, function: &'static str, code: c_int) -> GpuError {
        self.clear_error();
        let text = |ask: Option<unsafe extern "C" fn(c_int) -> *const c_char>| {
            // SAFETY: takes any number and returns a text of the library's own.
            ask.map_or(std::ptr::null(), |ask| unsafe { ask(code) })
        };
        let (name, said) = (
            text(self.table.cudaGetErrorName),
            text(self.table.cudaGetErrorString),
        );
        GpuError::Failed {
            function: self.name_of(function),
            code,
            name: owned(name),
            text: owned(said),
        }
    }

    /// Takes back the error that the runtime keeps for this thread.
    pub(crate) fn clear_error(&self) {
        if let Some(last) = self.table.cudaGetLastError {
            // SAFETY: no argument.
            unsafe { last() };
        }
    }

    /// A question that is answered by "not yet" as well: no error is kept of it.
    fn ready(&self, function: &'static str, code: c_int) -> Result<bool> {
        match code {
            rt::cudaSuccess => Ok(true),
            rt::cudaErrorNotReady => {
                self.clear_error();
                Ok(false)
            }
            _ => Err(self.failure(function, code)),
        }
    }

    /// How many devices this process sees.
    ///
    /// # Errors
    ///
    /// What the runtime says: that there is no driver, say.
    pub fn device_count(&self) -> Result<c_int> {
        let mut count = 0;
        // SAFETY: writes one integer.
        unsafe { call!(self, cudaGetDeviceCount(&raw mut count)) }?;
        Ok(count)
    }

    pub(crate) fn set_device(&self, device: c_int) -> Result<()> {
        // SAFETY: any number; the runtime checks it.
        unsafe { call!(self, cudaSetDevice(device)) }
    }

    pub(crate) fn device(&self) -> Result<c_int> {
        let mut device = 0;
        // SAFETY: writes one integer.
        unsafe { call!(self, cudaGetDevice(&raw mut device)) }?;
        Ok(device)
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: no argument.
        unsafe { call!(self, cudaDeviceSynchronize()) }
    }

    pub(crate) fn attribute(&self, attribute: Attribute, device: c_int) -> Result<c_int> {
        let (number, _) = match self.platform {
            Platform::Rocm => attribute.hip(),
            Platform::Cuda => attribute.cuda(),
        };
        let mut value = 0;
        // SAFETY: writes one integer; the number is one of this platform's.
        unsafe { call!(self, cudaDeviceGetAttribute(&raw mut value, number, device)) }?;
        Ok(value)
    }

    pub(crate) fn properties(&self, device: c_int) -> Result<Box<sys::hipDeviceProp_t>> {
        let mut properties = Box::new(sys::hipDeviceProp_t { bytes: [0; 4096] });
        // SAFETY: writes the structure of its version, of which the largest known has 1,472 bytes.
        unsafe { call!(self, cudaGetDeviceProperties(&raw mut *properties, device)) }?;
        Ok(properties)
    }

    pub(crate) fn pci_address(&self, device: c_int) -> Result<String> {
        let mut text = [0 as c_char; 32];
        let room = c_int::try_from(text.len()).unwrap_or(0);
        // SAFETY: writes at most `room` characters with the zero at their end.
        unsafe { call!(self, cudaDeviceGetPCIBusId(text.as_mut_ptr(), room, device)) }?;
        Ok(owned(text.as_ptr()).to_ascii_lowercase())
    }

    pub(crate) fn uuid(&self, device: c_int) -> Result<[u8; 16]> {
        let mut handle = 0;
        let mut uuid = rt::CUuuid::default();
        // SAFETY: writes one integer.
        unsafe { call!(self, cuDeviceGet(&raw mut handle, device)) }?;
        // SAFETY: writes 16 bytes.
        unsafe { call!(self, cuDeviceGetUuid(&raw mut uuid, handle)) }?;
        Ok(uuid.bytes)
    }

    /// The versions of the runtime and of the driver, as the vendor counts them.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn versions(&self) -> Result<(i32, i32)> {
        let (mut runtime, mut driver) = (0, 0);
        // SAFETY: writes one integer.
        unsafe { call!(self, cudaRuntimeGetVersion(&raw mut runtime)) }?;
        // SAFETY: writes one integer.
        unsafe { call!(self, cudaDriverGetVersion(&raw mut driver)) }?;
        Ok((runtime, driver))
    }

    pub(crate) fn can_access_peer(&self, device: c_int, peer: c_int) -> Result<bool> {
        let mut can = 0;
        // SAFETY: writes one integer.
        unsafe { call!(self, cudaDeviceCanAccessPeer(&raw mut can, device, peer)) }?;
        Ok(can != 0)
    }

    /// Lets the current device read another's memory; that it may already is as good.
    pub(crate) fn enable_peer_access(&self, peer: c_int) -> Result<()> {
        // SAFETY: two integers; the flags must be zero.
        match unsafe { call!(self, cudaDeviceEnablePeerAccess(peer, 0)) } {
            Err(error) if error.code() == Some(rt::cudaErrorPeerAccessAlreadyEnabled) => Ok(()),
            done => done,
        }
    }
}

/// A text of a library's; empty where there is none.
pub(crate) fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and every text of these libraries ends in a zero byte and stays where it is.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
