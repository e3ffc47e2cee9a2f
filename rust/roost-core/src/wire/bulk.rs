//! Parts that travel ahead of their frame, in pieces; and the frames of control connections.

use super::bytes::{put, u64_at};
use super::frame::{FrameHead, FrameHeader, Kind, Tail, sealed};
use super::{EncodeError, ProtocolError};
use crate::limits;

const BULK_BYTES: usize = 24;

/// The flag of a part that is given up.
const FLAG_GIVEN_UP: u8 = 1;

/// The flag of a part that whoever receives it never writes to.
const FLAG_CONSTANT: u8 = 2;

/// A piece of a part: the pieces of one part come in order, and the frame that names it comes after the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bulk {
    /// The part's number, which no other part of this direction of the session has; not zero.
    pub bulk: u64,
    /// Bytes of the whole part.
    pub length: u64,
    /// Where in it the piece lies.
    pub offset: u64,
    /// The rest does not come, and no frame will name the part: there are no bytes.
    pub given_up: bool,
    /// Whoever receives the part never writes to it: the same in all its pieces.
    pub constant: bool,
}

/// A message of a control connection between hosts; its bytes are for the layer above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Control;

impl sealed::Sealed for Bulk {}

impl FrameHeader for Bulk {
    const KIND: Kind = Kind::Bulk;
    const TAIL: Tail = Tail::Bytes;

    fn flags(&self) -> u8 {
        u8::from(self.given_up) * FLAG_GIVEN_UP + u8::from(self.constant) * FLAG_CONSTANT
    }

    fn length(&self) -> Result<usize, EncodeError> {
        Ok(BULK_BYTES)
    }

    fn write(&self, _: u16, out: &mut Vec<u8>) {
        let mut fixed = [0; BULK_BYTES];
        put(&mut fixed, 0, self.bulk.to_le_bytes());
        put(&mut fixed, 8, self.length.to_le_bytes());
        put(&mut fixed, 16, self.offset.to_le_bytes());
        out.extend_from_slice(&fixed);
    }
}

impl Bulk {
    /// The head and the header of the piece that these bytes begin with: its own bytes need not be there. None where another
    /// kind of frame begins, or less has come.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] for what this version never writes.
    pub fn peek(bytes: &[u8]) -> Result<Option<(FrameHead, Self)>, ProtocolError> {
        let Some(head) = FrameHead::decode(bytes)?.filter(|head| head.kind == Kind::Bulk) else {
            return Ok(None);
        };
        let body = &bytes[FrameHead::BYTES..];
        let Some(header) = body.get(..head.header_length as usize) else {
            return Ok(None);
        };
        let piece = (head.body_length - head.header_length) as usize;
        Ok(Some((head, Self::decode(head.flags, header, piece)?)))
    }

    /// Reads the header before so many bytes, and checks that they can be a piece.
    pub(super) fn decode(flags: u8, header: &[u8], piece: usize) -> Result<Self, ProtocolError> {
        let fixed: &[u8; BULK_BYTES] = header
            .first_chunk()
            .ok_or(ProtocolError::Truncated { field: "bulk header" })?;
        let bulk = Self {
            bulk: u64_at(fixed, 0),
            length: u64_at(fixed, 8),
            offset: u64_at(fixed, 16),
            given_up: flags & FLAG_GIVEN_UP != 0,
            constant: flags & FLAG_CONSTANT != 0,
        };
        if bulk.bulk == 0 {
            return Err(ProtocolError::ZeroId { field: "bulk" });
        }
        ProtocolError::check("bytes of parts", bulk.length, limits::MESSAGE_BYTES_MAX)?;
        let ends = bulk.offset.checked_add(piece as u64);
        let fits = piece <= limits::BULK_PIECE_BYTES_MAX && ends.is_some_and(|end| end <= bulk.length);
        if !fits || (piece == 0) != bulk.given_up {
            return Err(bulk.refused(piece));
        }
        Ok(bulk)
    }

    /// The error for a piece that does not belong where it came.
    pub(crate) fn refused(&self, piece: usize) -> ProtocolError {
        ProtocolError::BadBulk {
            bulk: self.bulk,
            length: self.length,
            offset: self.offset,
            piece: piece as u64,
        }
    }
}

impl sealed::Sealed for Control {}

impl FrameHeader for Control {
    const KIND: Kind = Kind::Control;
    const TAIL: Tail = Tail::Bytes;

    fn length(&self) -> Result<usize, EncodeError> {
        Ok(0)
    }

    fn write(&self, _: u16, _: &mut Vec<u8>) {}
}
