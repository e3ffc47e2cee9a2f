//! Reductions between the ranks of one host, through memory that all of them have mapped: no socket, and for what is small no
//! thread either.
//!
//! | file | what it is |
//! |---|---|
//! | `segment` | the memory: who has come how far, and a slot of two buffers for each rank |
//! | `waiting` | how a rank waits for the others: a short look, then sleep until the last one has come, or an abort |
//! | `reduce` | many ranks' elements as one |
//! | `agreement` | what all have to say alike of an operation |
//! | `turn` | one operation, piece by piece |
//! | `lane` | operations in the order of the calls: small ones at once if the others are there, else on a thread |
//!
//! A dead rank is not felt here: whoever waits for it waits until somebody calls [`HostGroup::abort`].

mod agreement;
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
    /// What of, in the group's eyes.
    pub purpose: Purpose,
}

/// What an operation is to those who began it. All that is done here is the same for any of them; ranks that differ in it have lost
/// each other all the same, and are told so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose {
    /// Which it is.
    pub verb: Verb,
    /// Of a reduce: who wants the result.
    pub root: u8,
    /// Which one of the group's operations, of those elsewhere too; 0 where nobody counts them.
    pub number: u32,
}

/// The operations that are reductions, or less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// All get the result.
    AllReduce,
    /// One gets it.
    Reduce,
    /// Each gets a part.
    ReduceScatter,
    /// There is none.
    Barrier,
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
    /// Another rank is in another operation, or in one of another size, dtype or reduction.
    #[error("rank {rank} is in {theirs}; and this rank in {ours}")]
    Unlike {
        /// The other one.
        rank: u32,
        /// What it is in.
        theirs: String,
        /// What this one is in.
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
