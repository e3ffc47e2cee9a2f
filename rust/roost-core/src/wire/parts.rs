//! The parts of a message: the pickle first, then the buffers that were taken out of it.

use super::bytes::{put, u32_at, u64_at};
use super::{EncodeError, ProtocolError};
use crate::limits;

const TAG_INLINE: u8 = 0;
const TAG_SEGMENT: u8 = 1;
const TAG_BULK: u8 = 2;
const TAG_CONSTANT: u8 = 3;
const INLINE_ENTRY_BYTES: usize = 9;
const SEGMENT_ENTRY_BYTES: usize = 29;
const BULK_ENTRY_BYTES: usize = 17;

/// A part that lies in shared memory, which the receiver has mapped or will map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SegmentPart {
    /// The segment, as its owner named it.
    pub segment: u64,
    /// Which use of the segment: it is handed out again and again.
    pub generation: u32,
    /// Where in the segment the part begins.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
}

/// A part that has travelled ahead, in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BulkPart {
    /// Its number, as its [`super::Bulk`]s give it.
    pub bulk: u64,
    /// How many bytes it has.
    pub length: u64,
}

/// One part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// The bytes travel in the frame.
    Inline(&'a [u8]),
    /// The same, and whoever receives them never writes to them either.
    Constant(&'a [u8]),
    /// The bytes lie in shared memory.
    Segment(SegmentPart),
    /// The bytes came before.
    Bulk(BulkPart),
}

impl Part<'_> {
    /// Bytes of the part, wherever they are.
    #[inline]
    pub fn length(&self) -> u64 {
        match self {
            Self::Inline(bytes) | Self::Constant(bytes) => bytes.len() as u64,
            Self::Segment(segment) => segment.length,
            Self::Bulk(bulk) => bulk.length,
        }
    }
}

/// What a list of parts takes in a frame, and in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartsSize {
    pub(super) table: usize,
    pub(super) inline: u64,
}

/// Measures the parts.
///
/// # Errors
///
/// [`EncodeError::TooMany`] when there are too many, or when they are too large together.
#[inline]
pub(super) fn measure(parts: &[Part<'_>]) -> Result<PartsSize, EncodeError> {
    EncodeError::check("parts", parts.len() as u64, limits::MESSAGE_PARTS_MAX as u64)?;
    let (mut table, mut inline, mut total) = (0, 0_u64, 0_u64);
    for part in parts {
        total = total.saturating_add(part.length());
        match part {
            Part::Inline(bytes) | Part::Constant(bytes) => {
                table += INLINE_ENTRY_BYTES;
                inline += bytes.len() as u64;
            }
            Part::Segment(_) => table += SEGMENT_ENTRY_BYTES,
            Part::Bulk(_) => table += BULK_ENTRY_BYTES,
        }
    }
    EncodeError::check("bytes of parts", total, limits::MESSAGE_BYTES_MAX)?;
    Ok(PartsSize { table, inline })
}

#[inline]
pub(super) fn write_table(parts: &[Part<'_>], out: &mut Vec<u8>) {
    for part in parts {
        match part {
            Part::Inline(bytes) | Part::Constant(bytes) => {
                let tag = if matches!(part, Part::Inline(_)) {
                    TAG_INLINE
                } else {
                    TAG_CONSTANT
                };
                let mut entry = [tag; INLINE_ENTRY_BYTES];
                put(&mut entry, 1, (bytes.len() as u64).to_le_bytes());
                out.extend_from_slice(&entry);
            }
            Part::Segment(segment) => {
                let mut entry = [TAG_SEGMENT; SEGMENT_ENTRY_BYTES];
                put(&mut entry, 1, segment.length.to_le_bytes());
                put(&mut entry, 9, segment.segment.to_le_bytes());
                put(&mut entry, 17, segment.generation.to_le_bytes());
                put(&mut entry, 21, segment.offset.to_le_bytes());
                out.extend_from_slice(&entry);
            }
            Part::Bulk(bulk) => {
                let mut entry = [TAG_BULK; BULK_ENTRY_BYTES];
                put(&mut entry, 1, bulk.length.to_le_bytes());
                put(&mut entry, 9, bulk.bulk.to_le_bytes());
                out.extend_from_slice(&entry);
            }
        }
    }
}

#[inline]
pub(super) fn write_inline(parts: &[Part<'_>], out: &mut Vec<u8>) {
    for part in parts {
        if let Part::Inline(bytes) | Part::Constant(bytes) = part {
            out.extend_from_slice(bytes);
        }
    }
}

/// The parts of a received message, read from its bytes as they are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts<'a> {
    table: &'a [u8],
    inline: &'a [u8],
    count: u16,
    bytes: u64,
}

impl<'a> Parts<'a> {
    /// Checks the whole table once, so that reading the parts later cannot fail.
    #[inline]
    pub(super) fn decode(count: u16, table: &'a [u8], inline: &'a [u8]) -> Result<Self, ProtocolError> {
        let (mut rest, mut inline_bytes, mut bytes) = (table, 0_u64, 0_u64);
        for _ in 0..count {
            let (entry, after) =
                split_entry(rest).ok_or(ProtocolError::Truncated { field: "parts table" })?;
            let length = match entry {
                Entry::Inline(entry) if matches!(entry[0], TAG_INLINE | TAG_CONSTANT) => {
                    inline_bytes = inline_bytes.saturating_add(u64_at(entry, 1));
                    u64_at(entry, 1)
                }
                Entry::Inline(entry) => {
                    return Err(ProtocolError::UnknownValue {
                        field: "kind of part",
                        value: entry[0],
                    });
                }
                Entry::Segment(entry) => u64_at(entry, 1),
                Entry::Bulk(entry) => u64_at(entry, 1),
            };
            bytes = bytes.saturating_add(length);
            rest = after;
        }
        ProtocolError::check("bytes of parts", bytes, limits::MESSAGE_BYTES_MAX)?;
        if inline_bytes != inline.len() as u64 {
            return Err(ProtocolError::PartsMismatch {
                table: inline_bytes,
                body: inline.len() as u64,
            });
        }
        Ok(Self {
            table,
            inline,
            count,
            bytes,
        })
    }

    /// How many parts there are.
    #[inline]
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Bytes of all parts, wherever they are: what credit counts.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes of the only part, when there is one and it is inline: the usual message.
    #[inline]
    pub fn single_inline(&self) -> Option<&'a [u8]> {
        (self.count == 1 && self.table.first() == Some(&TAG_INLINE)).then_some(self.inline)
    }

    /// The parts in order.
    #[inline]
    pub fn iter(&self) -> PartsIter<'a> {
        PartsIter {
            table: self.table,
            inline: self.inline,
            count: self.count,
        }
    }
}

impl<'a> IntoIterator for Parts<'a> {
    type Item = Part<'a>;
    type IntoIter = PartsIter<'a>;

    fn into_iter(self) -> PartsIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Parts<'a> {
    type Item = Part<'a>;
    type IntoIter = PartsIter<'a>;

    fn into_iter(self) -> PartsIter<'a> {
        self.iter()
    }
}

/// The parts of a received message, in order.
#[derive(Debug, Clone)]
pub struct PartsIter<'a> {
    table: &'a [u8],
    inline: &'a [u8],
    count: u16,
}

impl<'a> Iterator for PartsIter<'a> {
    type Item = Part<'a>;

    #[inline]
    fn next(&mut self) -> Option<Part<'a>> {
        self.count = self.count.checked_sub(1)?;
        let (entry, rest) = split_entry(self.table)?;
        self.table = rest;
        match entry {
            Entry::Inline(entry) => {
                let length = usize::try_from(u64_at(entry, 1)).ok()?;
                let (bytes, rest) = self.inline.split_at_checked(length)?;
                self.inline = rest;
                Some(if entry[0] == TAG_INLINE {
                    Part::Inline(bytes)
                } else {
                    Part::Constant(bytes)
                })
            }
            Entry::Segment(entry) => Some(Part::Segment(SegmentPart {
                length: u64_at(entry, 1),
                segment: u64_at(entry, 9),
                generation: u32_at(entry, 17),
                offset: u64_at(entry, 21),
            })),
            Entry::Bulk(entry) => Some(Part::Bulk(BulkPart {
                length: u64_at(entry, 1),
                bulk: u64_at(entry, 9),
            })),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.count), Some(usize::from(self.count)))
    }
}

impl ExactSizeIterator for PartsIter<'_> {}

enum Entry<'a> {
    Inline(&'a [u8; INLINE_ENTRY_BYTES]),
    Segment(&'a [u8; SEGMENT_ENTRY_BYTES]),
    Bulk(&'a [u8; BULK_ENTRY_BYTES]),
}

/// One entry and what follows it. An unknown tag is split off as the shortest entry, for the caller to refuse.
#[inline]
fn split_entry(table: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    match *table.first()? {
        TAG_SEGMENT => table
            .split_first_chunk()
            .map(|(entry, rest)| (Entry::Segment(entry), rest)),
        TAG_BULK => table
            .split_first_chunk()
            .map(|(entry, rest)| (Entry::Bulk(entry), rest)),
        _ => table
            .split_first_chunk()
            .map(|(entry, rest)| (Entry::Inline(entry), rest)),
    }
}
