//! The session between two procs: what is sent is numbered and kept until it is acknowledged; what is received is
//! taken in order and once.
//!
//! A session outlives its connections. It never reads a clock or touches a socket: the owner passes the bytes that
//! arrived, writes the bytes that are [unsent](Session::unsent), and calls [`Session::handle_timeout`] at
//! [`Session::next_wakeup`]. The `log` of what was sent *is* the output buffer *is* the replay buffer, so a payload is
//! copied once.
//!
//! Between procs of one host a connection never comes back: its end is the session's end, and
//! [`Session::undelivered`] gives what must go back to its senders. Between hosts [`Session::resume`] goes on over
//! a new connection, and frames may travel by another way than the connection ([`Session::post`]).
//!
//! | module | what it is |
//! |---|---|
//! | `log` | what was sent and not acknowledged |
//! | `shared` | payloads that stay where they were captured |
//! | `bulks` | parts that come in pieces, ahead of the frame that names them |
//! | `posting` | frames that travel by another way than the connection |

mod bulks;
mod log;
mod posting;
mod shared;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use crate::limits;
use crate::wire::frame::{BodySize, FLAG_ACK_WANTED, measure_body, write_body};
use crate::wire::{EncodeError, Frame, FrameHead, FrameHeader, Kind, Part, ProtocolError, Tail};
pub use bulks::Bulks;
use log::Log;
use posting::{Early, Posted};
pub use shared::Shared;

/// What a session is made with; [`limits`] has the usual values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionConfig {
    /// Bytes that the session keeps at most; aside from a larger frame, which goes alone, and from what is acknowledged
    /// in a chunk that is not.
    pub replay_bytes_max: usize,
    /// How long an acknowledgement may wait for a frame to travel with; none where it may wait for ever, as between
    /// procs of one host, where nothing is replayed.
    pub ack_delay_ns: Option<u64>,
    /// Bytes of frames that may wait here for one before them that travels by another way; none where all frames come over
    /// the connection, and one that is missing is an error.
    pub early_bytes_max: usize,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            replay_bytes_max: limits::REPLAY_BYTES_MAX,
            ack_delay_ns: None,
            early_bytes_max: 0,
        }
    }
}

/// Why a frame was not taken. Nothing was changed; the caller still has what it wanted to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// As much is unacknowledged as the session may keep: wait until the peer has acknowledged some of it.
    #[error(
        "frame of {length} bytes does not fit: {held} of {limit} bytes wait for the peer to acknowledge them"
    )]
    Full {
        /// Bytes of the frame.
        length: usize,
        /// Bytes that the session holds.
        held: usize,
        /// Bytes that it may hold.
        limit: usize,
    },
    /// The frame cannot be written at all.
    #[error("the message cannot be written as a frame")]
    Encode(#[from] EncodeError),
}

/// One end of a session.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    log: Log,
    /// Written into each frame.
    epoch: u32,
    /// Last number given out.
    last_sequence: u64,
    /// Highest number that the peer has acknowledged.
    acknowledged: u64,
    /// Whether the peer was asked for an acknowledgement since it last gave one.
    ack_asked: bool,
    /// Last number received in order.
    received: u64,
    owed: Owed,
    doubles: u64,
    /// What left by another way and is not acknowledged.
    posted: Option<Posted>,
    /// The highest number that was given out when something was taken back: until it is acknowledged nothing is posted.
    taken_back: u64,
    /// What came before its turn. Boxed, since most sessions never have any.
    early: Option<Box<Early>>,
}

/// What was received and not yet acknowledged.
#[derive(Debug, Default)]
struct Owed {
    frames: u64,
    bytes: u64,
    /// The peer has said that it wants an acknowledgement at once.
    wanted: bool,
    /// When the oldest of the frames arrived.
    since_ns: Option<u64>,
}

impl Session {
    /// A session in which nothing was sent or received yet.
    pub fn new(config: SessionConfig) -> Self {
        Self {
            config,
            log: Log::default(),
            epoch: 0,
            last_sequence: 0,
            acknowledged: 0,
            ack_asked: false,
            received: 0,
            owed: Owed::default(),
            doubles: 0,
            posted: None,
            taken_back: 0,
            early: None,
        }
    }

    /// Sets the membership epoch that is written into each frame from now on.
    pub fn set_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// Numbers a frame and puts it at the end of what is unsent. Returns its number.
    ///
    /// # Errors
    ///
    /// [`SessionError::Full`] when the session holds as much as it may: the peer is asked for an acknowledgement,
    /// and there may be room after the next [`Session::receive`]. Kinds without parts are small and bounded by what
    /// they answer, so they never meet this. [`SessionError::Encode`] when a limit of the wire is passed.
    #[inline]
    pub fn push<H: FrameHeader>(&mut self, header: &H, parts: &[Part<'_>]) -> Result<u64, SessionError> {
        let size = measure_body(header, parts)?;
        let length = FrameHead::BYTES + size.body as usize;
        if !matches!(H::TAIL, Tail::Nothing) {
            self.make_room(length, self.config.replay_bytes_max)?;
        }
        let head = self.next_head(header, size);
        self.log.append(length, head.sequence, |out| {
            head.write(out);
            write_body(header, parts, out);
        });
        Ok(head.sequence)
    }

    /// The head of the next numbered frame, which carries an acknowledgement of all that came.
    #[inline]
    fn next_head<H: FrameHeader>(&mut self, header: &H, size: BodySize) -> FrameHead {
        self.last_sequence += 1;
        self.owed = Owed::default();
        FrameHead {
            body_length: size.body,
            header_length: size.header,
            kind: H::KIND,
            flags: header.flags(),
            sequence: self.last_sequence,
            acknowledged: self.received,
            epoch: self.epoch,
        }
    }

    /// Whether a frame of this length, head included, would be taken now.
    #[inline]
    pub fn has_room(&self, length: usize) -> bool {
        self.has_room_within(length, self.config.replay_bytes_max)
    }

    #[inline]
    fn has_room_within(&self, length: usize, limit: usize) -> bool {
        let alone = self.acknowledged == self.last_sequence;
        alone || self.log.held().saturating_add(length) <= limit
    }

    #[inline]
    fn make_room(&mut self, length: usize, limit: usize) -> Result<(), SessionError> {
        if self.has_room_within(length, limit) {
            return Ok(());
        }
        let held = self.log.held();
        // The peer may see no reason to acknowledge: little was sent, but the next frame is large.
        self.ask_ack();
        Err(SessionError::Full { length, held, limit })
    }

    /// Have the peer acknowledge what it has received at once, unless it was asked already.
    pub fn ask_ack(&mut self) {
        if !self.ack_asked {
            self.ack_asked = true;
            self.append_ack(FLAG_ACK_WANTED);
        }
    }

    fn append_ack(&mut self, flags: u8) {
        let flags = flags | self.log.take_unsent_ack();
        let head = FrameHead {
            body_length: 0,
            header_length: 0,
            kind: Kind::Ack,
            flags,
            sequence: 0,
            acknowledged: self.received,
            epoch: self.epoch,
        };
        self.log.append(FrameHead::BYTES, 0, |out| head.write(out));
        self.owed = Owed::default();
    }

    /// The bytes to write next, in order, in pieces of whole frames (the first may begin within one).
    #[inline]
    pub fn unsent(&self) -> impl Iterator<Item = &[u8]> {
        self.log.unsent()
    }

    /// How many bytes are unsent.
    #[inline]
    pub fn unsent_bytes(&self) -> usize {
        self.log.unsent_bytes()
    }

    /// Whether there is something to write.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.log.unsent_bytes() > 0
    }

    /// Notes that the first `count` unsent bytes were written.
    ///
    /// # Panics
    ///
    /// When there were not as many.
    #[inline]
    pub fn sent(&mut self, count: usize) {
        self.log.sent(count);
        self.log.trim(self.acknowledged);
    }

    /// Reads all whole frames that these bytes begin with, and returns how many bytes those were. `visit` sees each
    /// new frame in order, once; doubles are dropped, acknowledgements are applied.
    ///
    /// When `visit` breaks, the frame it was shown is not taken: it and what follows must be passed again.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] for bytes that the peer must not send. The frames before them were taken; the connection
    /// must end.
    #[inline]
    pub fn receive(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        visit: &mut impl FnMut(Frame<'_>) -> ControlFlow<()>,
    ) -> Result<usize, ProtocolError> {
        let before = self.received;
        let consumed = self.receive_frames(bytes, visit);
        // Also after an error: what was right until then counts.
        if self.received != before && self.owed.since_ns.is_none() {
            self.owed.since_ns = Some(now_ns);
        }
        self.log.trim(self.acknowledged);
        consumed
    }

    #[inline]
    fn receive_frames(
        &mut self,
        bytes: &[u8],
        visit: &mut impl FnMut(Frame<'_>) -> ControlFlow<()>,
    ) -> Result<usize, ProtocolError> {
        let mut consumed = 0;
        if self.early.is_some() {
            self.take_early(visit)?;
        }
        while let Some(head) = FrameHead::decode(&bytes[consumed..])? {
            let end = consumed + head.frame_length();
            let Some(body) = bytes.get(consumed + FrameHead::BYTES..end) else {
                break;
            };
            self.apply_acknowledged(head.acknowledged)?;
            if head.sequence == self.received + 1 {
                if visit(Frame::decode_body(head, body)?).is_break() {
                    break;
                }
                self.take_in(head);
                if self.early.is_some() {
                    self.take_early(visit)?;
                }
            } else {
                self.receive_out_of_order(head, &bytes[consumed..end])?;
            }
            consumed = end;
        }
        Ok(consumed)
    }

    #[inline]
    fn take_in(&mut self, head: FrameHead) {
        self.received = head.sequence;
        self.owed.frames += 1;
        self.owed.bytes += head.frame_length() as u64;
    }

    #[inline]
    fn apply_acknowledged(&mut self, acknowledged: u64) -> Result<(), ProtocolError> {
        if acknowledged <= self.acknowledged {
            return Ok(());
        }
        if acknowledged > self.last_sequence {
            return Err(ProtocolError::AcknowledgedUnsent {
                acknowledged,
                last: self.last_sequence,
            });
        }
        self.acknowledged = acknowledged;
        self.ack_asked = false;
        Ok(())
    }

    /// A frame that is not the next: what is not numbered, a double, or one before its turn, which is kept.
    fn receive_out_of_order(&mut self, head: FrameHead, frame: &[u8]) -> Result<(), ProtocolError> {
        if head.kind == Kind::Ack {
            self.owed.wanted |= head.flags & FLAG_ACK_WANTED != 0;
            return Ok(());
        }
        if head.sequence > self.received {
            return self.keep_early(head, frame);
        }
        // A double shows that the peer has not heard of our acknowledgement.
        self.owed.wanted = true;
        self.doubles += 1;
        Ok(())
    }

    /// Whether an acknowledgement should be pushed now, at the end of a batch, unless another frame carries it.
    #[inline]
    pub fn ack_due(&self) -> bool {
        let owed = &self.owed;
        owed.wanted || owed.frames >= limits::ACK_FRAMES_MAX || owed.bytes >= limits::ACK_BYTES_MAX
    }

    /// Appends an acknowledgement that travels alone.
    pub fn push_ack(&mut self) {
        self.append_ack(0);
    }

    /// When [`Session::handle_timeout`] wants to be called, on the clock of the times that were passed in.
    pub fn next_wakeup(&self) -> Option<u64> {
        let posted = self.posted_until_ns();
        self.ack_wakeup().into_iter().chain(posted).min()
    }

    fn ack_wakeup(&self) -> Option<u64> {
        let delay = self.config.ack_delay_ns?;
        self.owed.since_ns.map(|since| since.saturating_add(delay))
    }

    /// Appends the acknowledgement whose time has come, and takes back what was posted and not acknowledged in time; says
    /// whether there is something to write.
    pub fn handle_timeout(&mut self, now_ns: u64) -> bool {
        let due = self.ack_wakeup().is_some_and(|at| at <= now_ns);
        if due {
            self.append_ack(0);
        }
        let taken_back = self.take_back_posted(now_ns);
        due || taken_back
    }

    /// Goes on over a new connection to the same life of the peer, which has received everything up to
    /// `peer_received`: what comes after it is unsent again, from the start of a frame.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] when that number cannot be: the peer's end is not of this session, which is lost.
    pub fn resume(&mut self, peer_received: u64) -> Result<(), ProtocolError> {
        if peer_received < self.acknowledged {
            let acknowledged = self.acknowledged;
            return Err(ProtocolError::ResumeBehind {
                received: peer_received,
                acknowledged,
            });
        }
        self.apply_acknowledged(peer_received)?;
        self.posted = None;
        self.log.rewind(peer_received);
        self.log.trim(self.acknowledged);
        Ok(())
    }

    /// Visits each frame above this number that the peer has not acknowledged, in order: after the session's end,
    /// what goes back to its senders.
    pub fn undelivered(&self, above: u64, mut visit: impl FnMut(Frame<'_>)) {
        self.log.frames_above(above.max(self.acknowledged), &mut visit);
    }

    /// The last number given out.
    #[inline]
    pub fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// The highest number that the peer has acknowledged.
    #[inline]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The last number received in order: what this end says in [`crate::wire::Resume`].
    #[inline]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes in the log, sent or not. What is acknowledged leaves it in chunks.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.log.held()
    }

    /// Frames that came more than once and were dropped.
    #[inline]
    pub fn doubles(&self) -> u64 {
        self.doubles
    }
}
