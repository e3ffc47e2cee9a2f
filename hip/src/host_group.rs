//! Reductions between the ranks of one host, through memory that all of them have mapped: no socket, and for what is small no
//! thread either.
//!
//! | file | what it is |
//! |---|---|
//! | `segment` | the memory: who has come how far, and a slot of two buffers for each rank |
//! | `waiting` | how a rank waits for the others: a short look, then sleep until the last one has come, or an abort |
//! | `reduce` | many ranks' elements as one |
//! | `turn` | one operation, piece by piece |
//! | `lane` | operations in the order of the calls: small ones at once if the others are there, else on a thread |
//!
//! A dead rank is not felt here: whoever waits for it waits until somebody calls [`HostGroup::abort`].

mod lane;
mod reduce;
mod segment;
#[cfg(test)]
#[allow(
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "small whole numbers"
)]
mod tests;
mod turn;
mod waiting;

pub use lane::{Begun, Done, HostGroup};
pub use segment::RANKS_MAX;

use crate::rccl::{DataType, ReduceOp};

/// One operation: elements that are replaced by what all ranks' make together.
#[derive(Debug, Clone, Copy)]
pub struct Reduction {
    /// Where the elements are.
    pub address: usize,
    /// How many they are; none is a barrier.
    pub count: usize,
    /// What they are.
    pub data_type: DataType,
    /// How they are reduced.
    pub op: ReduceOp,
}

impl Reduction {
    fn bytes(&self) -> usize {
        self.count * self.data_type.bytes()
    }
}

/// Why an operation between the ranks of one host did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostGroupError {
    /// Somebody aborted it.
    #[error("aborted: {0}")]
    Aborted(String),
    /// Another rank is in an operation of another size, dtype or reduction.
    #[error("rank {rank} is in an operation on {theirs}, this one in one on {ours}")]
    Unlike {
        /// The other one.
        rank: u32,
        /// What it works on.
        theirs: String,
        /// What this one works on.
        ours: String,
    },
    /// Too many operations wait for those before them.
    #[error("{0} operations wait for those before them: await some before more are begun")]
    Full(usize),
    /// The memory or the thread could not be had.
    #[error("the ranks of a host cannot share {what}: {why}")]
    System {
        /// What it is.
        what: &'static str,
        /// What the system says.
        why: String,
    },
}
