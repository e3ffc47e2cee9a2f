//! Frames of messages and replies into the session, with their parts.

use pyo3::prelude::*;
use roost_core::id::MeshId;
use roost_core::session::SessionError;
use roost_core::wire::{
    BulkPart, Chain, MessageHeader, Part as WirePart, RunsBuffer, SegmentPart as WireSegment,
};

use super::ahead::{Ahead, Waiting, has_parts_ahead};
use super::{Fed, Link, Offer, Outbound, Stalled};
use crate::payload::{Part, Payload};
use crate::segment::Way;
use crate::spawns::Spawns;

/// The frame has to wait for something else: until its receiver has mapped a segment, or parts have gone ahead of it.
const WAITS: SessionError = SessionError::Full {
    length: 0,
    held: 0,
    limit: 0,
};

/// Constructors that go together in one message: the receiver begins while the next are made.
const SPAWNS_BYTES_MAX: usize = 4 << 10;

impl Link {
    /// Have a mesh made there, together with others.
    pub(crate) fn spawn(&mut self, mesh: MeshId, plan: &[u8], rest: &[u8]) -> Result<(), SessionError> {
        if self.far.as_ref().is_some_and(|far| far.out.holds_all()) {
            return Err(WAITS);
        }
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
    pub(crate) fn push<H: Outbound>(
        &mut self,
        py: Python<'_>,
        receiver: u64,
        header: &H,
        payload: &Payload,
    ) -> Result<u64, SessionError> {
        self.push_spawns()?;
        if let Some(far) = &self.far {
            if far.out.holds(header) || has_parts_ahead(py, payload) {
                return Err(WAITS);
            }
            return self.push_far(py, header, payload, &[]);
        }
        let pickle = WirePart::Inline(payload.pickle.as_bytes(py));
        let Some(parts) = &payload.parts else {
            return self.session.push(header, &[pickle]);
        };
        let Some(ways) = self.ways(receiver, parts) else {
            return Err(WAITS);
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
                (part, None) => wire_part(py, part),
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

    /// Put a frame to another host into the session, whose other parts have gone ahead.
    fn push_far<H: Outbound>(
        &mut self,
        py: Python<'_>,
        header: &H,
        payload: &Payload,
        ahead: &[Ahead],
    ) -> Result<u64, SessionError> {
        let parts = payload.parts.iter().flatten();
        let pickle = WirePart::Inline(payload.pickle.as_bytes(py));
        let mut wire: Vec<WirePart<'_>> = std::iter::once(pickle)
            .chain(parts.map(|part| wire_part(py, part)))
            .collect();
        for part in ahead {
            wire[part.at] = WirePart::Bulk(BulkPart {
                bulk: part.bulk,
                length: part.bytes.length() as u64,
            });
        }
        let clock_ns = self.far.as_ref().map_or(0, |far| far.clock_ns);
        self.session.push(&header.in_job_time(clock_ns), &wire)
    }

    /// Hold a frame back that could not be put into the session, with what comes after it. False when it is under way all
    /// the same, or behind one that is: then it is bounded by its receiver's credit alone.
    pub(crate) fn hold_back(&mut self, py: Python<'_>, frame: Stalled) -> bool {
        match &mut self.far {
            Some(far) if self.stalled.is_empty() && far.out.concerns(py, &frame) => {
                far.out.push(py, frame);
                false
            }
            _ => {
                self.stalled.push_back(frame);
                true
            }
        }
    }

    /// Have parts go ahead to another host: see [`Fed`].
    pub(crate) fn feed(&mut self) -> Fed {
        let far = self.far.as_mut();
        far.map_or(Fed::Nothing, |far| far.out.feed(&mut self.session))
    }

    /// Put the first frame whose parts have all gone ahead into the session, where there is room: the frame, and its number.
    pub(crate) fn push_whole(&mut self, py: Python<'_>) -> Option<(Stalled, Result<u64, SessionError>)> {
        let whole = self.far.as_mut()?.out.take_first()?;
        let Waiting { frame, parts, .. } = &whole;
        let pushed = match frame {
            Stalled::Message(message, _) => self.push_far(py, &message.header(), &message.payload, parts),
            Stalled::Reply(header, payload) => self.push_far(py, header, payload, parts),
            Stalled::PortItem(header, payload) => self.push_far(py, header, payload, parts),
        };
        if let Err(SessionError::Full { .. }) = pushed {
            self.far.as_mut()?.out.put_back(whole);
            return None;
        }
        Some((whole.frame, pushed))
    }

    /// Whether frames wait until parts have gone ahead.
    pub(crate) fn has_ahead(&self) -> bool {
        self.far.as_ref().is_some_and(|far| !far.out.is_empty())
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
                Way::Inline => ways.push(Some(part.bytes().to_vec())),
            }
        }
        Some(ways)
    }
}

/// A captured part in the frame. A received one is loaded and captured anew before it is sent on.
fn wire_part<'a>(py: Python<'a>, part: &'a Part) -> WirePart<'a> {
    match part {
        Part::Inline(_) if part.is_constant(py) => WirePart::Constant(part.inline(py)),
        Part::Inline(_) => WirePart::Inline(part.inline(py)),
        Part::Shared(part) => WirePart::Inline(part.get().bytes()),
        Part::Held(_) => WirePart::Inline(&[]),
    }
}
