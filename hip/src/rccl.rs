//! RCCL and NCCL, which are one interface: RCCL exports NCCL's names. So one table serves both libraries, and what is true of
//! one is tried on the other.
//!
//! - `table`: the functions and their types, as the headers have them
//! - `config`: the structure that a communicator is made with, of which each version has another length
//! - `communicator`: one rank's end of a group, from its making to its end
//! - `operations`: the collectives
//! - `lane`: a communicator whose calls are made and followed by a thread of its own
//! - `abort`: letting go of communicators that wait for the dead, within a bound

mod abort;
mod communicator;
mod config;
mod lane;
mod operations;
pub mod table;

use std::ffi::c_int;
use std::path::Path;
use std::sync::Arc;

pub use abort::{Stuck, abort_all};
pub use communicator::{Communicator, Progress};
pub use config::Options;
pub use lane::{Call, Done, Lane, Stage, Verb};
pub use operations::Operation;

use crate::error::{Copies, GpuError};
use crate::library::{Library, Search};
use crate::platform::Platform;
use crate::result::owned;
use table::{CORE, Functions, ncclComm_t, ncclResult_t};

/// What ranks of one group tell each other before they can speak: made by one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

/// What elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataType {
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
    /// IEEE, 16 bits.
    F16,
    /// IEEE, 32 bits.
    F32,
    /// IEEE, 64 bits.
    F64,
    /// The upper half of an IEEE number of 32 bits.
    Bf16,
    /// Eight bits, whichever of the formats: moved as bytes, since the libraries' numbers for it do not say OCP or FNUZ.
    Fp8,
}

impl DataType {
    /// The length of an element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Fp8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    pub(crate) const fn number(self) -> c_int {
        match self {
            Self::I8 => table::ncclInt8,
            Self::U8 | Self::Fp8 => table::ncclUint8,
            Self::I32 => table::ncclInt32,
            Self::U32 => table::ncclUint32,
            Self::I64 => table::ncclInt64,
            Self::U64 => table::ncclUint64,
            Self::F16 => table::ncclFloat16,
            Self::F32 => table::ncclFloat32,
            Self::F64 => table::ncclFloat64,
            Self::Bf16 => table::ncclBfloat16,
        }
    }
}

/// How the elements of all ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Added up.
    Sum,
    /// Multiplied.
    Product,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// Added up and divided by the number of ranks.
    Average,
}

impl ReduceOp {
    pub(crate) const fn number(self) -> c_int {
        match self {
            Self::Sum => table::ncclSum,
            Self::Product => table::ncclProd,
            Self::Max => table::ncclMax,
            Self::Min => table::ncclMin,
            Self::Average => table::ncclAvg,
        }
    }
}

/// A collectives library of this process. Cheap to clone; communicators keep it.
#[derive(Debug, Clone)]
pub struct Collectives(Arc<Loaded>);

pub(crate) struct Loaded {
    pub(crate) functions: Box<Functions>,
    platform: Platform,
    library: Library,
    version: c_int,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field("library", &self.library.path())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Calls a function of the table. It stands in the caller's `unsafe`, who knows what the arguments point to.
macro_rules! nccl {
    ($loaded:expr, $comm:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $loaded.functions.$function {
            Some(function) => $loaded.check(stringify!($function), function($($argument),*), $comm),
            None => Err($loaded.missing(stringify!($function))),
        }
    };
}
pub(crate) use nccl;

impl Collectives {
    /// Opens RCCL for ROCm, NCCL for CUDA: the copy that the process has loaded, else by name.
    ///
    /// # Errors
    ///
    /// [`GpuError::Unavailable`] with all that was tried, or with the functions that the library lacks.
    pub fn open(platform: Platform, search: &Search) -> Result<Self, GpuError> {
        let (what, stem, names): (_, _, &[&str]) = match platform {
            Platform::Rocm => ("RCCL", "librccl", &["librccl.so.1", "librccl.so"]),
            Platform::Cuda => ("NCCL", "libnccl", &["libnccl.so.2", "libnccl.so"]),
        };
        let unavailable = |tried| GpuError::Unavailable {
            what: what.to_owned(),
            tried,
        };
        let library = Library::open(stem, names, search).map_err(unavailable)?;
        let is_rocm = platform == Platform::Rocm;
        // SAFETY: the names are NCCL's, looked up in a library that has them and is never closed; the test of headers holds
        // the declared signatures against NCCL's and RCCL's.
        let functions = unsafe { Functions::fill(is_rocm, &mut |name, _| library.symbol(name)) };
        let lacking: Vec<_> = functions
            .missing()
            .into_iter()
            .filter(|name| CORE.contains(name))
            .collect();
        if !lacking.is_empty() {
            return Err(unavailable(vec![format!(
                "{} lacks {}",
                library.path().display(),
                lacking.join(", ")
            )]));
        }
        let mut loaded = Loaded {
            functions: Box::new(functions),
            platform,
            library,
            version: 0,
        };
        let mut version = 0;
        // SAFETY: writes one integer.
        unsafe { nccl!(loaded, std::ptr::null_mut(), ncclGetVersion(&raw mut version)) }?;
        loaded.version = version;
        Ok(Self(Arc::new(loaded)))
    }

    /// Its version as the library counts: 22707 is 2.27.7, and below 2.9 it is 2805 for 2.8.5.
    pub fn version(&self) -> i32 {
        self.0.version
    }

    /// Whose it is.
    pub fn platform(&self) -> Platform {
        self.0.platform
    }

    /// The library's file.
    pub fn library(&self) -> &Path {
        self.0.library.path()
    }

    /// Two copies of the library in this process.
    pub fn copies(&self) -> Option<Copies> {
        self.0.library.copies()
    }

    /// The functions that it does not have, of those that are known here.
    pub fn missing_functions(&self) -> Vec<&'static str> {
        self.0.functions.missing()
    }

    /// What a group begins with: one rank makes it and tells the others.
    ///
    /// # Errors
    ///
    /// What the library says: no network, say.
    pub fn unique_id(&self) -> Result<UniqueId, GpuError> {
        let mut id = table::ncclUniqueId { internal: [0; 128] };
        // SAFETY: writes 128 bytes.
        unsafe { nccl!(self.0, std::ptr::null_mut(), ncclGetUniqueId(&raw mut id)) }?;
        Ok(UniqueId(id.internal.map(i8::cast_unsigned)))
    }

    /// Runs operations as one, and says how far the group has come.
    pub(super) fn group(&self, work: impl FnOnce() -> Result<(), GpuError>) -> Result<Progress, GpuError> {
        // SAFETY: no argument.
        unsafe { nccl!(self.0, std::ptr::null_mut(), ncclGroupStart()) }?;
        let done = work();
        // SAFETY: no argument; begun above on this thread, and ended also when the work failed.
        let ended = unsafe { nccl!(self.0, std::ptr::null_mut(), ncclGroupEnd()) };
        done?;
        ended
    }

    pub(super) fn loaded(&self) -> &Loaded {
        &self.0
    }
}

impl Loaded {
    fn missing(&self, function: &'static str) -> GpuError {
        GpuError::MissingFunction {
            function,
            library: self.library.path().display().to_string(),
        }
    }

    /// In progress is no error: a communicator that does not block says it often.
    pub(crate) fn check(
        &self,
        function: &'static str,
        code: ncclResult_t,
        comm: ncclComm_t,
    ) -> Result<Progress, GpuError> {
        match code {
            table::ncclSuccess => Ok(Progress::Done),
            table::ncclInProgress => Ok(Progress::Pending),
            _ => Err(self.failure(function, code, comm)),
        }
    }

    pub(crate) fn failure(&self, function: &'static str, code: ncclResult_t, comm: ncclComm_t) -> GpuError {
        let (ask_name, ask_text) = (self.functions.ncclGetErrorString, self.functions.ncclGetLastError);
        // SAFETY: takes any number and returns a text of the library's own.
        let name = ask_name.map_or(String::new(), |ask| owned(unsafe { ask(code) }));
        // SAFETY: the communicator is live or null, and the text is the library's own.
        let text = ask_text.map_or(String::new(), |ask| owned(unsafe { ask(comm) }));
        GpuError::Failed {
            function,
            code,
            name,
            text: if text.is_empty() {
                "it says no more".to_owned()
            } else {
                text
            },
        }
    }
}
