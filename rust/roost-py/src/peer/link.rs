//! Frames of messages and replies into the session, with their parts.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use roost_core::id::MeshId;
use roost_core::session::SessionError;
use roost_core::wire::{
    Chain, FrameHeader, MessageHeader, Part as WirePart, RunsBuffer, SegmentPart as WireSegment,
};

use super::{Link, Offer};
use crate::payload::{Part, Payload};
use crate::segment::Way;
use crate::spawns::Spawns;

/// The frame has to wait until its receiver has mapped a segment: like a session without room.
const WAITS_FOR_SEGMENT: SessionError = SessionError::Full {
    length: 0,
    held: 0,
    limit: 0,
};

/// Constructors that go together in one message: the receiver begins while the next are made.
const SPAWNS_BYTES_MAX: usize = 4 << 10;

impl Link {
    /// Have a mesh made there, together with others.
    pub(crate) fn spawn(&mut self, mesh: MeshId, plan: &[u8], rest: &[u8]) -> Result<(), SessionError> {
        if let Some(spawns) = &mut self.spawns
            && spawns.bytes.len() < SPAWNS_BYTES_MAX
            && spawns.add(plan, rest)
        {
            return Ok(());
        }
        self.push_spawns()?;
        self.spawns = Some(Spawns::new(mesh, plan, rest));
        Ok(())
    }

    /// Put the message that makes meshes into the session.
    pub(super) fn push_spawns(&mut self) -> Result<(), SessionError> {
        if let Some(spawns) = self.spawns.take() {
            let nobody = RunsBuffer::new();
            let header = MessageHeader {
                call: 0,
                mesh: spawns.first,
                deadline_ns: 0,
                flags: 0,
                runs: nobody.as_runs(),
                endpoint: ".spawn",
                sizes: &[],
                chain: Chain::EMPTY,
            };
            if let Err(error) = self.session.push(&header, &[WirePart::Inline(&spawns.bytes)]) {
                self.spawns = Some(spawns);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether something waits for room in the session.
    pub(crate) fn is_held_up(&self) -> bool {
        !self.stalled.is_empty() || self.spawns.is_some()
    }

    /// Put a frame with parts into the session. On an error nothing was sent, and it must wait with what comes after it.
    pub(crate) fn push<H: FrameHeader>(
        &mut self,
        py: Python<'_>,
        receiver: u64,
        header: &H,
        payload: &Payload,
    ) -> Result<u64, SessionError> {
        self.push_spawns()?;
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
