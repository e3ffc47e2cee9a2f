//! The same host: memory that is shared, and memory of another process.

use std::sync::Arc;

mod copy;
mod cut;
pub(crate) mod memory;
pub mod pool;
pub mod ptrace;
pub mod shared;
pub mod streaming;
#[cfg(test)]
pub(crate) mod testing;
pub mod vm;

pub use self::pool::{Moved, Pool, Ticket, Work};
pub use self::shared::{Mapped, Mappings, Segment};
pub use self::vm::{Process, Way};

/// Where a buffer of this host lies, for who asks.
#[derive(Clone)]
pub enum Place {
    /// In memory of its owner alone.
    Process {
        /// How to get there.
        way: Arc<Way>,
        /// The buffer's first address in the owner.
        base: u64,
    },
    /// In shared memory.
    Shared {
        /// Who has to live for the buffer to be good; none for this process itself.
        owner: Option<Arc<Process>>,
        /// The memory.
        mapped: Arc<Mapped>,
        /// Where in it the buffer begins.
        base: u64,
    },
}

impl Place {
    /// The process that has to live for the buffer to be good; none for this process itself.
    pub fn owner(&self) -> Option<&Process> {
        match self {
            Self::Process { way, .. } => Some(way.process()),
            Self::Shared { owner, .. } => owner.as_deref(),
        }
    }
}
