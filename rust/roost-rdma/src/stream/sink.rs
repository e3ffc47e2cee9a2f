//! Where a chunk that comes in goes.

use super::{Fault, Progress, Span, sys};
use crate::link::Status;

/// Takes exactly the chunk's bytes, also when they have no place to go any more.
#[derive(Debug)]
pub(crate) struct Sink(Progress);

impl Sink {
    /// Into these spans, which together have the chunk's bytes.
    ///
    /// # Safety
    ///
    /// What is mapped there may be written to until the sink is gone, has been [revoked](Self::revoke), or was
    /// [given up](Self::give_up).
    pub(crate) unsafe fn new(spans: Vec<Span>) -> Self {
        Self(Progress::new(spans))
    }

    /// Nowhere.
    pub(crate) fn nowhere(bytes: u64, fault: Fault) -> Self {
        let mut progress = Progress::new(Vec::new());
        progress.left = bytes;
        progress.fault = Some(fault);
        Self(progress)
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.0.fault
    }

    /// Nothing more is written.
    pub(crate) fn give_up(&mut self) {
        self.0.fail(Status::GivenUp);
    }

    /// Nothing more is written if any of it were this region's.
    pub(crate) fn revoke(&mut self, region: u64) {
        self.0.revoke(region);
    }

    pub(super) fn left(&self) -> u64 {
        self.0.left
    }

    pub(super) fn is_direct(&self) -> bool {
        self.0.fault.is_none()
    }

    pub(super) fn slices(&self, into: &mut Vec<libc::iovec>, slices_max: usize) {
        self.0.slices(into, slices_max);
    }

    /// The kernel has written so much.
    pub(super) fn written(&mut self, bytes: u64) {
        self.0.advance(bytes);
    }

    pub(super) fn failed(&mut self) {
        self.0.fail(Status::Unmapped);
    }

    /// Takes what was read already; says how much of it was the chunk's.
    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(sys::size(self.0.left));
        let mut rest = &bytes[..count];
        while !rest.is_empty() && self.0.fault.is_none() {
            let Some((address, span_bytes)) = self.0.first(rest.len()) else {
                break;
            };
            let (now, later) = rest.split_at(span_bytes);
            // SAFETY: `new`'s caller has promised it of the sink's spans.
            if unsafe { sys::copy_in(address, now) }.is_err() {
                self.0.fail(Status::Unmapped);
                break;
            }
            self.0.advance(now.len() as u64);
            rest = later;
        }
        self.0.left -= rest.len() as u64;
        count
    }
}
