//! The frame: a head of 32 bytes, the header of its kind, the inline parts.

use super::bulk::Bulk;
use super::bytes::{put, u32_at, u64_at};
use super::parts::{self, Part, Parts};
use super::reply::{Cancel, Credit, Goodbye, PortClose, PortItem, ReplyHeader};
use super::{EncodeError, MessageHeader, ProtocolError};
use crate::limits;

/// What kind of thing a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A call or a broadcast to actors.
    Message = 1,
    /// One rank's answer to a call.
    Reply = 2,
    /// A call that is given up.
    Cancel = 3,
    /// Room in a mailbox or port.
    Credit = 4,
    /// An acknowledgement that travels alone; the only kind without a sequence number.
    Ack = 5,
    /// A value for a port.
    PortItem = 6,
    /// The end of a port.
    PortClose = 7,
    /// The sender stops.
    Goodbye = 8,
    /// What the two ends of a host's control connection say to each other.
    Control = 9,
    /// A piece of a part that is too large for its frame.
    Bulk = 10,
}

impl Kind {
    #[inline]
    fn decode(kind: u8) -> Result<Self, ProtocolError> {
        Ok(match kind {
            1 => Self::Message,
            2 => Self::Reply,
            3 => Self::Cancel,
            4 => Self::Credit,
            5 => Self::Ack,
            6 => Self::PortItem,
            7 => Self::PortClose,
            8 => Self::Goodbye,
            9 => Self::Control,
            10 => Self::Bulk,
            kind => return Err(ProtocolError::UnknownKind { kind }),
        })
    }
}

/// In an [`Kind::Ack`]: the peer wants an acknowledgement at once.
pub(crate) const FLAG_ACK_WANTED: u8 = 1;

/// The first 32 bytes of each frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes after the head.
    pub body_length: u32,
    /// How many of those are the header of this kind; inline parts are the rest.
    pub header_length: u32,
    /// The kind of frame.
    pub kind: Kind,
    /// Bits of the kind.
    pub flags: u8,
    /// The frame's place in the session, from 1; 0 for an acknowledgement alone.
    pub sequence: u64,
    /// The highest number that the sender has received of the other direction.
    pub acknowledged: u64,
    /// The sender's membership epoch when it wrote the frame.
    pub epoch: u32,
}

impl FrameHead {
    /// Bytes of a head.
    pub const BYTES: usize = 32;

    /// Head and body together.
    #[inline]
    pub fn frame_length(&self) -> usize {
        Self::BYTES + self.body_length as usize
    }

    /// Reads the head that these bytes begin with; none when there are too few of them.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] for a head that this version never writes.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, ProtocolError> {
        let Some(head) = bytes.first_chunk::<{ Self::BYTES }>() else {
            return Ok(None);
        };
        let body_length = u32_at(head, 0);
        if body_length as usize > limits::FRAME_BODY_BYTES_MAX {
            return Err(ProtocolError::FrameTooLarge {
                length: u64::from(body_length),
            });
        }
        let header_length = u32_at(head, 28);
        if header_length > body_length {
            return Err(ProtocolError::HeaderTooLong {
                header: header_length,
                body: body_length,
            });
        }
        let kind = Kind::decode(head[4])?;
        let sequence = u64_at(head, 8);
        if (sequence == 0) != (kind == Kind::Ack) {
            return Err(ProtocolError::Sequencing {
                kind: head[4],
                sequence,
            });
        }
        Ok(Some(Self {
            body_length,
            header_length,
            kind,
            flags: head[5],
            sequence,
            acknowledged: u64_at(head, 16),
            epoch: u32_at(head, 24),
        }))
    }

    /// Writes the head at the end of `out`.
    #[inline]
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut head = [0; Self::BYTES];
        put(&mut head, 0, self.body_length.to_le_bytes());
        put(&mut head, 4, [self.kind as u8]);
        put(&mut head, 5, [self.flags]);
        put(&mut head, 8, self.sequence.to_le_bytes());
        put(&mut head, 16, self.acknowledged.to_le_bytes());
        put(&mut head, 24, self.epoch.to_le_bytes());
        put(&mut head, 28, self.header_length.to_le_bytes());
        out.extend_from_slice(&head);
    }
}

/// How long the frame is that these bytes begin with, head included; none when its head is not whole.
///
/// A reader should let its buffer grow with the bytes that arrive, to this length at most: what is only announced is
/// no reason to reserve memory.
///
/// # Errors
///
/// [`ProtocolError`] as soon as the head is one that this version never writes.
pub fn frame_length_hint(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    Ok(FrameHead::decode(bytes)?.map(|head| head.frame_length()))
}

pub(super) mod sealed {
    pub trait Sealed {}
}

/// What follows the fields of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Nothing,
    /// One inline part, which fills the rest of the body.
    Bytes,
    /// A table of parts, then those that are inline.
    Parts,
}

/// The header of one kind of frame, as it is sent.
pub trait FrameHeader: sealed::Sealed {
    /// The kind of frame that it heads.
    const KIND: Kind;
    /// What follows it.
    const TAIL: Tail = Tail::Nothing;

    /// Bits of the kind, in the frame's head.
    #[inline]
    fn flags(&self) -> u8 {
        0
    }

    /// Its bytes without the parts table.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] when a field passes its limit.
    fn length(&self) -> Result<usize, EncodeError>;

    /// Appends its bytes, without the parts table.
    fn write(&self, part_count: u16, out: &mut Vec<u8>);
}

/// How long a frame's body will be, all limits checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodySize {
    pub(crate) header: u32,
    pub(crate) body: u32,
}

/// Measures the body that [`write_body`] writes for the same arguments.
#[inline]
pub(crate) fn measure_body<H: FrameHeader>(header: &H, parts: &[Part<'_>]) -> Result<BodySize, EncodeError> {
    debug_assert!(
        match H::TAIL {
            Tail::Nothing => parts.is_empty(),
            Tail::Bytes => matches!(parts, [Part::Inline(_)]),
            Tail::Parts => true,
        },
        "parts are given to kinds that carry them"
    );
    let parts = parts::measure(parts)?;
    let table = if matches!(H::TAIL, Tail::Parts) {
        parts.table
    } else {
        0
    };
    let header = header.length()? + table;
    let length = (header as u64).saturating_add(parts.inline);
    if length > limits::FRAME_BODY_BYTES_MAX as u64 {
        return Err(EncodeError::FrameTooLarge { length });
    }
    match (u32::try_from(header), u32::try_from(length)) {
        (Ok(header), Ok(body)) => Ok(BodySize { header, body }),
        _ => Err(EncodeError::FrameTooLarge { length }),
    }
}

/// Appends header, parts table and inline parts.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "measure_body has checked the number of parts"
)]
pub(crate) fn write_body<H: FrameHeader>(header: &H, parts: &[Part<'_>], out: &mut Vec<u8>) {
    header.write(parts.len() as u16, out);
    if matches!(H::TAIL, Tail::Parts) {
        parts::write_table(parts, out);
    }
    if !matches!(H::TAIL, Tail::Nothing) {
        parts::write_inline(parts, out);
    }
}

/// What a frame carries, borrowed from the bytes it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// A call or a broadcast to actors.
    Message(MessageHeader<'a>, Parts<'a>),
    /// One rank's answer to a call.
    Reply(ReplyHeader, Parts<'a>),
    /// A call that is given up.
    Cancel(Cancel),
    /// Room in a mailbox or port.
    Credit(Credit),
    /// An acknowledgement that travels alone.
    Ack,
    /// A value for a port.
    PortItem(PortItem, Parts<'a>),
    /// The end of a port.
    PortClose(PortClose),
    /// The sender stops.
    Goodbye(Goodbye),
    /// What the two ends of a host's control connection say to each other.
    Control(&'a [u8]),
    /// A piece of a part that is too large for its frame.
    Bulk(Bulk, &'a [u8]),
}

/// One frame, borrowed from the bytes it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its head.
    pub head: FrameHead,
    /// What it carries.
    pub content: Content<'a>,
}

impl<'a> Frame<'a> {
    /// Reads the frame that these bytes begin with; none when it is not whole.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] for bytes that are no frame of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<Self>, ProtocolError> {
        let Some(head) = FrameHead::decode(bytes)? else {
            return Ok(None);
        };
        let Some(body) = bytes.get(FrameHead::BYTES..head.frame_length()) else {
            return Ok(None);
        };
        Self::decode_body(head, body).map(Some)
    }

    /// Reads the body that belongs to a head. Header bytes that this version does not know are passed over: a later
    /// minor version may add fields at the end of a header.
    #[inline]
    pub(crate) fn decode_body(head: FrameHead, body: &'a [u8]) -> Result<Self, ProtocolError> {
        let too_long = ProtocolError::HeaderTooLong {
            header: head.header_length,
            body: head.body_length,
        };
        let (header, inline) = body
            .split_at_checked(head.header_length as usize)
            .ok_or(too_long)?;
        Self::decode_split(head, header, inline)
    }

    /// Reads a body whose inline bytes may lie elsewhere.
    #[inline]
    pub(crate) fn decode_split(
        head: FrameHead,
        header: &'a [u8],
        inline: &'a [u8],
    ) -> Result<Self, ProtocolError> {
        let content = match head.kind {
            Kind::Message => {
                let (message, parts) = MessageHeader::decode(head.flags, header, inline)?;
                Content::Message(message, parts)
            }
            Kind::Reply => {
                let (reply, parts) = ReplyHeader::decode(head.flags, header, inline)?;
                Content::Reply(reply, parts)
            }
            Kind::Cancel => Content::Cancel(Cancel::decode(head.flags, header)?),
            Kind::Credit => Content::Credit(Credit::decode(header)?),
            Kind::Ack => Content::Ack,
            Kind::PortItem => {
                let (item, parts) = PortItem::decode(head.flags, header, inline)?;
                Content::PortItem(item, parts)
            }
            Kind::PortClose => Content::PortClose(PortClose::decode(head.flags, header)?),
            Kind::Goodbye => Content::Goodbye(Goodbye::decode(header)?),
            Kind::Control => Content::Control(inline),
            Kind::Bulk => Content::Bulk(Bulk::decode(head.flags, header, inline.len())?, inline),
        };
        Ok(Self { head, content })
    }
}
