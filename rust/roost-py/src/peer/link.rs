//! Frames of messages and replies into the session, with their parts.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use roost_core::session::SessionError;
use roost_core::wire::{FrameHeader, Part as WirePart, SegmentPart as WireSegment};

use super::{Link, Offer};
use crate::payload::{Part, Payload};
use crate::segment::Way;

/// The frame has to wait until its receiver has mapped a segment: like a session without room.
const WAITS_FOR_SEGMENT: SessionError = SessionError::Full {
    length: 0,
    held: 0,
    limit: 0,
};

impl Link {
    /// Put a frame with parts into the session. On an error nothing was sent, and it must wait with what comes after it.
    pub(crate) fn push<H: FrameHeader>(
        &mut self,
        py: Python<'_>,
        receiver: u64,
        header: &H,
        payload: &Payload,
    ) -> Result<u64, SessionError> {
        let pickle = WirePart::Inline(payload.pickle.as_bytes(py));
        let Some(parts) = &payload.parts else {
            return self.session.push(header, &[pickle]);
        };
        let Some(ways) = self.ways(receiver, parts) else {
            return Err(WAITS_FOR_SEGMENT);
        };
        let mut wire = Vec::with_capacity(parts.len() + 1);
        wire.push(pickle);
        for (part, way) in parts.iter().zip(&ways) {
            wire.push(match (part, way) {
                (_, Some(copied)) => WirePart::Inline(copied),
                (Part::Shared(part), None) => {
                    let part = part.get();
                    WirePart::Segment(WireSegment {
                        segment: part.segment(),
                        generation: part.generation(),
                        offset: part.offset(),
                        length: part.length(),
                    })
                }
                (Part::Inline(bytes), None) => WirePart::Inline(
                    bytes
                        .bind(py)
                        .cast::<PyBytes>()
                        .map_or(&[], |bytes| bytes.as_bytes()),
                ),
                // A received part is loaded and captured anew before it is sent on.
                (Part::Held(_), None) => WirePart::Inline(&[]),
            });
        }
        let number = self.session.push(header, &wire)?;
        for (part, way) in parts.iter().zip(&ways) {
            if let (Part::Shared(part), None) = (part, way) {
                part.get().hold(receiver);
            }
        }
        Ok(number)
    }

    /// How each part travels: a copy of its bytes where shared memory cannot be had. None when a descriptor is on its way.
    fn ways(&mut self, receiver: u64, parts: &[Part]) -> Option<Vec<Option<Vec<u8>>>> {
        let mut ways = Vec::with_capacity(parts.len());
        for part in parts {
            let Part::Shared(part) = part else {
                ways.push(None);
                continue;
            };
            let part = part.get();
            match part.way(receiver) {
                Way::Ready => ways.push(None),
                Way::Wait => return None,
                Way::Offer(fd) => {
                    self.offers.push(Offer {
                        segment: part.segment(),
                        bytes: part.segment_bytes(),
                        fd,
                    });
                    return None;
                }
                Way::Inline => {
                    let mut copied = Vec::new();
                    part.append_to(&mut copied);
                    ways.push(Some(copied));
                }
            }
        }
        Some(ways)
    }
}
