//! What can go wrong between Roost and a GPU's libraries.

use std::path::PathBuf;

/// Why a call to a GPU's or a collectives library gave nothing.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The library, or a device behind it, is not there. Not a fault: most machines have none.
    #[error("{what} is not available: {}", tried.join("; "))]
    Unavailable {
        /// What was looked for.
        what: String,
        /// What was tried and how it ended, one sentence each.
        tried: Vec<String>,
    },
    /// The library is there and too old, or too new, for this call.
    #[error("{library} has no function {function}")]
    MissingFunction {
        /// Its name in the library.
        function: &'static str,
        /// The library's file.
        library: String,
    },
    /// A call came back with an error.
    #[error("{function} returned {code} ({name}): {text}")]
    Failed {
        /// Its name in the library.
        function: &'static str,
        /// The vendor's number for the error.
        code: i32,
        /// The vendor's name for it.
        name: String,
        /// What the vendor says about it.
        text: String,
    },
    /// Nothing has used this device in this process yet, and Roost does not begin to: that costs memory on the device.
    #[error("device {device} has no context in this process, and {doing} must not create one")]
    NoContext {
        /// The device's number in this process.
        device: i32,
        /// What was being done.
        doing: &'static str,
    },
    /// A range does not lie inside the memory it is meant to lie in.
    #[error("{bytes} bytes at offset {offset} pass the end of memory of {limit} bytes")]
    OutOfRange {
        /// Where the range begins.
        offset: usize,
        /// Its length.
        bytes: usize,
        /// The memory's length.
        limit: usize,
    },
    /// The communicator was aborted.
    #[error("the communicator was aborted: {why}")]
    Aborted {
        /// What whoever aborted it said.
        why: String,
    },
    /// It took too long.
    #[error("{doing} did not end within {after_ms} ms")]
    TimedOut {
        /// What was being done.
        doing: &'static str,
        /// The bound.
        after_ms: u128,
    },
    /// An argument that no call to the library was made with, and why.
    #[error("{what}")]
    Refused {
        /// The whole sentence.
        what: String,
    },
}

impl GpuError {
    /// The vendor's number for the error, when it was the library that said no.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Failed { code, .. } => Some(*code),
            _ => None,
        }
    }

    pub(crate) fn refused(what: impl Into<String>) -> Self {
        Self::Refused { what: what.into() }
    }

    pub(crate) fn check_range(offset: usize, bytes: usize, limit: usize) -> Result<(), Self> {
        match offset.checked_add(bytes) {
            Some(end) if end <= limit => Ok(()),
            _ => Err(Self::OutOfRange { offset, bytes, limit }),
        }
    }
}

/// Two copies of one library in the process: each has a state of its own, and what one allocates the other does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// The copy that is used.
    pub used: PathBuf,
    /// The others.
    pub others: Vec<PathBuf>,
}

impl std::fmt::Display for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let others: Vec<_> = self
            .others
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        write!(
            f,
            "two copies of one library in this process: {} is used, {} is loaded too",
            self.used.display(),
            others.join(", ")
        )
    }
}
