//! What waits to be sent over one connection.

use std::os::fd::OwnedFd;

use super::{Fault, Progress, Span, sys};
use crate::limits::SLICES_MAX;
use crate::link::{Message, Status, TRAILER_BYTES, Trailer};

/// Sent in place of what is not to be had any more.
pub(super) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A message, and the chunk behind it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    message: Vec<u8>,
    message_sent: usize,
    pub(super) descriptors: Vec<OwnedFd>,
    pub(super) chunk: Option<Chunk>,
}

#[derive(Debug)]
pub(super) struct Chunk {
    request: u64,
    pub(super) source: Progress,
    trailer: [u8; TRAILER_BYTES],
    trailer_sent: usize,
}

impl Outgoing {
    pub(crate) fn message(message: &Message, descriptors: Vec<OwnedFd>) -> Self {
        Self {
            message: message.encode(descriptors.len()),
            message_sent: 0,
            descriptors,
            chunk: None,
        }
    }

    /// A message with the bytes of these spans behind it: those of [`Message::chunk_bytes`].
    pub(crate) fn chunk(message: &Message, request: u64, spans: Vec<Span>) -> Self {
        let source = Progress::new(spans);
        debug_assert_eq!(message.chunk_bytes(), Some(source.left));
        let chunk = Chunk {
            request,
            source,
            trailer: [0; TRAILER_BYTES],
            trailer_sent: 0,
        };
        Self {
            chunk: Some(chunk),
            ..Self::message(message, Vec::new())
        }
    }

    /// Bytes of memory that it holds.
    pub(super) fn held_bytes(&self) -> usize {
        self.message.len()
    }

    pub(super) fn has_begun(&self) -> bool {
        self.message_sent > 0
    }

    pub(super) fn is_request(&self, request: u64) -> bool {
        self.chunk.as_ref().is_some_and(|chunk| chunk.request == request)
    }

    pub(super) fn is_done(&self) -> bool {
        self.message_sent == self.message.len()
            && self
                .chunk
                .as_ref()
                .is_none_or(|chunk| chunk.trailer_sent == TRAILER_BYTES)
    }

    /// Nothing of this region is sent any more.
    pub(super) fn revoke(&mut self, region: u64) {
        if let Some(chunk) = &mut self.chunk {
            chunk.source.revoke(region);
        }
    }

    /// What of the message itself is not sent.
    pub(super) fn message_rest(&self) -> &[u8] {
        &self.message[self.message_sent..]
    }

    /// What comes next, as far as the slices go.
    pub(super) fn slices(&mut self, into: &mut Vec<libc::iovec>) {
        let rest = self.message_rest();
        if !rest.is_empty() {
            into.push(sys::slice(rest.as_ptr().expose_provenance(), rest.len()));
        }
        let Some(chunk) = &mut self.chunk else {
            return;
        };
        if chunk.source.fault.is_none() {
            chunk.source.slices(into, SLICES_MAX);
        } else {
            let mut left = sys::size(chunk.source.left);
            while left > 0 && into.len() < SLICES_MAX {
                let now = left.min(ZEROS.len());
                into.push(sys::slice(ZEROS.as_ptr().expose_provenance(), now));
                left -= now;
            }
        }
        if into.len() < SLICES_MAX {
            let rest = chunk.trailer_rest();
            into.push(sys::slice(rest.as_ptr().expose_provenance(), rest.len()));
        }
    }

    /// So much was sent; says how much of it was something else's.
    pub(super) fn sent(&mut self, mut bytes: usize) -> usize {
        let now = bytes.min(self.message.len() - self.message_sent);
        self.message_sent += now;
        bytes -= now;
        if let Some(chunk) = &mut self.chunk {
            let now = bytes.min(sys::size(chunk.source.left));
            chunk.source.sent(now as u64);
            bytes -= now;
            let now = bytes.min(TRAILER_BYTES - chunk.trailer_sent);
            chunk.trailer_sent += now;
            bytes -= now;
        }
        bytes
    }

    /// Somewhere in what was to be sent a page is missing; whether it is in this.
    pub(super) fn find_fault(&mut self, scratch: &mut [u8]) -> bool {
        let Some(chunk) = &mut self.chunk else {
            return false;
        };
        let source = &mut chunk.source;
        if source.fault.is_some() {
            return false;
        }
        let mut probe = Progress::new(source.spans.clone());
        probe.advance(probe.left - source.left);
        while let Some((address, bytes)) = probe.first(scratch.len()) {
            if sys::copy_out(address, &mut scratch[..bytes]).is_err() {
                let span = u32::try_from(probe.index).unwrap_or(u32::MAX);
                source.fault = Some(Fault {
                    status: Status::Unmapped,
                    span,
                });
                return true;
            }
            probe.advance(bytes as u64);
        }
        false
    }
}

impl Chunk {
    /// Whether the bytes were good is known now that they are on their way.
    pub(super) fn trailer_rest(&mut self) -> &[u8] {
        if self.trailer_sent == 0 {
            let fault = self.source.fault;
            self.trailer = Trailer {
                status: fault.map_or(Status::Good, |fault| fault.status),
                piece: fault.map_or(0, |fault| fault.span),
            }
            .encode();
        }
        &self.trailer[self.trailer_sent..]
    }
}

impl Progress {
    /// Zeros in place of bytes do not move the spans.
    fn sent(&mut self, bytes: u64) {
        if self.fault.is_none() {
            self.advance(bytes);
        } else {
            self.left -= bytes;
        }
    }
}
