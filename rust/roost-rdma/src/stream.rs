//! Bytes of chunks between users' memory and a connection.
//!
//! Foreign memory may be unmapped at any time, by a user's own thread. So it is touched by the kernel alone, which says
//! `EFAULT` where this process would die.

mod conduit;
mod output;
mod sink;
mod sum;
mod sys;

pub(crate) use self::conduit::{Conduit, Cut, Incoming};
pub(crate) use self::output::Outgoing;
pub(crate) use self::sink::Sink;
pub(crate) use self::sum::sum;
use crate::link::Status;

/// Adjacent bytes in this process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) address: usize,
    pub(crate) bytes: u64,
    /// Whose it is, of this process's regions; zero for a transfer's own side.
    pub(crate) region: u64,
}

/// What went wrong with which span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) status: Status,
    pub(crate) span: u32,
}

/// How far some spans are done.
#[derive(Debug)]
struct Progress {
    spans: Vec<Span>,
    /// The first that is not done.
    index: usize,
    /// What of it is.
    done: u64,
    /// Bytes of all that are not done.
    left: u64,
    fault: Option<Fault>,
}

impl Progress {
    fn new(spans: Vec<Span>) -> Self {
        let left = spans.iter().map(|span| span.bytes).sum();
        Self {
            spans,
            index: 0,
            done: 0,
            left,
            fault: None,
        }
    }

    /// What is not done, as far as the slices go.
    fn slices(&self, into: &mut Vec<libc::iovec>, slices_max: usize) {
        let mut skip = self.done;
        for span in &self.spans[self.index..] {
            if into.len() >= slices_max {
                return;
            }
            into.push(sys::slice(
                span.address + sys::size(skip),
                sys::size(span.bytes - skip),
            ));
            skip = 0;
        }
    }

    fn advance(&mut self, bytes: u64) {
        self.left -= bytes;
        self.done += bytes;
        while let Some(span) = self.spans.get(self.index) {
            if self.done < span.bytes {
                return;
            }
            self.done -= span.bytes;
            self.index += 1;
        }
        self.done = 0;
    }

    /// The first adjacent bytes that are not done.
    fn first(&self, bytes_max: usize) -> Option<(usize, usize)> {
        let span = self.spans.get(self.index)?;
        let address = span.address + sys::size(self.done);
        Some((address, sys::size(span.bytes - self.done).min(bytes_max)))
    }

    fn fail(&mut self, status: Status) {
        let span = u32::try_from(self.index).unwrap_or(u32::MAX);
        self.fault.get_or_insert(Fault { status, span });
    }

    /// Nothing of this region is touched any more.
    fn revoke(&mut self, region: u64) {
        if let Some(span) = self.spans.iter().position(|span| span.region == region) {
            let span = u32::try_from(span).unwrap_or(u32::MAX);
            self.fault.get_or_insert(Fault {
                status: Status::Gone,
                span,
            });
        }
    }
}
