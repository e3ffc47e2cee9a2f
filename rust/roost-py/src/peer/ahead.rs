//! Frames with parts too large for them, between hosts: the parts go ahead in pieces, other frames in between. What must not
//! overtake such a frame waits behind it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use roost_core::limits::BULK_PIECE_BYTES_MAX;
use roost_core::session::{Session, Shared};
use roost_core::wire::{Bulk, FrameHeader, MessageHeader, PortItem, ReplyHeader};

use super::Stalled;
use crate::payload::{Part, Payload};
use crate::segment::SegmentPart;

/// A part from this size on goes ahead: below it the copy into the frame costs less (an echo over TCP on loopback: 254 KiB
/// inline 405 us, 258 KiB ahead 435 us; each further KiB 1.0 us inline, 0.35 us ahead).
const PART_BYTES_MIN: usize = 256 << 10;

/// Inline parts of one frame; what is beyond goes ahead, so that no frame keeps others waiting for long.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// What may be unsent before the next piece is taken: enough that the socket never runs dry, little enough that a small frame
/// is soon on its way.
const UNSENT_BYTES_MAX: usize = 2 << 20;

/// Frames that keep their order among themselves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    /// All to one actor, by mesh and slot.
    Actor(u64, u32),
    /// All answers to one call.
    Call(u64),
    /// All values for one port.
    Port(u64),
    /// Roost's own messages: nothing overtakes one that is large.
    All,
}

/// The header of a frame that may have large parts.
pub(crate) trait Outbound: FrameHeader + Copy {
    /// Calls `visit` with each order that it keeps, until that says true; whether it did.
    fn any_order(&self, visit: impl FnMut(Order) -> bool) -> bool;

    /// The same in the clock of the job, which is so far ahead of ours.
    #[must_use]
    fn in_job_time(self, _clock_ns: i64) -> Self {
        self
    }
}

impl Outbound for MessageHeader<'_> {
    fn any_order(&self, mut visit: impl FnMut(Order) -> bool) -> bool {
        if self.endpoint.starts_with('.') {
            return visit(Order::All);
        }
        let mesh = self.mesh.get();
        self.runs
            .targets()
            .any(|(slot, _)| visit(Order::Actor(mesh, slot)))
    }

    fn in_job_time(mut self, clock_ns: i64) -> Self {
        self.deadline_ns = shifted(self.deadline_ns, clock_ns);
        self
    }
}

impl Outbound for ReplyHeader {
    fn any_order(&self, mut visit: impl FnMut(Order) -> bool) -> bool {
        visit(Order::Call(self.call))
    }
}

impl Outbound for PortItem {
    fn any_order(&self, mut visit: impl FnMut(Order) -> bool) -> bool {
        visit(Order::Port(self.port))
    }
}

/// A deadline in another clock; 0 is none in both.
pub(crate) fn shifted(deadline_ns: i64, by_ns: i64) -> i64 {
    match deadline_ns {
        0 => 0,
        // A deadline that falls on 0 would be none.
        deadline => match deadline.saturating_add(by_ns) {
            0 => 1,
            other => other,
        },
    }
}

/// A part that goes ahead.
pub(super) struct Ahead {
    /// Its place among the frame's parts; 0 is the pickle.
    pub(super) at: usize,
    /// 0 until its first piece is sent.
    pub(super) bulk: u64,
    pub(super) bytes: Shared,
    /// Its receiver never writes to it.
    constant: bool,
}

/// A frame that waits until its parts have gone ahead, or until those before it have.
pub(super) struct Waiting {
    pub(super) frame: Stalled,
    pub(super) parts: Vec<Ahead>,
    /// Parts that are sent, and bytes of the next.
    next: usize,
    sent: usize,
}

/// How far the first frame is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fed {
    /// There is none, or enough is unsent, or the session has no room.
    Nothing,
    /// Pieces were put into the session.
    Pieces,
    /// All its parts have gone: it follows.
    Whole,
}

/// The frames that wait.
#[derive(Default)]
pub(super) struct Outbox {
    frames: VecDeque<Waiting>,
    /// How many of them keep each order.
    kept: HashMap<Order, u32>,
    last_bulk: u64,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether this frame must wait behind another.
    pub(super) fn holds(&self, header: &impl Outbound) -> bool {
        if self.frames.is_empty() {
            return false;
        }
        let is_kept = |order| order != Order::All && self.kept.contains_key(&order);
        self.holds_all() || header.any_order(is_kept)
    }

    /// Whether nothing may go before what waits here.
    pub(super) fn holds_all(&self) -> bool {
        self.kept.contains_key(&Order::All)
    }

    /// Whether this frame goes here: it is too large, or must wait behind another.
    pub(super) fn concerns(&self, py: Python<'_>, frame: &Stalled) -> bool {
        let is_held = match frame {
            Stalled::Message(message, _) => self.holds(&message.header()),
            Stalled::Reply(header, _) => self.holds(header),
            Stalled::PortItem(header, _) => self.holds(header),
        };
        is_held || has_parts_ahead(py, frame.payload())
    }

    /// Take a frame that is too large, or must wait behind one.
    pub(super) fn push(&mut self, py: Python<'_>, frame: Stalled) {
        each_order(&frame, |order| *self.kept.entry(order).or_insert(0) += 1);
        let parts = parts_ahead(py, frame.payload());
        self.frames.push_back(Waiting {
            frame,
            parts,
            next: 0,
            sent: 0,
        });
    }

    /// Put pieces of the first frame's parts into the session, as many as should be there.
    pub(super) fn feed(&mut self, session: &mut Session) -> Fed {
        let Some(first) = self.frames.front_mut() else {
            return Fed::Nothing;
        };
        let mut fed = Fed::Nothing;
        while session.unsent_bytes() < UNSENT_BYTES_MAX {
            let Some(part) = first.parts.get_mut(first.next) else {
                return Fed::Whole;
            };
            if part.bulk == 0 {
                self.last_bulk += 1;
                part.bulk = self.last_bulk;
            }
            let piece = part.bytes.piece(first.sent, BULK_PIECE_BYTES_MAX);
            let length = piece.length();
            if session.push_bulk(&part.header(first.sent), piece).is_err() {
                break;
            }
            fed = Fed::Pieces;
            first.sent += length;
            if first.sent == part.bytes.length() {
                first.next += 1;
                first.sent = 0;
            }
        }
        fed
    }

    pub(super) fn take_first(&mut self) -> Option<Waiting> {
        let first = self.frames.pop_front()?;
        self.let_go(&first.frame);
        Some(first)
    }

    /// The first frame cannot go yet after all.
    pub(super) fn put_back(&mut self, first: Waiting) {
        each_order(&first.frame, |order| *self.kept.entry(order).or_insert(0) += 1);
        self.frames.push_front(first);
    }

    /// All frames; nothing more is sent of them.
    pub(super) fn take_all(&mut self) -> VecDeque<Stalled> {
        self.kept.clear();
        std::mem::take(&mut self.frames)
            .into_iter()
            .map(|waiting| waiting.frame)
            .collect()
    }

    /// Take out the messages of a call that was cancelled; the receiver forgets the parts that it has of them.
    pub(super) fn forget_call(&mut self, call: u64, session: &mut Session) -> Vec<super::Outgoing> {
        let mut dropped = Vec::new();
        for waiting in std::mem::take(&mut self.frames) {
            match waiting.frame {
                Stalled::Message(message, credited) if message.call == call => {
                    let begun = waiting.parts.iter().enumerate();
                    for (at, part) in begun.filter(|(_, part)| part.bulk != 0) {
                        let sent = if at < waiting.next {
                            part.bytes.length()
                        } else {
                            waiting.sent
                        };
                        session.give_up_bulk(&part.header(sent));
                    }
                    let frame = Stalled::Message(message, credited);
                    self.let_go(&frame);
                    dropped.extend(Stalled::messages([frame].into()));
                }
                _ => self.frames.push_back(waiting),
            }
        }
        dropped
    }

    fn let_go(&mut self, frame: &Stalled) {
        each_order(frame, |order| {
            if let Some(count) = self.kept.get_mut(&order) {
                *count -= 1;
                if *count == 0 {
                    self.kept.remove(&order);
                }
            }
        });
    }
}

impl Ahead {
    fn header(&self, offset: usize) -> Bulk {
        Bulk {
            bulk: self.bulk,
            length: self.bytes.length() as u64,
            offset: offset as u64,
            given_up: false,
            constant: self.constant,
        }
    }
}

fn each_order(frame: &Stalled, mut visit: impl FnMut(Order)) {
    let visit = |order| {
        visit(order);
        false
    };
    match frame {
        Stalled::Message(message, _) => message.header().any_order(visit),
        Stalled::Reply(header, _) => header.any_order(visit),
        Stalled::PortItem(header, _) => header.any_order(visit),
    };
}

/// Whether any part is too large for its frame.
pub(super) fn has_parts_ahead(py: Python<'_>, payload: &Payload) -> bool {
    let mut inline = 0;
    lengths(py, payload).any(|length| goes_ahead(length, &mut inline))
}

/// The parts that go ahead of a frame. The bytes are not copied: what was captured stays as it is.
fn parts_ahead(py: Python<'_>, payload: &Payload) -> Vec<Ahead> {
    let mut inline = 0;
    let ahead = lengths(py, payload)
        .enumerate()
        .filter(|(_, length)| goes_ahead(*length, &mut inline));
    let ahead = ahead.filter_map(|(at, _)| {
        let mut constant = true;
        let bytes: Arc<dyn AsRef<[u8]> + Send + Sync> = match at.checked_sub(1) {
            None => Arc::new(PyBackedBytes::from(payload.pickle.bind(py).clone())),
            Some(part) => {
                let part = payload.parts.as_ref()?.get(part)?;
                constant = part.is_constant(py);
                match part {
                    Part::Shared(part) => Arc::new(Lent(part.clone_ref(py))),
                    Part::Inline(_) => Arc::new(Captured::new(py, part)),
                    Part::Held(_) => return None,
                }
            }
        };
        let bytes = Shared::new(bytes);
        Some(Ahead {
            at,
            bulk: 0,
            bytes,
            constant,
        })
    });
    ahead.collect()
}

fn lengths<'a>(py: Python<'a>, payload: &'a Payload) -> impl Iterator<Item = usize> + 'a {
    let parts = payload.parts.iter().flatten();
    let pickle = payload.pickle.as_bytes(py);
    std::iter::once(pickle.len()).chain(parts.map(move |part| part.size(py)))
}

/// Whether the next part goes ahead, after so many bytes that do not.
fn goes_ahead(length: usize, inline: &mut usize) -> bool {
    let ahead = length >= PART_BYTES_MIN || *inline + length > FRAME_BYTES_MAX;
    if !ahead {
        *inline += length;
    }
    ahead
}

/// A captured part in memory of its own.
struct Captured {
    _part: Part,
    address: *const u8,
    length: usize,
}

// SAFETY: the part owns the memory, which nobody writes to or moves once it was captured.
unsafe impl Send for Captured {}
// SAFETY: as above.
unsafe impl Sync for Captured {}

impl Captured {
    fn new(py: Python<'_>, part: &Part) -> Self {
        let bytes = part.inline(py);
        Self {
            address: bytes.as_ptr(),
            length: bytes.len(),
            _part: part.clone_ref(py),
        }
    }
}

impl AsRef<[u8]> for Captured {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the part keeps so many bytes there.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

/// A captured part in shared memory: it is not filled again while this lives.
struct Lent(Py<SegmentPart>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.get().bytes()
    }
}
