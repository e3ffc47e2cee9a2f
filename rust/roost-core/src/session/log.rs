//! What was sent and is not yet acknowledged, and what is yet to be sent: one log in chunks of whole frames.

use std::collections::VecDeque;
use std::collections::vec_deque::Iter;

use super::Shared;
use crate::limits;
use crate::wire::{Frame, FrameHead};

#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    /// The rest of the chunk's last frame, which lies elsewhere; nothing is appended after it.
    rest: Option<Shared>,
    rest_length: usize,
    /// Bytes that were written to the connection.
    sent: usize,
    /// Highest sequence number in the chunk; 0 when it holds nothing but acknowledgements.
    last_sequence: u64,
    /// Whether the last frame is an acknowledgement that travels alone.
    ends_in_ack: bool,
}

impl Chunk {
    #[inline]
    fn length(&self) -> usize {
        self.bytes.len() + self.rest_length
    }

    /// What is not written of the bytes that lie elsewhere.
    #[cold]
    fn unsent_rest(&self) -> &[u8] {
        let rest = self.rest.as_ref().map_or(&[][..], Shared::bytes);
        &rest[self.sent.saturating_sub(self.bytes.len())..]
    }
}

/// What is not written yet, in order.
struct Unsent<'a> {
    chunks: Iter<'a, Chunk>,
    /// The chunk that came last has bytes elsewhere, which come next.
    rest: Option<&'a Chunk>,
}

impl<'a> Iterator for Unsent<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let piece = if let Some(chunk) = self.rest.take() {
                chunk.unsent_rest()
            } else {
                let chunk = self.chunks.next()?;
                if chunk.rest.is_some() {
                    self.rest = Some(chunk);
                }
                chunk.bytes.get(chunk.sent..).unwrap_or_default()
            };
            if !piece.is_empty() {
                return Some(piece);
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Log {
    chunks: VecDeque<Chunk>,
    /// All chunks before this one are sent.
    first_unsent: usize,
    held: usize,
    unsent: usize,
    spare: Vec<Vec<u8>>,
}

impl Log {
    /// Appends one frame of this length; `sequence` is 0 for one that is not numbered.
    #[inline]
    pub(super) fn append(&mut self, length: usize, sequence: u64, write: impl FnOnce(&mut Vec<u8>)) {
        let fits =
            |chunk: &Chunk| chunk.bytes.len() + length <= limits::LOG_CHUNK_BYTES && chunk.rest.is_none();
        if !self.chunks.back().is_some_and(fits) {
            self.add_chunk(length);
        }
        let last = self.chunks.len() - 1;
        self.first_unsent = self.first_unsent.min(last);
        let chunk = &mut self.chunks[last];
        chunk.bytes.reserve(length);
        let before = chunk.bytes.len();
        write(&mut chunk.bytes);
        debug_assert_eq!(
            chunk.bytes.len(),
            before + length,
            "a frame is as long as it was measured"
        );
        chunk.last_sequence = chunk.last_sequence.max(sequence);
        chunk.ends_in_ack = sequence == 0;
        self.held += length;
        self.unsent += length;
    }

    /// The frame that was appended last has its inline bytes elsewhere.
    pub(super) fn append_rest(&mut self, rest: Shared) {
        self.held += rest.length();
        self.unsent += rest.length();
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.rest_length = rest.length();
            chunk.rest = Some(rest);
        }
    }

    /// Takes an acknowledgement off the end, if nothing of it was sent; gives its flags. Its successor says all that
    /// it says, so that a peer that sends and does not read cannot make them pile up.
    pub(super) fn take_unsent_ack(&mut self) -> u8 {
        let Some(chunk) = self.chunks.back_mut().filter(|chunk| chunk.ends_in_ack) else {
            return 0;
        };
        let at = chunk.bytes.len() - FrameHead::BYTES;
        if chunk.sent > at {
            return 0;
        }
        let flags = FrameHead::decode(&chunk.bytes[at..])
            .ok()
            .flatten()
            .map_or(0, |head| head.flags);
        chunk.bytes.truncate(at);
        chunk.ends_in_ack = false;
        self.held -= FrameHead::BYTES;
        self.unsent -= FrameHead::BYTES;
        flags
    }

    #[cold]
    fn add_chunk(&mut self, length: usize) {
        let bytes = if length > limits::LOG_CHUNK_BYTES {
            Vec::with_capacity(length)
        } else if let Some(spare) = self.spare.pop() {
            spare
        } else if self.chunks.is_empty() {
            Vec::with_capacity(limits::LOG_FIRST_CHUNK_BYTES)
        } else {
            Vec::with_capacity(limits::LOG_CHUNK_BYTES)
        };
        self.chunks.push_back(Chunk {
            bytes,
            rest: None,
            rest_length: 0,
            sent: 0,
            last_sequence: 0,
            ends_in_ack: false,
        });
    }

    #[inline]
    pub(super) fn unsent(&self) -> impl Iterator<Item = &[u8]> {
        Unsent {
            chunks: self.chunks.range(self.first_unsent..),
            rest: None,
        }
    }

    #[inline]
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent
    }

    #[inline]
    pub(super) fn held(&self) -> usize {
        self.held
    }

    #[inline]
    pub(super) fn sent(&mut self, mut count: usize) {
        assert!(count <= self.unsent, "no more is written than there is to write");
        self.unsent -= count;
        while count > 0 {
            let chunk = &mut self.chunks[self.first_unsent];
            let length = chunk.length();
            let step = count.min(length - chunk.sent);
            chunk.sent += step;
            count -= step;
            if chunk.sent == length {
                self.first_unsent += 1;
            }
        }
    }

    /// Frees the chunks that are sent and acknowledged. The last one is kept, empty, so that a quiet pair that
    /// exchanges small frames uses the same few warm bytes again and again.
    pub(super) fn trim(&mut self, acknowledged: u64) {
        while self.first_unsent > 0
            && self
                .chunks
                .front()
                .is_some_and(|chunk| chunk.last_sequence <= acknowledged)
        {
            let last = self.chunks.len() == 1;
            let chunk = &mut self.chunks[0];
            self.held -= chunk.length();
            self.first_unsent -= 1;
            let small = chunk.bytes.capacity() <= limits::LOG_CHUNK_BYTES;
            if last && small && chunk.rest_length == 0 {
                chunk.bytes.clear();
                chunk.sent = 0;
                chunk.last_sequence = 0;
                chunk.ends_in_ack = false;
                break;
            }
            if let Some(Chunk { mut bytes, .. }) = self.chunks.pop_front()
                && small
                && self.spare.len() < limits::LOG_SPARE_CHUNKS_MAX
            {
                bytes.clear();
                self.spare.push(bytes);
            }
        }
        if self.held == 0 && !self.spare.is_empty() {
            self.spare = Vec::new();
        }
    }

    /// Whether no frame is written in part.
    pub(super) fn is_between_frames(&self) -> bool {
        let Some(chunk) = self.chunks.get(self.first_unsent) else {
            return true;
        };
        chunk.sent == 0 || Frames::new(&chunk.bytes).any(|(at, _)| at == chunk.sent)
    }

    /// Makes everything above this number unsent again, and nothing below it.
    pub(super) fn rewind(&mut self, received: u64) {
        self.unsent = 0;
        self.first_unsent = self.chunks.len();
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            chunk.sent = if self.first_unsent < index {
                0
            } else {
                let first_above = Frames::new(&chunk.bytes).find(|(_, head)| head.sequence > received);
                first_above.map_or(chunk.length(), |(at, _)| at)
            };
            if chunk.sent < chunk.length() {
                self.first_unsent = self.first_unsent.min(index);
            }
            self.unsent += chunk.length() - chunk.sent;
        }
    }

    /// Shows each frame above this number, in order.
    pub(super) fn frames_above(&self, number: u64, visit: &mut impl FnMut(Frame<'_>)) {
        for chunk in self.chunks.iter().filter(|chunk| chunk.last_sequence > number) {
            for (at, head) in Frames::new(&chunk.bytes).filter(|(_, head)| head.sequence > number) {
                let from = at + FrameHead::BYTES;
                let (header, inline) = chunk.bytes[from..].split_at(head.header_length as usize);
                let inline = match &chunk.rest {
                    Some(rest) if at + head.frame_length() > chunk.bytes.len() => rest.bytes(),
                    _ => &inline[..(head.body_length - head.header_length) as usize],
                };
                let frame = Frame::decode_split(head, header, inline);
                visit(frame.expect("the log holds what this crate has encoded"));
            }
        }
    }
}

/// The frames of a chunk, each with its place.
struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Frames<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }
}

impl Iterator for Frames<'_> {
    type Item = (usize, FrameHead);

    fn next(&mut self) -> Option<(usize, FrameHead)> {
        // The last frame may have its end elsewhere.
        let bytes = self.bytes.get(self.at..)?;
        let head = FrameHead::decode(bytes).expect("the log holds what this crate has encoded")?;
        let at = self.at;
        self.at += head.frame_length();
        Some((at, head))
    }
}
