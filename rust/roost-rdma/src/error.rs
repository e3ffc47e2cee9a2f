//! What may go wrong with a transfer.

use thiserror::Error as ThisError;

/// Why a transfer was not made, or not wholly.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum Error {
    /// The buffer was dropped by its owner, or its memory is gone.
    #[error("the buffer is gone: {0}")]
    Gone(String),
    /// The buffer has an older version than was asked for.
    #[error("the buffer has version {found}, and {wanted} was asked for")]
    Stale {
        /// The oldest version that would do.
        wanted: u64,
        /// The version that it has.
        found: u64,
    },
    /// The process that owns the buffer has ended.
    #[error("the buffer's owner is gone: {0}")]
    PeerLost(String),
    /// The time that was given is over.
    #[error("the transfer took longer than it was given: {0}")]
    TimedOut(String),
    /// Who asked for it wants it no more.
    #[error("the transfer was cancelled")]
    Cancelled,
    /// What was asked for cannot be: sizes, ranges, overlaps.
    #[error("{0}")]
    Misuse(String),
    /// The owner does not accept the handle.
    #[error("the owner refused the handle: {0}")]
    Refused(String),
    /// The transport that was asked for is not to be had.
    #[error("{0}")]
    Unavailable(String),
    /// One part of a transfer failed.
    #[error("part {part} failed: {reason}")]
    Failed {
        /// Its place in the batch, from 0.
        part: usize,
        /// Why.
        reason: String,
    },
    /// The bytes that arrived are not those that were sent.
    #[error("part {part} arrived with checksum {found:#018x} instead of {wanted:#018x}")]
    Corrupt {
        /// Its place in the batch, from 0.
        part: usize,
        /// As the owner computed it.
        wanted: u64,
        /// As it was computed here.
        found: u64,
    },
}
