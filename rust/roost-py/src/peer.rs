//! `Peer`: what this process knows of another proc, and its data connection.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use roost_core::credit::{Amount, QueueBound, SendWindows};
use roost_core::session::{Session, SessionConfig, SessionError};
use roost_core::wire::hello::Hello;
use roost_core::wire::{FrameHeader, Part as WirePart, SegmentPart as WireSegment};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use crate::ids::IdMap;
use crate::outgoing::Outgoing;
use crate::payload::{Part, Payload};
use crate::pending::{Awaited, Letter};
use crate::segment::Way;

/// The reader's buffer at first, and what it grows to by itself while whole buffers come in.
const INPUT_BYTES_MIN: usize = 16 << 10;
const INPUT_BYTES_USUAL: usize = 256 << 10;
/// Pieces handed to one system call.
const SLICES_MAX: usize = 64;

/// How a proc stands with us.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing is known; a connection must be asked for.
    Unknown,
    /// A connection will come.
    Connecting,
    /// Connected.
    Live,
    /// Its process has ended and the next incarnation will come.
    Down,
    /// Ended for good.
    Gone,
}

/// One other proc.
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) incarnation: u32,
    pub(crate) standing: Standing,
    pub(crate) link: Option<Link>,
    /// Messages from before there was a connection, in order.
    pub(crate) backlog: VecDeque<Outgoing>,
    pub(crate) bound: QueueBound,
}

/// The connection to one incarnation of a proc.
pub(crate) struct Link {
    pub(crate) fd: OwnedFd,
    pub(crate) session: Session,
    /// Our hello, until it is written; what is left of theirs is read first.
    hello: Vec<u8>,
    greeted: bool,
    pub(crate) slot: u32,
    input: Vec<u8>,
    filled: usize,
    /// The loop calls us when the socket takes more.
    pub(crate) watched: bool,
    /// The other end is gone or speaks no frames of ours: nothing is read or written any more.
    pub(crate) closed: bool,
    windows: IdMap<SendWindows>,
    /// Messages that wait for credit, by (mesh, slot).
    waiting: HashMap<(u64, u32), VecDeque<Outgoing>>,
    /// Broadcasts that left and may still lie in a mailbox, by (mesh, slot): nobody else would miss them.
    awaited: HashMap<(u64, u32), VecDeque<Awaited>>,
    /// Frames that wait for room in the session.
    pub(crate) stalled: VecDeque<Stalled>,
    /// Segments whose descriptor must be handed to this receiver.
    pub(crate) offers: Vec<Offer>,
}

/// A segment that a receiver has not mapped yet.
pub(crate) struct Offer {
    pub(crate) segment: u64,
    pub(crate) bytes: u64,
    pub(crate) fd: OwnedFd,
}

/// The frame has to wait until its receiver has mapped a segment: like a session without room.
const WAITS_FOR_SEGMENT: SessionError = SessionError::Full {
    length: 0,
    held: 0,
    limit: 0,
};

/// A frame that the session had no room for, or whose segment its receiver has not mapped yet.
pub(crate) enum Stalled {
    /// A message, and whether it has its credit already.
    Message(Outgoing, bool),
    Reply(roost_core::wire::ReplyHeader, Payload),
    PortItem(roost_core::wire::PortItem, Payload),
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// In the session.
    Number,
    /// Held back; it goes when there is credit, room or a connection.
    Waits,
}

impl Peer {
    pub(crate) fn new(id: u64, queue: Amount) -> Self {
        Self {
            id,
            incarnation: 0,
            standing: Standing::Unknown,
            link: None,
            backlog: VecDeque::new(),
            bound: QueueBound::new(queue),
        }
    }
}

impl Link {
    pub(crate) fn new(fd: OwnedFd, hello: &Hello, slot: u32, epoch: u32) -> Self {
        let mut session = Session::new(SessionConfig::default());
        session.set_epoch(epoch);
        Self {
            fd,
            session,
            hello: hello.encode().to_vec(),
            greeted: false,
            slot,
            input: vec![0; INPUT_BYTES_MIN],
            filled: 0,
            watched: false,
            closed: false,
            windows: IdMap::default(),
            waiting: HashMap::new(),
            awaited: HashMap::new(),
            stalled: VecDeque::new(),
            offers: Vec::new(),
        }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether a message to these actors may leave now: none of them has messages waiting, and each has credit.
    pub(crate) fn take_credit(
        &mut self,
        mesh: u64,
        slots: u32,
        runs: roost_core::wire::Runs<'_>,
        bytes: u64,
    ) -> bool {
        if !self.stalled.is_empty() {
            return false;
        }
        if !self.waiting.is_empty()
            && runs
                .targets()
                .any(|(slot, _)| self.waiting.contains_key(&(mesh, slot)))
        {
            return false;
        }
        let windows = self
            .windows
            .entry(mesh)
            .or_insert_with(|| SendWindows::new(Amount::MAILBOX, slots));
        windows.take_all(runs, bytes)
    }

    /// The receiver took messages out of a mailbox: what may go now.
    pub(crate) fn grant(&mut self, mesh: u64, slot: u32, credit: Amount) -> Vec<Outgoing> {
        let Some(windows) = self.windows.get_mut(&mesh) else {
            return Vec::new();
        };
        // A credit that cannot be is a defect of the peer; its next frames show worse, and nothing here depends on it.
        let opened = windows.grant(slot, credit).unwrap_or(false);
        if let Some(awaited) = self.awaited.get_mut(&(mesh, slot)) {
            while awaited.front().is_some_and(|one| one.ordinal <= credit.messages) {
                awaited.pop_front();
            }
        }
        let Some(queue) = opened.then(|| self.waiting.get_mut(&(mesh, slot))).flatten() else {
            return Vec::new();
        };
        let mut free = Vec::new();
        while queue.front().is_some_and(|next| windows.take(slot, next.bytes)) {
            free.extend(queue.pop_front());
        }
        if queue.is_empty() {
            self.waiting.remove(&(mesh, slot));
        }
        free
    }

    /// Remember a broadcast until its actors have taken it; `again` is what to send a rank again.
    pub(crate) fn await_broadcast(
        &mut self,
        mesh: u64,
        runs: roost_core::wire::Runs<'_>,
        name: &Arc<str>,
        sequence: u64,
        mut again: impl FnMut(u32) -> Option<Outgoing>,
    ) {
        let Some(windows) = self.windows.get(&mesh) else {
            return;
        };
        for (slot, rank) in runs.targets() {
            let ordinal = windows.sent(slot).messages;
            let one = Awaited {
                ordinal,
                sequence,
                rank,
                name: Arc::clone(name),
                again: again(rank),
            };
            self.awaited.entry((mesh, slot)).or_default().push_back(one);
        }
    }

    /// The broadcasts that its proc's death leaves, in the order in which they were sent: those to send again, and those to
    /// return. `started` is the last message that the dead proc had started, where that is known.
    pub(crate) fn take_awaited(&mut self, started: Option<u64>, again: bool) -> (Vec<Outgoing>, Vec<Letter>) {
        let mut all: Vec<((u64, u32), Awaited)> = Vec::new();
        for (actor, queue) in std::mem::take(&mut self.awaited) {
            all.extend(queue.into_iter().map(|one| (actor, one)));
        }
        all.sort_by_key(|(_, one)| one.sequence);
        // Only a lone actor starts its messages in the order of their numbers.
        let is_alone = self.windows.len() == 1 && self.windows.values().all(|windows| windows.slots() == 1);
        let (mut resent, mut letters) = (Vec::new(), Vec::new());
        for ((mesh, slot), one) in all {
            let not_started = started.is_some_and(|started| one.sequence > started);
            match one.again {
                _ if is_alone && started.is_some() && !not_started => {}
                Some(message) if again && not_started => resent.push(message),
                _ => {
                    let name = one.name.to_string();
                    letters.push(Letter {
                        mesh,
                        slot,
                        rank: one.rank,
                        name,
                        maybe_executed: !not_started,
                    });
                }
            }
        }
        (resent, letters)
    }

    /// Hold a message back until its actor has credit.
    pub(crate) fn wait(&mut self, slot: u32, message: Outgoing) {
        self.waiting
            .entry((message.mesh.get(), slot))
            .or_default()
            .push_back(message);
    }

    /// All messages that have not left, in no order between actors; they are gone from here.
    pub(crate) fn take_waiting(&mut self) -> Vec<Outgoing> {
        let mut all: Vec<Outgoing> = std::mem::take(&mut self.waiting)
            .into_values()
            .flatten()
            .collect();
        for frame in std::mem::take(&mut self.stalled) {
            if let Stalled::Message(message, _) = frame {
                all.push(message);
            }
        }
        all
    }

    /// Drop the waiting messages of a call that was cancelled. Whether there was one.
    pub(crate) fn forget_call(&mut self, call: u64) -> Vec<Outgoing> {
        let mut dropped = Vec::new();
        for queue in self.waiting.values_mut() {
            let mut at = 0;
            while at < queue.len() {
                if queue[at].call == call {
                    dropped.extend(queue.remove(at));
                } else {
                    at += 1;
                }
            }
        }
        if !dropped.is_empty() {
            self.waiting.retain(|_, queue| !queue.is_empty());
        }
        dropped
    }

    /// Forget the credit of a mesh that has stopped.
    pub(crate) fn forget_mesh(&mut self, mesh: u64) {
        self.windows.remove(&mesh);
        self.awaited.retain(|(of, _), _| *of != mesh);
    }

    /// Number of messages that wait for credit.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty() || !self.stalled.is_empty()
    }

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

    /// Write what the socket takes. True when it takes no more for now.
    pub(crate) fn flush(&mut self) -> bool {
        if self.closed {
            return false;
        }
        if self.session.ack_due() {
            self.session.push_ack();
        }
        while !self.hello.is_empty() || self.session.has_unsent() {
            match self.write_once() {
                Ok(0) | Err(Errno::AGAIN) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => {
                    // The end of the peer is told by its death, which comes on another way.
                    self.closed = true;
                    return false;
                }
            }
        }
        false
    }

    fn write_once(&mut self) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
        if !self.hello.is_empty() {
            let written = sendmsg(
                &self.fd,
                &[IoSlice::new(&self.hello)],
                &mut SendAncillaryBuffer::default(),
                flags,
            )?;
            self.hello.drain(..written);
            return Ok(written);
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slot, piece) in slices.iter_mut().zip(self.session.unsent()) {
            *slot = IoSlice::new(piece);
            count += 1;
        }
        let written = sendmsg(
            &self.fd,
            &slices[..count],
            &mut SendAncillaryBuffer::default(),
            flags,
        )?;
        self.session.sent(written);
        Ok(written)
    }

    /// Read once. `None` when nothing is there, `Some(0)` at the end.
    pub(crate) fn read(&mut self) -> Option<usize> {
        if self.closed {
            return None;
        }
        if self.filled == self.input.len() {
            self.grow();
        }
        loop {
            match recv(&self.fd, &mut self.input[self.filled..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.closed = true;
                    return Some(0);
                }
                Ok((count, _)) => {
                    self.filled += count;
                    return Some(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                // Reset, or the like: it has ended.
                Err(_) => {
                    self.closed = true;
                    return Some(0);
                }
            }
        }
    }

    /// Room for the rest of a frame: twice as much, so that memory follows the bytes that came and not what they announce.
    fn grow(&mut self) {
        let more = (self.input.len() * 2).max(INPUT_BYTES_MIN);
        self.input.resize(more, 0);
    }

    /// Take their hello off the input. False until it is there.
    pub(crate) fn greet(
        &mut self,
        ours: &Hello,
        peer: roost_core::id::ProcId,
        incarnation: u32,
    ) -> Result<bool, String> {
        if self.greeted {
            return Ok(true);
        }
        let Some(bytes) = self.input[..self.filled].first_chunk::<{ Hello::BYTES }>() else {
            return Ok(false);
        };
        let theirs = Hello::decode(bytes, ours).map_err(|error| error.to_string())?;
        theirs
            .expect(peer, roost_core::id::Incarnation(incarnation))
            .map_err(|error| error.to_string())?;
        self.greeted = true;
        self.consumed(Hello::BYTES);
        Ok(true)
    }

    /// The session and the bytes that it has not seen.
    pub(crate) fn unread(&mut self) -> (&mut Session, &[u8]) {
        (&mut self.session, &self.input[..self.filled])
    }

    /// These bytes were used.
    pub(crate) fn consumed(&mut self, count: usize) {
        self.input.copy_within(count..self.filled, 0);
        let full = self.filled == self.input.len();
        self.filled -= count;
        if full && self.input.len() < INPUT_BYTES_USUAL {
            self.grow();
        } else if self.filled == 0 && self.input.len() > INPUT_BYTES_USUAL {
            // A large frame has passed; what it needed goes back.
            self.input = vec![0; INPUT_BYTES_USUAL];
        }
    }
}
