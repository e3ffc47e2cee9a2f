//! What can be wrong with bytes from a peer, and with what is asked to be sent.

use crate::limits;

/// Bytes that no roost of this version sends. The connection that carried them must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame announces a body above the limit.
    #[error(
        "frame with a body of {length} bytes passes the limit of {}",
        limits::FRAME_BODY_BYTES_MAX
    )]
    FrameTooLarge {
        /// The announced length.
        length: u64,
    },
    /// A frame's header is said to be longer than its body.
    #[error("frame header of {header} bytes does not fit its body of {body} bytes")]
    HeaderTooLong {
        /// The announced length of the header.
        header: u32,
        /// The announced length of the body.
        body: u32,
    },
    /// A kind of frame that this version does not know.
    #[error("unknown kind of frame: {kind}")]
    UnknownKind {
        /// The byte that was read.
        kind: u8,
    },
    /// A frame that must have a sequence number has none, or one that must not have it has one.
    #[error("frame of kind {kind} with sequence number {sequence}")]
    Sequencing {
        /// The kind of the frame.
        kind: u8,
        /// Its sequence number.
        sequence: u64,
    },
    /// A sequence number is missing.
    #[error("frame with sequence number {got} where {expected} was expected")]
    Gap {
        /// The next number in order.
        expected: u64,
        /// The number that came.
        got: u64,
    },
    /// The peer acknowledges what was never sent to it.
    #[error("sequence number {acknowledged} was acknowledged, but {last} is the last one")]
    AcknowledgedUnsent {
        /// The number that the peer acknowledges.
        acknowledged: u64,
        /// The last number given out.
        last: u64,
    },
    /// The peer goes back on an acknowledgement: it has lost its side of the session.
    #[error("the peer resumes after sequence number {received}, but had acknowledged {acknowledged}")]
    ResumeBehind {
        /// What the peer says it received.
        received: u64,
        /// What it had acknowledged.
        acknowledged: u64,
    },
    /// A header ends before what it must hold.
    #[error("the header ends within its {field}")]
    Truncated {
        /// The field that is cut.
        field: &'static str,
    },
    /// An id is zero.
    #[error("the {field} is zero")]
    ZeroId {
        /// The field that holds it.
        field: &'static str,
    },
    /// A list is longer than its limit.
    #[error("{length} {field} pass the limit of {limit}")]
    TooMany {
        /// The list.
        field: &'static str,
        /// How many there are.
        length: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A run of actors that names none, one twice, or one past the end of the numbers.
    #[error("a run of {count} actors from slot {slot} with stride {slot_stride} is not possible")]
    BadRun {
        /// Its first slot.
        slot: u32,
        /// How many actors.
        count: u32,
        /// From one slot to the next.
        slot_stride: u32,
    },
    /// The name of an endpoint is not UTF-8.
    #[error("the name of the endpoint is not UTF-8")]
    NameNotText,
    /// A byte that stands for one of a few things stands for none.
    #[error("{value} is no {field}")]
    UnknownValue {
        /// The field that holds it.
        field: &'static str,
        /// The byte that was read.
        value: u8,
    },
    /// A piece that cannot be one of its part.
    #[error("{piece} bytes at {offset} cannot be a piece of part {bulk} with {length} bytes")]
    BadBulk {
        /// The part's number.
        bulk: u64,
        /// How long the part is said to be.
        length: u64,
        /// Where the piece is said to lie in it.
        offset: u64,
        /// Bytes of the piece.
        piece: u64,
    },
    /// A frame names a part that has not come, or not all of it.
    #[error("part {bulk} has not come")]
    MissingBulk {
        /// The part's number.
        bulk: u64,
    },
    /// The inline parts do not fill the rest of the body exactly.
    #[error("the parts table has {table} inline bytes, the body {body}")]
    PartsMismatch {
        /// The sum over the table.
        table: u64,
        /// What follows the header.
        body: u64,
    },
}

/// Something that cannot be written as a frame, found before the first byte was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Header and inline parts together pass the limit of a frame.
    #[error(
        "frame with a body of {length} bytes passes the limit of {}",
        limits::FRAME_BODY_BYTES_MAX
    )]
    FrameTooLarge {
        /// What the body would be.
        length: u64,
    },
    /// Something is longer than its limit.
    #[error("{length} {field} pass the limit of {limit}")]
    TooMany {
        /// What is too long.
        field: &'static str,
        /// How long it is.
        length: u64,
        /// How long it may be.
        limit: u64,
    },
    /// A run of actors that names none, one twice, or one past the end of the numbers.
    #[error("a run of {count} actors from slot {slot} with stride {slot_stride} is not possible")]
    BadRun {
        /// Its first slot.
        slot: u32,
        /// How many actors.
        count: u32,
        /// From one slot to the next.
        slot_stride: u32,
    },
}

impl ProtocolError {
    /// Refuses a list that is longer than its limit.
    #[inline]
    pub(crate) fn check(field: &'static str, length: u64, limit: u64) -> Result<(), Self> {
        if length > limit {
            return Err(Self::TooMany { field, length, limit });
        }
        Ok(())
    }
}

impl EncodeError {
    /// Refuses what is longer than its limit.
    #[inline]
    pub(super) fn check(field: &'static str, length: u64, limit: u64) -> Result<(), Self> {
        if length > limit {
            return Err(Self::TooMany { field, length, limit });
        }
        Ok(())
    }
}
